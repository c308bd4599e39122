"""`aleator serve`: what it refuses, where it listens, and how it stops."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from aleator import CredibleIndex, Encoder, VonMisesFisher
from aleator.cli import app
from aleator.encoders.backbones import Features
from tests.web.shapes import DIM, feature_run

COMMAND = sys.modules["aleator.cli.serve"]  # the package has the function of that name


def posteriors(n: int, dim: int = DIM) -> VonMisesFisher:
    return VonMisesFisher(torch.nn.functional.normalize(torch.randn(n, dim), dim=-1), torch.rand(n) * 100)


@pytest.fixture
def gallery(tmp_path):
    CredibleIndex.build(posteriors(12), location=tmp_path / "gallery", fingerprint="of another model").close()
    return tmp_path / "gallery"


@pytest.fixture
def model(tmp_path):
    """A run folder as `aleator train` leaves it, and its fingerprint."""
    folder = tmp_path / "run"
    fingerprint = Encoder(Features(5), DIM, kappa="norm").save(folder / "encoder")
    (folder / "inputs.json").write_text(json.dumps(feature_run().inputs.to_dict()))
    (folder / "config.json").write_text(json.dumps({"match": {"kappa_pos": 20.0, "prior": 0.5}}))
    (folder / "metrics.json").write_text("{}")
    return folder, fingerprint


@pytest.fixture
def served(monkeypatch):
    """The application that the command would run, instead of running it."""
    apps = []
    monkeypatch.setattr(COMMAND, "_run", lambda app, listener: apps.append(app))
    return apps


def run(*arguments, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_help_has_an_example():
    text = run("--help")
    assert "aleator serve gallery/" in text
    assert "--model" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "holds no index"),
        (["{gallery}", "--port", "70000"], "is not a port"),
        (["{gallery}", "--host", "no.such.host.invalid"], "is not an address of this machine"),
        (["{gallery}", "--port", "{taken}"], "cannot be used"),
        (["{gallery}", "--port", "0", "--model", "{model}"], "the index was made by the encoder"),
        (["{gallery}", "--port", "0", "--model", "nowhere"], "--model 'nowhere': there is no such folder"),
        (["{gallery}", "--port", "0", "--root", "nowhere"], "there is no such folder"),
        (["{gallery}", "--port", "0", "--token", "short"], "token"),
        (["{gallery}", "--port", "0", "--workers", "0"], "is not a number of processes"),
        (["{gallery}", "--port", "0", "--log-format", "xml"], "xml"),
        (["{gallery}", "--port", "0", "--model", "{model}", "--device", "abacus"], "abacus"),
        (["postgresql://127.0.0.1:9/none", "--port", "0"], "check the address"),
    ],
)
def test_a_mistake_is_one_line(gallery, model, arguments, words):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"gallery": gallery, "model": model[0], "taken": taken.getsockname()[1]}
        output = run(*(argument.format(**known) for argument in arguments), code=2)
    assert words in output
    assert len(output.strip().splitlines()) == 1


def test_a_model_of_the_same_encoder_answers(tmp_path, model, served):
    folder, fingerprint = model
    CredibleIndex.build(posteriors(12), location=tmp_path / "own", fingerprint=fingerprint).close()
    run(tmp_path / "own", "--port", "0", "--model", folder)
    with TestClient(served[0], base_url="http://127.0.0.1") as client:
        assert client.get("/api/collection").json()["model"] == "features"


def test_loopback_needs_no_token_but_its_own_name(gallery, served):
    assert "token" not in run(gallery, "--port", "0")
    assert TestClient(served[0], base_url="http://127.0.0.1:1").get("/").status_code == 200
    assert TestClient(served[0], base_url="http://evil.example").get("/").status_code == 421


def test_elsewhere_a_token_is_made_and_printed(gallery, served, monkeypatch):
    monkeypatch.setattr(COMMAND, "_listen", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    (token,) = re.findall(r"\?token=(\S+)", run(gallery, "--host", "0.0.0.0"))
    assert len(token) >= 32
    client = TestClient(served[0], base_url="http://somewhere.example")
    assert client.get("/").status_code == 401
    assert client.get("/", headers={"authorization": f"Bearer {token}"}).status_code == 200
    given = "a-token_of-24-characters"
    assert f"?token={given}" in run(gallery, "--host", "0.0.0.0", "--token", given)


def test_it_serves_and_stops_at_a_signal(gallery):
    command = [sys.executable, "-c", "from aleator.cli import main; main()", "serve", str(gallery), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("12 items at http://127.0.0.1:"), line
            address = line.split()[3]
            with urllib.request.urlopen(address + "api/collection") as response:
                assert json.load(response)["items"] == 12
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""
