"""Tokens and passwords appear in no message, log, file, answer or page."""

import json
import logging
import sys

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VonMisesFisher
from aleator.foundation import command, describe_run
from aleator.retrieval import Items
from aleator.web import create_app
from tests.retrieval.stores.list_store import ListStore

PASSWORD, TOKEN = "hunter2-of-the-database", "hunter2_token_of_the_server"
URL = f"postgresql://ann:{PASSWORD}@db.example:5432/photos#gallery"


@pytest.mark.parametrize(
    "arguments",
    [
        ["aleator", "index", "info", URL],
        ["aleator", "serve", "gallery", "--token", TOKEN],
        ["aleator", "serve", "gallery", f"--token={TOKEN}"],
        ["python", "-m", "aleator", "query", f"postgresql://db/photos?password={PASSWORD}", "q.npz"],
    ],
)
def test_provenance_has_the_command_without_secrets(monkeypatch, arguments):
    monkeypatch.setattr(sys, "orig_argv", arguments)
    for text in (command(), json.dumps(describe_run(0.0, "cpu"))):
        assert PASSWORD not in text
        assert TOKEN not in text
        assert "***" in text
    assert next(word for word in arguments if word in ("info", "serve", "query")) in command()


class RemoteStore(ListStore):
    """A store that says it is on a server."""

    @property
    def location(self):
        return URL


@pytest.fixture
def index():
    built = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
    none = Items([], np.empty((0, 3), np.float32), np.empty(0, np.float32), [])
    remote = CredibleIndex(RemoteStore(none, dict(built.store.config)))
    remote.add(VonMisesFisher(torch.eye(3), 5.0), ["x", "y", "z"])
    return remote


def test_no_answer_page_header_or_log_has_a_secret(index, caplog):
    assert PASSWORD not in repr(index)
    client = TestClient(create_app(index, token=TOKEN), follow_redirects=False)
    right, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"}
    paths = ["/", "/static/page.css", "/api/health", "/api/openapi.json", "/api/collection", "/api/items", "/api/none"]
    with caplog.at_level(logging.DEBUG):
        seen = []
        for path in paths:
            for headers in (right, wrong, {}):
                response = client.get(path, headers=headers)
                seen.append(response.text + str(response.headers))
        seen.append(client.get("/api/query/item", params={"id": "x"}, headers=right).text)
        seen.append(client.get("/", params={"token": TOKEN + "x"}).text)
        broken = client.post("/api/query/posterior", json={"mu": [1], "kappa": -1}, headers=right)
        seen.append(broken.text)
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    for text in [*seen, *ours]:
        assert PASSWORD not in text
        assert TOKEN not in text
        assert "db.example" not in text


def test_the_token_of_an_address_goes_into_a_cookie_that_scripts_cannot_read(index):
    client = TestClient(create_app(index, token=TOKEN), follow_redirects=False)
    response = client.get("/", params={"token": TOKEN})
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


def test_tracebacks_of_commands_do_not_show_variables():
    from aleator.cli import app

    assert app.pretty_exceptions_show_locals is False
