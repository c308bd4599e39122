"""A server under hostile requests: what it answers, its memory, and how long honest clients wait beside a quiet run.

    python -m benchmarks.hostile_requests [requests] [seconds]

The script starts a server on 127.0.0.1. First honest clients are alone with it. Then hostile requests join them, spread
evenly over the seconds, beside 500 idle connections and 40 bodies that arrive a byte at a time. It stops by itself
when the seconds are over and all requests are sent, whichever is later, or after three times the seconds. The result
says how many requests there were and how long they took.

Hostile clients come from 127.0.0.2 (without the token) and from 127.0.0.3 (with it). Honest ones come from 127.0.0.1,
in a process of their own, so that their times are not those of the busy script.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

IDLE, SLOW, WORKERS = 500, 40, 48
PATIENCE = 3  # times the seconds, for a machine that is too slow
TOKEN = "a-token-of-the-benchmark"
OUTSIDER, INSIDER = "127.0.0.2", "127.0.0.3"
PIPELINED = 10
RESULT = Path("results/benchmarks/hostile_requests.json")


def main(requests: int = 100_000, seconds: float = 600.0, quiet: float = 45.0) -> None:
    """Run, print, and write the counts and the figure."""
    import psutil

    from aleator.foundation import describe_run, write_json

    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        server = start("serve", folder)
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            finish(start("honest", str(port), "3"))  # tables and code are loaded
            alone = finish(start("honest", str(port), str(quiet)))
            honest = start("honest", str(port), str(PATIENCE * seconds + 60), folder)
            attack = Attack(port, requests, seconds, psutil.Process(server.pid))
            asyncio.run(attack.run())
            (Path(folder) / "stop").touch()
            beside = finish(honest)
            alive = server.poll() is None
        finally:
            server.terminate()
            server.wait(30)
    unexpected = {status: n for status, n in attack.statuses.items() if status.startswith("5") and status != "503"}
    memory = [megabytes for _, megabytes in attack.memory]
    tenth = max(1, len(memory) // 10)
    result = {
        "provenance": describe_run(began, "cpu"),
        "hostile": {
            "requests": sum(attack.kinds.values()),
            "seconds": round(attack.took, 1),
            "kinds": dict(sorted(attack.kinds.items())),
            "statuses": dict(sorted(attack.statuses.items())),
            "5xx other than 503": unexpected,
            "idle connections": {"held at a time": IDLE, "opened": attack.idle_opened},
            "slow bodies": {"held at a time": SLOW, "opened": attack.slow_opened, "ended with": attack.slow_ended},
        },
        "server": {
            "alive at the end": alive,
            "memory in MB": {
                "start": memory[0],
                "mean of each tenth": [_mean(memory[i : i + tenth]) for i in range(0, tenth * 10, tenth)],
                "largest": max(memory),
            },
        },
        "honest": {"quiet": summary(alone), "under attack": summary(beside)},
    }
    write_json(RESULT, result)
    _draw(attack.memory, alone, beside, RESULT.with_suffix(".png"))
    print(json.dumps(result, indent=2))


class Attack:
    """Hostile requests of many kinds, and what came back."""

    def __init__(self, port: int, requests: int, seconds: float, server: Any):
        self.port, self.requests, self.seconds, self.server = port, requests, seconds, server
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.memory: list[tuple[float, float]] = []
        self.idle_opened = self.slow_opened = 0
        self.slow_ended: Counter[str] = Counter()
        self.took = 0.0

    async def run(self) -> None:
        self.began = time.monotonic()
        beside = [asyncio.create_task(self._idle(i)) for i in range(IDLE)]
        beside += [asyncio.create_task(self._slow()) for _ in range(SLOW)]
        beside.append(asyncio.create_task(self._watch()))
        workers = [asyncio.create_task(self._work(random.Random(number))) for number in range(WORKERS)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE * self.seconds):
                await asyncio.gather(*workers)
        self.took = time.monotonic() - self.began
        for task in [*beside, *workers]:
            task.cancel()
        await asyncio.gather(*beside, *workers, return_exceptions=True)

    async def _work(self, rng: random.Random) -> None:
        end = self.began + self.seconds
        while (sent := sum(self.kinds.values())) < self.requests or time.monotonic() < end:
            due = self.began + 0.97 * sent * self.seconds / self.requests
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            kind, address, content, answers = hostile_request(rng)
            self.kinds[kind] += answers
            for status in await self._send(address, content, answers):
                self.statuses[status] += 1

    async def _send(self, address: str, content: bytes, answers: int) -> list[str]:
        """Statuses of so many answers; 'closed' for each that did not come."""
        found: list[str] = []
        writer = None
        try:
            async with asyncio.timeout(40):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
                writer.write(content)
                with contextlib.suppress(ConnectionError):  # an answer may have come before the server closed
                    await writer.drain()
                if not content.endswith(b"GONE"):
                    for _ in range(answers):
                        found.append(await _read_answer(reader))
        except TimeoutError:
            found.append("no answer in 40 s")
        except (OSError, EOFError, ValueError):
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
        return found + ["closed"] * (answers - len(found))

    async def _idle(self, number: int) -> None:
        """A connection that sends nothing or part of a request, opened again whenever the server closes it."""
        while True:
            with contextlib.suppress(OSError):
                local = (OUTSIDER if number % 2 else INSIDER, 0)
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=local)
                self.idle_opened += 1
                try:
                    if number % 3 == 0:
                        writer.write(b"GET /api/items HTTP/1.1\r\nHost: x\r\n")
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(1.0)

    async def _slow(self) -> None:
        head = f"POST /api/query/posterior HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        while True:
            status, answer = "closed", None
            with contextlib.suppress(OSError, EOFError, ValueError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(INSIDER, 0))
                self.slow_opened += 1
                try:
                    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode())
                    answer = asyncio.ensure_future(asyncio.wait_for(_read_answer(reader), 60))
                    while not answer.done():
                        writer.write(b" ")
                        await asyncio.wait([answer], timeout=1.0)
                    status = answer.result()
                finally:
                    if answer is not None:
                        answer.cancel()
                    writer.transport.abort()
            self.slow_ended[status] += 1
            await asyncio.sleep(0.5)

    async def _watch(self) -> None:
        while True:
            used = self.server.memory_info().rss / 1e6
            self.memory.append((round(time.monotonic() - self.began, 1), round(used, 1)))
            await asyncio.sleep(1.0)


async def _read_answer(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return lines[0].split()[1].decode()


# ---- the requests

_NUMBERS = ["0", "-1", "1e400", "NaN", "Infinity", '"x"', "null", "99999999999999999999", "[]", "{}", "0.5", "true"]
_IDS = ["circle-0", "square-1", "../../etc/passwd", "%00", "%ff%fe", "%F0%9F%98%80", "'; DROP TABLE items; --"]
_IDS += ["a" * 3000]
_FIELDS = ("mu", "kappa", "text", "features", "p", "limit", "x")
_PATHS = ["/../../etc/passwd", "/static/..%2f..%2fpage.html", "/api", "/api/nothing", "//", "/%00", "/" + "a" * 5000]
_PATHS += ["*", "/api/openapi.json", "/static/page.js", "http://other/api/items", "/?token=" + "x" * 1000]


def hostile_request(rng: random.Random) -> tuple[str, str, bytes, int]:
    """A hostile request: its kind, the address it comes from, its bytes, and how many answers it asks for."""
    kind = rng.choice(list(_KINDS))
    content = _KINDS[kind](rng)
    outside = kind in ("wrong token", "no token")
    return kind, OUTSIDER if outside else INSIDER, content, PIPELINED if kind == "pipelined" else 1


def _request(method: str, path: str, body: bytes = b"", token: str | None = TOKEN, more: str = "") -> bytes:
    """A request; a path may have anything but spaces and line ends."""
    path = path.replace(" ", "+").encode("ascii", "replace").decode()
    authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}{length}{more}\r\n".encode() + body


def _json(rng: random.Random, body: bytes) -> bytes:
    path = rng.choice(["posterior", "text", "features"])
    return _request("POST", f"/api/query/{path}", body, more="Content-Type: application/json\r\n")


def _bad_json(rng: random.Random) -> bytes:
    broken = [b"{", b"[" * 5000, b'{"mu": ' * 3000, b"\xff\xfe{}", b"null", b'"', rng.randbytes(rng.randint(1, 400))]
    return _json(rng, rng.choice(broken))


def _odd_json(rng: random.Random) -> bytes:
    mu = "[" + ",".join(rng.choice(_NUMBERS) for _ in range(rng.choice([0, 1, 7, 8, 9, 1000]))) + "]"
    fields = [
        f'"{name}": {rng.choice([mu, *_NUMBERS])}' for name in ("mu", "kappa", "text", "features", "p", "limit", "x")
    ]
    return _json(rng, ("{" + ",".join(rng.sample(fields, rng.randint(1, 7))) + "}").encode())


def _odd_parameters(rng: random.Random) -> bytes:
    path = rng.choice(["/api/query/item", "/api/items", "/api/image", "/api/findings", "/api/collection"])
    names = ["id", "p", "limit", "offset", "by", "threshold", "size", "order", "kind", "filter"]
    query = "&".join(f"{name}={rng.choice([*_NUMBERS, *_IDS])}" for name in rng.sample(names, rng.randint(0, 6)))
    return _request("GET", f"{path}?{query}")


def _upload(rng: random.Random) -> bytes:
    good = bytearray(_image())
    for _ in range(rng.randint(1, 4)):
        good[rng.randrange(len(good))] = rng.randrange(256)
    body = rng.choice([bytes(good), bytes(good[: rng.randrange(1, len(good))]), rng.randbytes(5000), _bomb()])
    length = rng.choice(["", "", "", "Content-Length: 99999999999\r\n"])
    if length:  # more is announced than is accepted
        return _request("POST", "/api/query/image", more=length)
    return _request("POST", "/api/query/image", body, more="Content-Type: image/png\r\n")


def _huge_headers(rng: random.Random) -> bytes:
    return _request("GET", "/api/items", more=rng.choice(["x: " + "a" * 100_000 + "\r\n", "x: y\r\n" * 15_000]))


def _no_http(rng: random.Random) -> bytes:
    lines = [
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    return rng.choice([*lines, rng.randbytes(rng.randint(1, 500)) + b"\r\n\r\n"])


def _framing(rng: random.Random) -> bytes:
    """Lengths that are wrong or contradict each other, methods that do not exist."""
    chunked = "Transfer-Encoding: chunked\r\n"
    choices = [
        _request("POST", "/api/query/posterior", more=chunked) + b"zz\r\n{}\r\n0\r\n\r\n",
        _request("POST", "/api/query/posterior", more=chunked) + b"2\r\n{}\r\n0\r\n\r\n",
        _request("POST", "/api/query/posterior", b"{}\r\n", more=chunked),
        _request("POST", "/api/query/posterior", b"{}", more="Content-Length: 7\r\n"),
        _request("POST", "/api/query/posterior", more="Content-Length: -5\r\n"),
        _request("GET", "/api/items", more="Upgrade: websocket\r\nConnection: Upgrade\r\n"),
        _request(rng.choice(["DELETE", "PUT", "TRACE", "CONNECT", "FROB"]), "/api/items"),
    ]
    return rng.choice(choices)


def _gone(rng: random.Random) -> bytes:
    """The client leaves without reading the answer."""
    return _request("POST", "/api/query/posterior", more="Content-Length: 5000\r\n") + b"GONE"


_TOKENS = ["x", TOKEN[:-1], "\xe9" * 9, "a" * 5000]
_QUICK = ["/api/health", "/api/nothing", "/api/items?limit=x"]
_KINDS = {
    "wrong token": lambda rng: _request(
        "GET", "/api/items", token=rng.choice(["x", TOKEN[:-1], "\xe9" * 9, "a" * 5000])
    ),
    "no token": lambda rng: _request("GET", rng.choice(["/", "/api/items", "/api/collection"]), token=None),
    "bad JSON": _bad_json,
    "odd JSON": _odd_json,
    "odd parameters": _odd_parameters,
    "odd path": lambda rng: _request("GET", rng.choice(_PATHS)),
    "upload": _upload,
    "huge headers": _huge_headers,
    "not HTTP": _no_http,
    "framing": _framing,
    "gone": _gone,
    "pipelined": lambda rng: (
        _request("GET", rng.choice(["/api/health", "/api/nothing", "/api/items?limit=x"])) * PIPELINED
    ),
}


def _image() -> bytes:
    from tests.web.shapes import draw, png

    return png(draw("circle", (52, 110, 160), 2.0))


def _bomb() -> bytes:
    from tests.web.test_hostile import png_with

    return png_with(60_000, 60_000)


# ---- the server and the honest clients, each a process


def serve(folder: str) -> None:
    """Serve 2,000 images, with `aleator serve`'s own settings."""
    import socket

    from tests.web.shapes import image_run, shape_index

    from aleator.cli.serve import _run
    from aleator.web import create_app

    run = image_run()
    app = create_app(shape_index(Path(folder), run, count=2000), run=run, root=folder, token=TOKEN)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    _run(app, listener)


