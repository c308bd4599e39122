"""Clients that wait, drip, shout or do not read keep nobody out; an index that changes under a server is reported."""

import asyncio
import contextlib
import select
import shutil
import socket
import threading
import time
from unittest.mock import Mock

import httpx2
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image
from uvicorn.server import ServerState

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import create_app
from aleator.web.connections import PatientProtocol, StoppableState


class Hasty(PatientProtocol):
    header_seconds = 0.4
    write_seconds = 0.2
    crowd = 20


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """A real server that waits 0.4 seconds for headers, 0.2 for readers, and makes room from 20 connections on."""
    root = tmp_path_factory.mktemp("pictures")
    Image.new("RGB", (3000, 1000)).save(root / "large.bmp")  # 9 MB: more than the system's buffers
    q = VonMisesFisher(torch.eye(3), 5.0)
    index = CredibleIndex.build(q, ["x", "y", "z"], [{"path": "large.bmp"}, {}, {}])
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(index, root=root),
        http=Hasty,
        log_level="error",
        limit_concurrency=40,
        h11_max_incomplete_event_size=32_768,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)


def honest(port):
    return httpx2.get(f"http://127.0.0.1:{port}/api/items", timeout=5).status_code


def closed(connection, seconds=3.0):
    """Whether the server closes a connection."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_idle_connections_make_room(port):
    with contextlib.ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        assert [honest(port) for _ in range(5)] == [200] * 5
        assert closed(idle[0])


def test_many_connections_in_one_turn_of_the_loop_do_not_count_once_they_made_room():
    """Otherwise a request that arrives in the same turn is answered with 503."""

    async def connect_many():
        config = uvicorn.Config(create_app(CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))), http=Hasty)
        config.load()
        state = ServerState()
        protocols = [Hasty(config, state, {}) for _ in range(100)]
        for one in protocols:
            one.connection_made(Mock(is_closing=lambda: False, get_extra_info=lambda name: Mock(family=None)))
        waiting = len(state.connections)
        for one in protocols:
            one.connection_lost(None)
        return waiting

    assert asyncio.run(connect_many()) == Hasty.crowd


@pytest.mark.parametrize("asks", [True, False])
def test_a_connection_that_is_made_while_the_server_stops_has_one_answer_and_ends(asks):
    """Uvicorn does not tell it. Its client would go on asking until the time for answers is over, and get a 500."""

    async def connect_late():
        config = uvicorn.Config(
            create_app(CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))), lifespan="off", log_level="error"
        )
        config.load()
        state = StoppableState()
        state.stopping = True
        sent, ended = [], asyncio.Event()
        transport = Mock(is_closing=ended.is_set, close=ended.set, write=sent.append)
        transport.get_extra_info = lambda name: Mock(family=None)
        late = PatientProtocol(config, state, {})
        late.connection_made(transport)
        if asks:
            late.data_received(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 10)
        late.connection_lost(None)
        return b"".join(sent)

    answer = asyncio.run(connect_late())
    assert answer.startswith(b"HTTP/1.1 200 OK") if asks else answer == b""


def test_headers_that_drip_are_not_waited_for(port):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /api/items HTTP/1.1\r\n")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(40):
                slow.sendall(b"x: y\r\n")
                time.sleep(0.05)
                if time.monotonic() - began > 1.0:
                    break
        assert closed(slow)
    assert honest(port) == 200


def test_a_second_request_that_drips_is_not_waited_for_either(port):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in slow.recv(4096)
        slow.sendall(b"GET /api/hea")
        assert closed(slow)


def test_pipelined_requests_are_all_answered(port):
    with socket.create_connection(("127.0.0.1", port)) as many:
        many.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50)
        many.settimeout(5)
        received = b""
        while received.count(b"HTTP/1.1 200") < 50:
            received += many.recv(65_536)


@pytest.mark.parametrize(
    "headers", [b"x: " + b"a" * 3_000_000, b"x: y\r\n" * 500_000, b"\0: \xff", b"Content-Length: -5"]
)
def test_headers_that_are_too_large_or_none(port, headers):
    with socket.create_connection(("127.0.0.1", port)) as loud:
        with contextlib.suppress(OSError):
            loud.sendall(b"GET /api/items HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n\r\n")
        loud.settimeout(3)
        with contextlib.suppress(OSError):
            first = loud.recv(100)
            assert not first or first.split()[1].startswith(b"4")
    assert honest(port) == 200


# ---- answers that are not read


def protocols(count, kind=PatientProtocol, **attributes):
    """Connections of one server, with transports that only note what is done to them."""
    config = uvicorn.Config(create_app(CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))), http=kind)
    config.load()
    state = ServerState()
    made = [kind(config, state, {}) for _ in range(count)]
    for one in made:
        vars(one).update(attributes)
        one.connection_made(Mock(is_closing=lambda: False, get_extra_info=lambda name: Mock(family=None)))
    return made


@pytest.mark.parametrize("ask", [b"GET /static/page.js", b"GET /api/image?id=x"])
def test_an_answer_that_is_not_read_is_given_up(port, ask):
    """The connection is reset, so that neither the server nor the system keeps what was not read."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        deaf.sendall((ask + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") * 200)
        reset = select.poll()
        reset.register(deaf, 0)  # errors and hanging up are always reported
        assert reset.poll(5000), "the server keeps a connection that does not read"
    assert honest(port) == 200


