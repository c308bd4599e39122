"""Calls that change a disk, counted: at one of them the disk fails, or the process dies.

Calls of Python are counted: opened files, writing, syncing, renaming, cutting, making and removing. What SQLite, faiss
and safetensors write in C is not among them.
"""

import builtins
import contextlib
import errno
import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CALLS = ("fsync", "replace", "rename", "write", "truncate", "unlink", "mkdir", "rmdir")


class FaultyFile:
    """A file of which one write may be the counted call. Half of what was to be written is then in the file."""

    def __init__(self, file: Any, count: Callable[[], bool], fault: Callable[[], None]):
        self._file, self._count, self._fault = file, count, fault

    def write(self, data: Any) -> int:
        if self._count():
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._fault()
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "FaultyFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextlib.contextmanager
def fault_at(number: int, fault: Callable[[], None]) -> Iterator[list[int]]:
    """Call `fault` in place of the call of this number. Yields how many there were."""
    seen = [0]

    def count() -> bool:
        seen[0] += 1
        return seen[0] == number

    def wrap(original: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            if count():
                fault()
            return original(*arguments, **options)

        return call

    opened = io.open

    def open_faulty(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        found = opened(file, mode, *arguments, **options)
        return FaultyFile(found, count, fault) if set(mode) & set("wa+x") else found

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        patch.setattr(io, "open", open_faulty)
        patch.setattr(builtins, "open", open_faulty)
        yield seen


def die() -> None:
    """End this process as a loss of power would."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int, code: int = errno.EIO) -> contextlib.AbstractContextManager[list[int]]:
    """The call of this number fails with an error of the operating system."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fault_at(number, fail)


def every_failure(
    work: Callable[[Path], Any],
    state_of: Callable[[Path], Any],
    whole: Path,
    scratch: Path,
    codes: tuple[int, ...] = (),
) -> int:
    """Do the work with each call failing once; each time the state must be the one before or the one after.

    Args:
        work: Changes the folder that it gets. It may be called again.
        state_of: What a reader sees in the folder.
        whole: The folder before the work.
        scratch: Where copies of it are made.
        codes: The errors: a broken disk (EIO), and a full one (ENOSPC).

    Returns:
        How many calls there were.
    """
    before = state_of(whole)
    finished = Path(shutil.copytree(whole, scratch / "finished"))
    with failing(10**9) as seen:
        work(finished)
    after, calls = state_of(finished), seen[0]
    assert calls > 0
    for number in range(1, calls + 1):
        for code in codes:
            copy = Path(shutil.copytree(whole, scratch / f"{number}-{code}"))
            with failing(number, code), contextlib.suppress(OSError):
                work(copy)
            assert state_of(copy) in (before, after), f"call {number} of {calls}"
            work(copy)  # again, on a disk that works
            assert state_of(copy) == after, f"call {number} of {calls}, repeated"
            shutil.rmtree(copy)
    return calls
