"""Start work in forks of this process, kill them, and read what they reported."""

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def fork(work: Callable[[], Any], report: Path) -> int:
    """Do the work in another process. What it returns is written as JSON to the report; an error as {"error": ...}."""
    report.unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        return pid
    try:
        answer = work()
    except BaseException:
        answer = {"error": traceback.format_exc()[-1500:]}
    with contextlib.suppress(BaseException):
        report.write_text(json.dumps(answer))
    os._exit(0)


def kill_after(pid: int, seconds: float) -> bool:
    """Kill a process after some seconds, unless it ends before; whether it was killed."""
    moment = time.monotonic() + seconds
    while time.monotonic() < moment:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(min(0.002, max(0.0, moment - time.monotonic())))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def kill_in_call(pid: int, report: "Report", number: int, seconds: float) -> bool:
    """Kill a process some seconds after it began its call of this number, unless it ends before."""
    while report.count("begin") <= number:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    return kill_after(pid, seconds)


def finish(work: Callable[[], Any], report: Path) -> tuple[Any, float]:
    """What undisturbed work returns, and its seconds."""
    began = time.monotonic()
    os.waitpid(fork(work, report), 0)
    errors = errors_in(report)
    if errors:
        raise RuntimeError(errors[0])
    return json.loads(report.read_text()), time.monotonic() - began


def errors_in(report: Path) -> list[str]:
    """The error with which work ended that nobody killed, if there is one."""
    if not report.exists():
        return ["the process ended without a report"]
    answer = json.loads(report.read_text())
    return [answer["error"]] if isinstance(answer, dict) and "error" in answer else []


class Report:
    """Lines that a process wrote before it was killed."""

    def __init__(self, path: Path):
        self.path = path
        path.unlink(missing_ok=True)

    def open(self) -> Callable[[str], None]:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return lambda line: void(os.write(file, f"{line}\n".encode()))

    def count(self, word: str) -> int:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sum(line.split()[0] == word for line in lines)

    def last(self, word: str) -> int:
        """The largest number behind a word; 0 if there is none."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return max((int(line.split()[1]) for line in lines if line.split()[0] == word), default=0)


def void(_: object) -> None:
    return None
