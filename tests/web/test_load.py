"""A hundred clients at once for a minute, on loopback: 200 or 503, and memory that stays where it was."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter

import httpx2
import psutil
import pytest

from tests.web.shapes import draw, png
from tests.web.test_hostile import png_with

SERVER = """
import sys, socket
from pathlib import Path
from tests.web.shapes import image_run, shape_index
from aleator.web import create_app
from aleator.cli.serve import _run
root = Path(sys.argv[1])
run = image_run()
listener = socket.create_server(("127.0.0.1", 0), backlog=256)
app = create_app(shape_index(root, run, count=2000), run=run, root=root)
print(listener.getsockname()[1], flush=True)
_run(app, listener)
"""


@pytest.mark.slow
def test_a_hundred_clients_for_a_minute(tmp_path):
    seconds = float(os.environ.get("ALEATOR_LOAD_SECONDS", "60"))
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            seen, memory, slowest = asyncio.run(load(address, psutil.Process(process.pid), seconds))
        finally:
            process.terminate()
            process.wait(30)
    total = sum(seen.values())
    at_first, most = memory[0] // 2**20, max(memory) // 2**20
    third = len(memory) // 3
    means = [sum(part) // len(part) // 2**20 for part in (memory[:third], memory[third:-third], memory[-third:])]
    print(f"\n{total} requests in {seconds:.0f} s, by status {dict(sorted(seen.items()))}, slowest {slowest:.2f} s")
    print(f"memory in MB: {at_first} at first, {most} at most, {means} on average over each third")
    assert set(seen) <= {200, 404, 413, 415, 422, 503}
    assert seen[200] > 100
    # Bounded: the uploads and pictures under way, a decoded image for each worker, and the caches.
    assert most < at_first + 700
    assert means[2] < means[1] + 100  # no growth once it is busy


async def load(address: str, server: psutil.Process, seconds: float) -> tuple[Counter, list[int], float]:
    end = time.monotonic() + seconds
    seen: Counter = Counter()
    slowest = 0.0
    good = png(draw("circle", (52, 110, 160), 2.0))
    large = png(draw("square", (52, 110, 160), 0.1, side=4000))
    bodies = [good, good, good, large, png_with(60_000, 60_000), good[:300], b"x" * 2**20, b"no image"]
    ids = [f"{shape}-{i}" for i, shape in zip(range(90), ["circle", "square", "triangle"] * 30, strict=True)]

    memory = [0]

    def choose(rng: random.Random) -> tuple[str, str, dict]:
        id = rng.choice([*ids, "../../etc/passwd"])
        return rng.choice(
            [
                ("GET", "/api/items", {"params": {"order": "least-sure", "limit": 100}}),
                ("GET", "/api/image", {"params": {"id": id, "size": rng.choice([16, 64, 320])}}),
                ("GET", "/api/query/item", {"params": {"id": id, "limit": 200, "p": rng.choice([0.5, 0.99])}}),
                ("GET", "/api/query/item", {"params": {"id": id, "by": "match", "threshold": 0.05}}),
                ("POST", "/api/query/image", {"content": rng.choice(bodies)}),
                ("GET", "/api/collection", {}),
                ("GET", "/", {}),
            ]
        )

    async def one_client(client: httpx2.AsyncClient, number: int) -> None:
        nonlocal slowest
        rng = random.Random(number)
        while time.monotonic() < end:
            method, path, content = choose(rng)
            start = time.monotonic()
            response = await client.request(method, path, **content)
            slowest = max(slowest, time.monotonic() - start)
            seen[response.status_code] += 1
            if number % 10 == 0:
                memory.append(server.memory_info().rss)

    limits = httpx2.Limits(max_connections=100)
    async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        for id in ids[:3]:  # warm: code and tables are loaded
            await client.get("/api/query/item", params={"id": id})
        memory[0] = server.memory_info().rss
        await asyncio.gather(*(one_client(client, number) for number in range(100)))
    return seen, memory, slowest
