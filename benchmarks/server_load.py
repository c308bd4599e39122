"""200 clients ask `aleator serve` for a minute: questions per second, waiting times, beside an earlier commit.

    python -m benchmarks.server_load [--seconds 60] [--clients 200] [--workers 2] [--baseline 89a9689]

Servers and clients share the cores of this machine. Each server is a fresh `aleator serve` on one folder of 20,000
items with a model of features; the clients are one process of plain sockets. Every client asks one question after the
other: about an item, a posterior or features of its own. A client that gets 503 waits the seconds of Retry-After. The
server of the earlier commit comes first, then the present one.

Afterwards the present server is asked about an item that another process adds, and it gets SIGTERM under load.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

ITEMS, DIM, FEATURES = 20_000, 16, 32
RESULT = Path("results/benchmarks/server_load.json")
SOURCE = Path(__file__).parent.parent / "src"


def main(seconds: float = 60.0, clients: int = 200, workers: int = 2, baseline: str | None = "89a9689") -> None:
    """Run, print, and write the result."""
    from aleator.foundation import describe_run, write_json

    began = time.time()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_collection(folder)
        ways: dict[str, tuple[Path, list[str]]] = {}
        if baseline:
            ways[f"commit {baseline}"] = (_source_of(baseline, folder), [])
        ways["one worker"] = (SOURCE, ["--workers", "1"])
        if workers > 1:
            ways[f"{workers} workers"] = (SOURCE, ["--workers", str(workers)])
        measured = {}
        for name, (source, options) in ways.items():
            with server(folder, source, options) as (_, port):
                asyncio.run(ask_for(port, 3.0, 8))  # code and tables are loaded
                measured[name] = summary(asyncio.run(ask_for(port, seconds, clients)), seconds)
            measured[name]["load average afterwards"] = round(os.getloadavg()[0], 1)
            print(name, json.dumps(measured[name]), flush=True)
        options = ["--workers", str(workers)]
        with server(folder, SOURCE, options) as (_, port):
            asyncio.run(ask_for(port, 3.0, 8))
            added = found_after(folder, port)
        print("added", added, flush=True)
        stopped = stop_under_load(folder, options, clients)
    first = measured[next(iter(ways))]["questions per second"]
    result = {
        "provenance": describe_run(began, "cpu"),
        "load average before": round(load, 2),
        "collection": {"items": ITEMS, "dimensions": DIM, "features": FEATURES},
        "clients": clients,
        "seconds": seconds,
        "servers": measured,
        "questions per second beside the first": {
            name: round(one["questions per second"] / first, 2) for name, one in measured.items()
        },
        "an added item": added,
        "SIGTERM under load": stopped,
    }
    write_json(RESULT, result)
    print(json.dumps(result, indent=2))


# ---- the servers


def make_collection(folder: Path) -> None:
    """An index of labelled items, and a run folder of a model of features."""
    import torch

    import aleator as al
    from aleator.data import Inputs
    from aleator.encoders import MLP

    torch.manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(ITEMS, DIM), dim=-1)
    q = al.VonMisesFisher(mu, torch.empty(ITEMS).uniform_(20, 500))
    encoder = al.Encoder(MLP(FEATURES, [64]), DIM, kappa="norm")
    encoder.set_kappa_range(torch.randn(256, FEATURES), (50.0, 300.0))
    fingerprint = encoder.save(folder / "run" / "encoder")
    (folder / "run" / "inputs.json").write_text(json.dumps(Inputs("features", features=FEATURES).to_dict()))
    (folder / "run" / "config.json").write_text(json.dumps({"match": {"kappa_pos": 20.0, "prior": 0.5}}))
    (folder / "run" / "metrics.json").write_text("{}")
    ids = [f"item-{i}" for i in range(ITEMS)]
    metadata = [{"label": f"label {i % 20}"} for i in range(ITEMS)]
    place = {"location": folder / "index", "fingerprint": fingerprint}
    al.CredibleIndex.build(q, ids, metadata, **place).close()  # type: ignore[arg-type]


def _source_of(commit: str, folder: Path) -> Path:
    """The sources of a commit, in a folder of their own."""
    target = folder / "baseline"
    target.mkdir()
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=SOURCE.parent, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target / "src"


@contextlib.contextmanager
def server(folder: Path, source: Path, options: list[str]) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A process of `aleator serve`, and its port."""
    command = [sys.executable, "-m", "aleator", "serve", str(folder / "index"), "--model", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, int(line.split("127.0.0.1:")[1].split("/")[0])
        finally:
            process.terminate()
            process.wait(60)


# ---- the clients


class Asked:
    """What one run of clients saw: statuses, seconds of the answers with 200, and how connections ended."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.took: list[float] = []
        self.ended: Counter[str] = Counter()
        self.broken = 0  # answers that stopped in the middle
        self.unanswered = 0  # requests that were sent before the signal on an open connection, without an answer
        self.signal_at = math.inf


async def ask_for(port: int, seconds: float, clients: int, asked: Asked | None = None) -> Asked:
    """Ask with so many clients at once until the seconds are over, or the server refuses connections."""
    asked = Asked() if asked is None else asked
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(port, end, random.Random(number), asked) for number in range(clients)))
    return asked


async def _client(port: int, end: float, rng: random.Random, asked: Asked) -> None:
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            asked.ended["refused"] += 1
            return
        try:
            while time.monotonic() < end and await _ask(reader, writer, rng, asked):
                pass
        finally:
            writer.transport.abort()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random, asked: Asked) -> bool:
    """Ask one question; whether the connection can be used again."""
    start, head = time.monotonic(), b""
    try:
        writer.write(question(rng))
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        if b"content-length" in fields:
            await reader.readexactly(int(fields[b"content-length"]))
        else:
            await reader.read()
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        begun = bool(head) or bool(getattr(error, "partial", b""))
        asked.broken += begun
        asked.unanswered += not begun and start < asked.signal_at - 0.1  # later ones may not have been read
        asked.ended["in an answer" if begun else "without an answer"] += 1
        return False
    status = head.split(b" ", 2)[1].decode()
    asked.statuses[status] += 1
    if status == "200":
        asked.took.append(time.monotonic() - start)
    elif status == "503":
        await asyncio.sleep(float(fields.get(b"retry-after", b"1")))
    return fields.get(b"connection") != b"close"


def question(rng: random.Random) -> bytes:
    """A question: about an item (half of them), a posterior or features."""
    how = rng.choice(["by=credible&p=0.9", "by=match", "by=nearest"]) + "&limit=20"
    kind = rng.randrange(4)
    if kind < 2:
        key = quote(json.dumps(f"item-{rng.randrange(ITEMS)}"))
        return f"GET /api/query/item?id={key}&{how} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    numbers = [rng.gauss(0, 1) for _ in range(DIM if kind == 2 else FEATURES)]
    if kind == 2:
        norm = math.hypot(*numbers)
        path, content = "posterior", {"mu": [x / norm for x in numbers], "kappa": rng.uniform(20, 500)}
    else:
        path, content = "features", {"features": numbers}
    body = json.dumps(content).encode()
    head = f"POST /api/query/{path}?{how} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def summary(asked: Asked, seconds: float) -> dict[str, Any]:
    """Counts, questions per second, and percentiles of the seconds of answered questions."""
    took = sorted(asked.took)
    shares = {"50 %": 0.5, "95 %": 0.95, "99 %": 0.99, "largest": 1.0}
    return {
        "questions per second": round(len(took) / seconds, 1),
        "milliseconds": {name: round(1e3 * took[int(share * (len(took) - 1))], 1) for name, share in shares.items()},
        "statuses": dict(sorted(asked.statuses.items())),
        "connections that ended": dict(sorted(asked.ended.items())),
    }


# ---- an item that is added, and the end


_ADD = """
import sys, torch, aleator as al
with al.CredibleIndex.open(sys.argv[1]) as index:
    index.add(al.VonMisesFisher(torch.eye(1, index.dim), 100.0), ["added while it is served"], [{"label": "new"}])
"""


def found_after(folder: Path, port: int, patience: float = 30.0) -> dict[str, float]:
    """Add an item in another process, and look for it until each of ten connections finds it; then ask about it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", _ADD, str(folder / "index")], env=environment, check=True)
    added = time.monotonic()

    async def statuses(path: str, times: int) -> set[bytes]:
        found = set()
        for _ in range(times):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            address = f"{path}?id={quote(json.dumps('added while it is served'))}"
            writer.write(f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            found.add((await reader.read()).split(b" ", 2)[1])
            writer.close()
        return found

    while (seen := asyncio.run(statuses("/api/item", 10))) != {b"200"}:
        if time.monotonic() > added + patience:
            raise RuntimeError(f"the added item is not known after {patience} s: {seen}")
        time.sleep(0.05)
    known = time.monotonic() - added
    assert asyncio.run(statuses("/api/query/item", 1)) == {b"200"}
    answered = time.monotonic() - added
    return {
        "seconds until every worker lists it": round(known, 2),
        "seconds until asked and answered": round(answered, 2),
    }


def stop_under_load(folder: Path, options: list[str], clients: int, after: float = 5.0) -> dict[str, Any]:
    """Send SIGTERM while clients ask, and count what they saw."""
    asked = Asked()
    with server(folder, SOURCE, options) as (process, port):
        asyncio.run(ask_for(port, 3.0, 8))  # code and tables are loaded

        async def run() -> float:
            asking = asyncio.create_task(ask_for(port, 60.0, clients, asked))
            await asyncio.sleep(after)
            asked.signal_at = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await asking
            return time.monotonic() - asked.signal_at

        took = asyncio.run(run())
        code = process.wait(60)
    return {
        "answered": dict(sorted(asked.statuses.items())),
        "answers that stopped in the middle": asked.broken,
        "asked before the signal and not answered": asked.unanswered,
        "connections that ended": dict(sorted(asked.ended.items())),
        "seconds until the last answer": round(took, 2),
        "exit code": code,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--baseline", default="89a9689")
    main(**vars(parser.parse_args()))