def test_a_client_that_reads_slowly_has_its_answer():
    """Progress counts, not the time of the whole answer. The last two looks find nothing read."""

    async def read():
        (slow,) = protocols(1, write_seconds=0.0)
        left = [900_000, 800_000, 700_000, 600_000, 600_000]
        given_up = asyncio.Event()
        slow.transport.get_write_buffer_size = lambda: left.pop(0) if len(left) > 1 else left[0]
        slow.transport.abort = given_up.set
        slow.pause_writing()
        await asyncio.wait_for(given_up.wait(), 10)
        slow.connection_lost(None)
        return left

    assert asyncio.run(read()) == [600_000]


def test_answers_that_wait_to_be_read_make_room_for_others():
    """Otherwise they would take all the requests that a server answers at a time, until their deadline."""

    async def stop_reading():
        many = protocols(8, most_unread=3)
        for one in many[:2] + many[3:]:
            one.transport.get_write_buffer_size = lambda: 10**6
            one.pause_writing()
        many[3].resume_writing()  # it was given up, which has no effect; the last one reads again
        many[7].resume_writing()
        given_up = [one.transport.abort.called for one in many]
        for one in many:
            one.connection_lost(None)
        return given_up

    assert asyncio.run(stop_reading()) == [True, True, False, True, True, False, False, False]


def test_a_large_picture_is_read_from_the_disk_as_it_is_sent(tmp_path):
    Image.new("RGB", (1000, 1000)).save(tmp_path / "large.bmp")
    index = CredibleIndex.build(VonMisesFisher(torch.eye(1, 3), 5.0), ["x"], [{"path": "large.bmp"}])
    sent, coming = [], [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        return coming.pop() if coming else await asyncio.get_running_loop().create_future()

    async def send(message):
        sent.append(message.get("body", b""))

    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/api/image", "query_string": b"id=x"}
    asyncio.run(create_app(index, root=tmp_path)({**scope, "headers": []}, receive, send))
    assert b"".join(sent) == (tmp_path / "large.bmp").read_bytes()
    assert max(map(len, sent)) <= 2**18


# ---- the index under the server


@pytest.fixture
def served(tmp_path):
    q = VonMisesFisher(torch.eye(4), 5.0)
    CredibleIndex.build(q, ["a", "b", "c", "d"], location=tmp_path / "index").close()
    with CredibleIndex.open(tmp_path / "index") as index:
        yield TestClient(create_app(index)), tmp_path / "index"


def ask(client):
    return client.get("/api/query/item", params={"id": "a"})


def test_an_index_that_changes_is_searched_as_it_is_now(served):
    client, folder = served
    with CredibleIndex.open(folder) as other:
        other.add(VonMisesFisher(torch.eye(1, 4), 5.0), ["new"])
        other.remove(["b"])
    ids = {hit["id"] for hit in ask(client).json()["hits"]}
    assert "new" in ids
    assert "b" not in ids


def test_an_index_that_is_removed_or_replaced_is_503(served):
    client, folder = served
    assert ask(client).status_code == 200
    other = VonMisesFisher(torch.eye(6), 5.0)
    CredibleIndex.build(other, location=folder, replace=True).close()  # another dimension, in the same file
    gone = ask(client)
    assert gone.status_code == 503, gone.text
    assert "replaced while the server runs" in gone.json()["detail"]
    shutil.rmtree(folder)
    gone = ask(client)
    assert gone.status_code == 503, gone.text
    assert str(folder) not in gone.text
    assert client.get("/api/health").status_code == 200


def test_an_index_that_is_damaged_under_the_server_is_503_and_logged(served, caplog):
    import sqlite3

    client, folder = served
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    with ledger:
        ledger.execute("UPDATE items SET note = '{\"label\": 1}'")
    ledger.close()
    answer = ask(client)
    assert answer.status_code == 503, answer.text
    assert "the index is damaged" in answer.json()["detail"]
    assert str(folder) not in answer.text
    assert str(folder) in caplog.text
