"""Several worker processes behind one port. A worker that dies is replaced; all stop together."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from aleator.foundation import visible
from aleator.retrieval import CredibleIndex
from aleator.web.stopping import run_server, terminated_like_interrupted

_CONTEXT = multiprocessing.get_context("spawn")  # a copy of a process with threads and open databases would not work
_SHORTEST_LIFE = 10.0  # seconds; a worker that dies sooner is replaced after a pause
_PAUSE = 5.0

# Makes the application and opens its index. It is called in each worker, with settings that can be sent there.
MakeApp = Callable[[Any], tuple[Any, CredibleIndex]]


@dataclass
class _Worker:
    process: SpawnProcess
    line: Connection
    since: float


def run_workers(
    make_app: MakeApp, settings: Any, listener: socket.socket, count: int, announce: Callable[[int], None]
) -> None:
    """Run worker processes until SIGTERM or SIGINT.

    Args:
        make_app: A function of a module. It makes the application in each worker.
        settings: What it takes.
        listener: A socket that listens. Workers share it.
        count: Number of workers.
        announce: Called with the number of items when all workers are ready.

    Raises:
        ValueError: If an application cannot be made.
        RuntimeError: If a worker dies before it is ready.
    """
    workers: list[_Worker] = []
    try:
        with terminated_like_interrupted(), contextlib.suppress(KeyboardInterrupt):
            workers = [_start(make_app, settings, listener, count) for _ in range(count)]
            items = [_wait_until_ready(worker) for worker in workers]
            announce(items[0])
            while True:
                _replace_dead(workers, lambda: _start(make_app, settings, listener, count))
    finally:
        listener.close()
        _stop(workers)


def _start(make_app: MakeApp, settings: Any, listener: socket.socket, count: int) -> _Worker:
    line, other_end = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_work, args=(make_app, settings, listener, other_end, count))
    process.start()
    other_end.close()
    return _Worker(process, line, time.monotonic())


def _wait_until_ready(worker: _Worker) -> int:
    try:
        message = worker.line.recv()
    except (EOFError, ConnectionError):
        raise RuntimeError("a worker process died before it was ready; its output says why") from None
    if isinstance(message, str):
        raise ValueError(message)
    return message


def _replace_dead(workers: list[_Worker], start: Callable[[], _Worker]) -> None:
    """Wait until a worker dies, and start another."""
    wait([worker.process.sentinel for worker in workers])
    for number, worker in enumerate(workers):
        if not worker.process.is_alive():
            reason = _reason(worker)
            worker.line.close()
            ended = f"a worker process ended with code {worker.process.exitcode}"
            print(visible(f"{ended}{reason and f': {reason}'}; starting another"), file=sys.stderr)
            if time.monotonic() - worker.since < _SHORTEST_LIFE:
                time.sleep(_PAUSE)
            workers[number] = start()


def _reason(worker: _Worker) -> str:
    """Why a dead worker could not start, as it said; empty if it had started, or died without a word."""
    try:
        message = worker.line.recv() if worker.line.poll() else ""
    except (EOFError, ConnectionError):
        return ""
    return message if isinstance(message, str) else ""


def _stop(workers: list[_Worker]) -> None:
    """Ask all workers to stop, and wait until they have answered what is under way."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for worker in workers:
            worker.line.close()  # a worker that is alone stops
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(make_app: MakeApp, settings: Any, listener: socket.socket, line: Connection, count: int) -> None:
    """What a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one tells the others
    stopped = threading.Event()
    with terminated_like_interrupted(), contextlib.suppress(KeyboardInterrupt):
        _share_cores(count)
        try:
            app, index = make_app(settings)
        except (ValueError, OSError) as problem:
            line.send(str(problem))
            return
        line.send(len(index))
        threading.Thread(target=_wait_for_end, args=(line, stopped), daemon=True).start()
        with index:
            run_server(app, listener, stopped)


def _wait_for_end(line: Connection, stopped: threading.Event) -> None:
    """Stop if the first process is gone, even if it was killed."""
    with contextlib.suppress(EOFError, OSError):
        line.recv()
    stopped.set()


def _share_cores(count: int) -> None:
    """Threads of numerical libraries: the cores, divided among the workers."""
    import faiss
    import torch

    threads = max(1, len(os.sched_getaffinity(0)) // count) if hasattr(os, "sched_getaffinity") else 1
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    faiss.omp_set_num_threads(torch.get_num_threads())
