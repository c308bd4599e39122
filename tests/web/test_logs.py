"""Logs say what happened, hold no secret, and do not grow without bound."""

import json
import logging

import pytest
import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import create_app, set_up_logs
from aleator.web.logs import REQUESTS, FewOfEachKind

TOKEN = "a-token-of-this-server"


@pytest.fixture
def restored():
    """The loggers as they were, afterwards."""
    loggers = [logging.getLogger(name) for name in ("aleator", "uvicorn", REQUESTS.name)]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


def ask(capsys):
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
    client = TestClient(create_app(index, token=TOKEN), follow_redirects=False)
    bearer = {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": "from-a-proxy.7"}
    responses = [
        client.get(f"/?token={TOKEN}"),
        client.get("/api/item", params={"id": "x"}, headers=bearer),
        TestClient(client.app).get("/api/items", headers={"X-Request-ID": "no good id"}),
    ]
    return responses, capsys.readouterr().err.splitlines()


def test_a_request_is_one_line_of_json_without_its_query(capsys, restored):
    set_up_logs("json")
    responses, lines = ask(capsys)
    assert TOKEN not in "".join(lines)
    first, second, third = map(json.loads, lines)
    assert (first["path"], first["status"]) == ("/", 303)
    assert (second["path"], second["status"], second["method"]) == ("/api/item", 200, "GET")
    assert second["request"] == responses[1].headers["x-request-id"] == "from-a-proxy.7"
    assert second["milliseconds"] >= 0
    assert (third["path"], third["status"]) == ("/api/items", 401)
    assert third["request"] == responses[2].headers["x-request-id"] != "no good"


def test_text_has_no_line_for_a_request(capsys, restored):
    set_up_logs("text")
    assert ask(capsys)[1] == []


@pytest.mark.parametrize("format", ["text", "json"])
def test_warnings_are_shown_without_passwords(capsys, restored, format):
    set_up_logs(format)
    logging.getLogger("aleator.web").warning("cannot reach %s", "postgresql://me:hidden@host/db")
    try:
        raise ValueError("postgresql://me:hidden@host/db")
    except ValueError:
        logging.getLogger("uvicorn.error").error("failed", exc_info=True)
    shown = capsys.readouterr().err
    assert "cannot reach" in shown
    assert "hidden" not in shown


def test_few_lines_of_each_kind(caplog):
    now = [0.0]
    few = FewOfEachKind(most=3, window=60, clock=lambda: now[0])

    def lines(n, message="invalid request from %s"):
        records = [logging.LogRecord("uvicorn.error", 30, "", 0, message, (i,), None) for i in range(n)]
        return [record.getMessage() for record in records if few.filter(record)]

    assert len(lines(1000)) == 3
    assert len(lines(2, "something else %s")) == 2
    now[0] = 61.0
    first, *others = lines(1000)
    assert "997 more like this were left out" in first
    assert len(others) == 2
    assert "left out for 1 minutes" in others[-1]
    for number in range(5000):  # memory is bounded too
        lines(1, f"kind {number} %s")
    assert len(few._seen) <= 1000
