"""Start jobs in other processes, and kill them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.retrieval import worker

PATIENCE = 180.0  # on a busy machine, a program that imports torch needs a minute to start


class Workers:
    """Starts jobs in other processes: see worker.py."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        script = Path(worker.__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, location, steps, report: Path) -> int:
        job = {"location": str(location), "steps": steps, "report": str(report)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline().split()[1])
        wait_until(report.exists)
        return pid

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(PATIENCE)


def read(report: Path) -> list[str]:
    return report.read_text().splitlines() if report.exists() else []


def wait_until(condition, patience=PATIENCE):
    """Look often at first, and then more seldom: looking takes time from the processes that are waited for."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < patience, "waited too long"
        time.sleep(min(0.001 + waited / 100, 0.05))


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_within(pid: int, seconds: float) -> None:
    """Kill a process after some seconds, unless it ends before."""
    moment = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= moment or is_over(pid))
    kill(pid)


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_over, pids)))