def honest(port: str, seconds: str, folder: str | None = None) -> None:
    """Four clients that ask sensible questions, five a second each; the seconds and status of each request."""
    print(json.dumps(asyncio.run(ask_honestly(int(port), float(seconds), folder))), flush=True)


async def ask_honestly(port: int, seconds: float, folder: str | None = None) -> list[tuple[float, float, str]]:
    """Requests of four clients until the seconds are over, or until the folder has a file `stop`."""
    import httpx2

    began = time.monotonic()
    seen: list[tuple[float, float, str]] = []

    async def client(number: int) -> None:
        rng = random.Random(number)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as session:
            while time.monotonic() < began + seconds and not (folder and (Path(folder) / "stop").exists()):
                id = f"circle-{3 * rng.randrange(600)}"
                path, parameters = rng.choice(
                    [
                        ("/api/query/item", {"id": id, "limit": "20"}),
                        ("/api/items", {"limit": "50"}),
                        ("/api/image", {"id": id, "size": "64"}),
                        ("/api/collection", {}),
                    ]
                )
                start = time.monotonic()
                status = "failed"
                for _ in range(2):  # as a browser does when a connection that it kept was closed
                    try:
                        status = str((await session.get(path, params=parameters)).status_code)
                        break
                    except httpx2.TransportError as error:
                        status = type(error).__name__
                took = time.monotonic() - start
                seen.append((round(start - began, 2), round(took, 5), status))
                await asyncio.sleep(max(0.0, 0.2 - took))

    await asyncio.gather(*(client(number) for number in range(4)))
    return seen


