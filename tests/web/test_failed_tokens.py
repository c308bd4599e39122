"""Guessing a token is slow, and keeps nobody out who knows it."""

import pytest
import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import create_app
from aleator.web.failed_tokens import FailedTokens

TOKEN = "a-token-of-this-server"


@pytest.fixture
def app():
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
    return create_app(index, token=TOKEN)


def ask(app, token, address="10.0.0.1"):
    client = TestClient(app, client=(address, 1000))
    return client.get("/api/items", headers={} if token is None else {"Authorization": f"Bearer {token}"})


def test_an_address_that_guesses_waits_and_others_do_not(app):
    assert ask(app, TOKEN, "10.0.0.9").status_code == 200
    for _ in range(30):
        ask(app, None)  # without a token it is no guess
    assert [ask(app, f"guess-{i}").status_code for i in range(20)] == [401] * 20
    refused = ask(app, "guess-20")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "too many wrong tokens" in refused.json()["detail"]
    assert ask(app, TOKEN).status_code == 429  # not even the right one is looked at
    assert ask(app, TOKEN, "10.0.0.2").status_code == 200
    assert ask(app, TOKEN, "10.0.0.9").status_code == 200
    assert TestClient(app, client=("10.0.0.1", 1)).get("/api/health").status_code == 200


def test_who_knew_the_token_lately_is_not_kept_out(app):
    assert ask(app, TOKEN).status_code == 200
    assert {ask(app, f"guess-{i}").status_code for i in range(40)} == {401}
    assert ask(app, TOKEN).status_code == 200


def test_windows_end_and_memory_is_bounded():
    now = [0.0]
    failed = FailedTokens(most=3, window=60, trust=100, clock=lambda: now[0])
    for _ in range(3):
        assert failed.seconds_to_wait("a") == 0
        failed.failed("a")
    assert failed.seconds_to_wait("a") == 60
    now[0] = 59.0
    assert failed.seconds_to_wait("a") == 1
    now[0] = 61.0
    assert failed.seconds_to_wait("a") == 0
    for number in range(30_000):
        failed.failed(f"address {number}")
        failed.succeeded(f"other {number}")
    assert len(failed._failures) <= 10_000
    assert len(failed._known) <= 10_000


def test_the_description_declares_the_token(app):
    client = TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"})
    for _ in range(2):
        description = client.get("/api/openapi.json").json()
        assert description["security"] == [{"bearer": []}, {"cookie": []}]
        schemes = description["components"]["securitySchemes"]
        assert schemes["bearer"]["scheme"] == "bearer"
        assert schemes["cookie"] == schemes["cookie"] | {"in": "cookie", "name": "aleator_token"}
        assert description["paths"]["/api/health"]["get"]["security"] == []
        assert all("429" in operation["responses"] for path, methods in description["paths"].items()
                   if path != "/api/health" for operation in methods.values())  # fmt: skip
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))
    assert "security" not in TestClient(create_app(index)).get("/api/openapi.json").json()
