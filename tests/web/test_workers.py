"""Several worker processes: all answer, a dead one is replaced, and they stop together without losing an answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import psutil
import pytest
import torch

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import workers
from aleator.web.workers import run_workers
from tests.web.test_served import until

COMMAND = [sys.executable, "-c", "from aleator.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    place = tmp_path_factory.mktemp("workers") / "gallery"
    q = VonMisesFisher(torch.nn.functional.normalize(torch.randn(30, 4), dim=-1), 20.0)
    CredibleIndex.build(q, [f"item-{i}" for i in range(30)], location=place).close()
    return place


@contextmanager
def serving(gallery, *options):
    arguments = [*COMMAND, str(gallery), "--port", "0", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "items at http://127.0.0.1:" in line, (line, process.communicate(timeout=30))
            yield process, line.split()[3]
        finally:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()


@pytest.fixture(scope="module")
def two_workers(gallery):
    """A server of two processes, which several tests share; the last one ends it."""
    with serving(gallery, "--workers", "2") as found:
        yield found


def get(address, path):
    with urllib.request.urlopen(address + path, timeout=30) as response:
        return response.read().decode()


def workers_of(process):
    """The worker processes; multiprocessing also has a process that tracks resources."""
    found = []
    for one in psutil.Process(process.pid).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found += [one] if "spawn_main" in " ".join(one.cmdline()) else []
    return found


class Client(threading.Thread):
    """Asks one question after the other on one connection after the other, until the server refuses connections."""

    def __init__(self, port):
        super().__init__()
        self.port, self.answered, self.broken = port, 0, []

    def run(self):
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            except OSError:
                return
            with connection:
                while self._ask(connection):
                    pass

    def _ask(self, connection):
        received = b""
        with suppress(ConnectionError):
            connection.sendall(b"GET /api/query/item?id=item-3 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while b"\r\n\r\n" not in received:
                if not (more := connection.recv(65_536)):
                    break
                received += more
            head, _, body = received.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            while len(body) < int(fields.get(b"content-length", b"0")) and (more := connection.recv(65_536)):
                body += more
            if head:
                whole = head.startswith(b"HTTP/1.1 200") and json.loads(body)["query"]["item"]["id"] == "item-3"
                self.answered += whole
                self.broken += [] if whole else [received]
                return fields.get(b"connection") != b"close"
        self.broken += [received] if received else []
        return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_under_load_loses_no_answer(gallery, workers):
    with serving(gallery, "--workers", workers) as (process, address):
        clients = [Client(int(address.rsplit(":", 1)[1].strip("/"))) for _ in range(8)]
        for client in clients:
            client.start()
        assert until(lambda: all(client.answered >= 3 for client in clients))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        for client in clients:
            client.join(60)
    assert [client.broken for client in clients] == [[]] * 8
    assert process.returncode == 0
    assert errors == ""


def test_workers_answer_together(two_workers):
    process, address = two_workers
    assert len(workers_of(process)) == 2
    for _ in range(20):
        assert json.loads(get(address, "api/collection"))["items"] == 30
    # The other worker writes its numbers once a second.
    assert until(lambda: "aleator_workers 2" in get(address, "metrics"))
    assert until(lambda: 'path="/api/collection",status="200"} 20' in get(address, "metrics"))


def test_an_item_that_another_process_adds_is_known_to_every_worker(gallery, two_workers):
    _, address = two_workers
    with CredibleIndex.open(gallery) as index:
        index.add(VonMisesFisher(torch.eye(1, 4), 50.0), ["added"])
    try:

        def known():
            with suppress(urllib.error.HTTPError):
                return all("added" in get(address, "api/item?id=added") for _ in range(8))

        assert until(known)
    finally:
        with CredibleIndex.open(gallery) as index:
            index.remove(["added"])


def test_a_worker_that_dies_is_replaced_and_none_is_left_behind(two_workers):
    """Last of those that share the server: it is gone afterwards."""
    process, address = two_workers
    first, second = workers_of(process)
    first.kill()
    assert "item-3" in get(address, "api/item?id=item-3")  # by the other

    def replaced():
        now = workers_of(process)
        return len(now) == 2 and first.pid not in {one.pid for one in now}

    assert until(replaced)
    new = [one for one in workers_of(process) if one.pid != second.pid]
    os.kill(process.pid, signal.SIGKILL)  # the workers see it
    assert until(lambda: not any(one.is_running() and one.status() != "zombie" for one in [second, *new]))


def test_a_mistake_in_a_worker_is_one_line(tmp_path):
    arguments = [*COMMAND, str(tmp_path / "nowhere"), "--port", "0", "--workers", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "holds no index" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def _die(settings):
    os._exit(3)


def test_a_worker_that_dies_before_it_is_ready_is_an_error():
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(RuntimeError, match="died before it was ready"):
        run_workers(_die, None, listener, 1, announce=lambda items: None)


def _refuse(settings):
    raise ValueError("gallery: holds no index")


def test_why_another_worker_cannot_start_is_said(monkeypatch, capsys):
    monkeypatch.setattr(workers, "_PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = [workers._start(make_app, None, listener, 1) for make_app in (_refuse, _die)]
        for worker in running:
            worker.process.join()
        workers._replace_dead(running, lambda: "another")
    assert running == ["another"] * 2
    said = ("code 0: gallery: holds no index", "code 3")
    assert capsys.readouterr().err == "".join(f"a worker process ended with {one}; starting another\n" for one in said)
