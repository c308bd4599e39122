"""A server whose answers are not read: its memory, and how long honest clients wait before, meanwhile and afterwards.

    python -m benchmarks.unread_connections [seconds]

For so many seconds 500 clients ask and do not read: 50 have no token and send 800 requests in a row, which fills the
buffers with refusals; 250 ask 40 times for a script of the page, and 200 for a picture of 20 MB. A client whose
connection is closed opens another five seconds later. The server and the honest clients are those of
`benchmarks.hostile_requests`. All runs on loopback.
"""

import asyncio
import contextlib
import json
import select
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hostile_requests import INSIDER, OUTSIDER, TOKEN, ask_honestly, start, summary

CLIENTS, SIDE, PAUSE = 500, 2600, 5.0
AROUND = 15.0  # seconds with honest clients alone, before and after
RESULT = Path("results/benchmarks/unread-connections.json")


def main(seconds: float = 60.0) -> None:
    """Run, print, and write the numbers and the figure."""
    import psutil
    from PIL import Image

    from aleator.foundation import describe_run, write_json

    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        server = start("serve", folder)
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            Image.effect_noise((SIDE, SIDE), 50).convert("RGB").save(Path(folder) / "square" / "1.png", "BMP")
            asyncio.run(ask_honestly(port, 3.0))  # tables and code are loaded
            with ThreadPoolExecutor() as thread:
                honest = thread.submit(asyncio.run, ask_honestly(port, seconds + 2 * AROUND))
                attack = Unread(port, psutil.Process(server.pid))
                asyncio.run(attack.run(seconds))
                seen = honest.result()
            alive = server.poll() is None
        finally:
            server.terminate()
            server.wait(60)
    ends = AROUND, AROUND + seconds
    spans = {"before": (0.0, ends[0]), "meanwhile": ends, "afterwards": (ends[1], ends[1] + AROUND)}
    result = {
        "provenance": describe_run(began, "cpu"),
        "unread": {
            "clients": CLIENTS,
            "seconds": seconds,
            "bytes of the picture": 3 * SIDE**2,
            "connections opened": attack.opened,
            "closed by the server": attack.closed,
        },
        "server": {
            "alive at the end": alive,
            "largest memory in MB": {
                name: max(used for at, used in attack.memory if since <= at < until)
                for name, (since, until) in spans.items()
            },
        },
        "honest": {
            name: summary([row for row in seen if since <= row[0] < until]) for name, (since, until) in spans.items()
        },
    }
    write_json(RESULT, result)
    _draw(attack.memory, seen, ends, RESULT.with_suffix(".png"))
    print(json.dumps(result, indent=2))


class Unread:
    """Connections that ask and do not read, and the memory of the server meanwhile."""

    def __init__(self, port: int, server: Any):
        self.port, self.server = port, server
        self.memory: list[tuple[float, float]] = []
        self.opened = self.closed = 0

    async def run(self, seconds: float) -> None:
        self.began = time.monotonic()
        watch = asyncio.create_task(self._watch())
        await asyncio.sleep(AROUND)
        deaf = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]
        await asyncio.sleep(seconds)
        for task in deaf:
            task.cancel()
        await asyncio.gather(*deaf, return_exceptions=True)
        await asyncio.sleep(AROUND)
        watch.cancel()

    async def _ask(self, number: int) -> None:
        """A connection whose other end is never read, opened again whenever the server closes it."""
        loop = asyncio.get_running_loop()
        path, times = ("/static/page.js", 40) if number % 2 else ("/api/image?id=square-1", 1)
        token, address = f"Authorization: Bearer {TOKEN}\r\n", INSIDER
        if number % 10 == 0:
            path, times, token, address = "/api/nothing", 800, "", OUTSIDER
        content = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{token}\r\n".encode() * times
        while True:
            with contextlib.suppress(OSError), socket.socket() as deaf:
                deaf.setblocking(False)
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.bind((address, 0))
                await loop.sock_connect(deaf, ("127.0.0.1", self.port))
                self.opened += 1
                await loop.sock_sendall(deaf, content)
                while not _closed(deaf):
                    await asyncio.sleep(1.0)
            self.closed += 1
            await asyncio.sleep(PAUSE)

    async def _watch(self) -> None:
        while True:
            used = self.server.memory_info().rss / 1e6
            self.memory.append((round(time.monotonic() - self.began, 1), round(used, 1)))
            await asyncio.sleep(0.5)


def _closed(connection: socket.socket) -> bool:
    """Whether the other end was closed or reset, without reading."""
    ended = select.poll()
    ended.register(connection, select.POLLRDHUP)
    return bool(ended.poll(0))


def _draw(memory: list[tuple[float, float]], seen: list[Any], ends: tuple[float, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.5), sharex=True, layout="constrained")
    above.plot(*zip(*memory, strict=True), color="C0")
    above.set(ylabel="memory of\nthe server in MB", ylim=(0, None))
    for name, marker, colour, good in (("answered", ".", "C0", True), ("not answered with 200", "x", "C3", False)):
        rows = [(at, 1e3 * took) for at, took, status in seen if (status == "200") is good]
        if rows:
            below.plot(*zip(*rows, strict=True), marker, color=colour, markersize=3, label=name)
    below.set(yscale="log", xlabel="seconds", ylabel="milliseconds of\nan honest request")
    below.legend(loc="upper right")
    for panel in (above, below):
        panel.axvspan(*ends, color="0.92", zorder=0)
    above.text(
        sum(ends) / 2,
        0.05,
        f"{CLIENTS} clients do not read",
        ha="center",
        transform=above.get_xaxis_transform(),
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