def start(part: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.hostile_requests", part, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[tuple[float, float, str]]:
    return [tuple(row) for row in json.loads(process.communicate(timeout=1200)[0])]  # type: ignore[misc]


def summary(seen: list[tuple[float, float, str]]) -> dict[str, Any]:
    times = sorted(took for _, took, _ in seen)
    ms = {name: round(1e3 * times[int(share * (len(times) - 1))], 1) for name, share in (("50 %", 0.5), ("99 %", 0.99))}
    statuses = dict(sorted(Counter(status for _, _, status in seen).items()))
    return {"requests": len(seen), "statuses": statuses, "milliseconds": {**ms, "largest": round(1e3 * times[-1], 1)}}


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 1) if values else 0.0


def _draw(memory: list[tuple[float, float]], alone: list[Any], beside: list[Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(*zip(*memory, strict=True), color="C0")
    left.set(xlabel="seconds", ylabel="memory of the server in MB", ylim=(0, None))
    for seen, name in ((alone, "quiet"), (beside, "under attack")):
        times = sorted(1e3 * took for _, took, _ in seen)
        right.plot(times, [(i + 1) / len(times) for i in range(len(times))], label=name)
    right.axhline(0.99, color="grey", linewidth=0.6)
    right.set(xscale="log", xlabel="milliseconds of an honest request", ylabel="share of requests")
    right.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["honest"]:
        honest(*sys.argv[2:])
    else:
        arguments = sys.argv[1:]
        main(*map(int, arguments[:1]), *map(float, arguments[1:]))
