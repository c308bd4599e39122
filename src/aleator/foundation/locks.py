"""Locks between processes: of two commands with one output, the second is told about the first.

The operating system holds the lock, and releases it when the process ends, however it ends. So a lock file that a
killed process left behind locks nothing, and no one has to remove it.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from aleator.foundation.checks import reject
from aleator.foundation.files import naming_file


def lock_beside(output: Path) -> Path:
    """The lock file of an output: `.NAME.lock` beside it. Folders on the way are created.

    Args:
        output: The file or folder that one process at a time may write.

    Returns:
        Path of the lock file.
    """
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    return output.with_name(f".{output.name}.lock")


@contextlib.contextmanager
def only_process(path: Path, argument: str, work: str) -> Iterator[None]:
    """Hold a lock for the length of a block, or raise if another process holds it.

    Args:
        path: The lock file, in a folder that exists. It is removed at the end.
        argument: The argument that names the output, for the error.
        work: What this process does, such as "embed": the other process is told.

    Raises:
        ValueError: If another process holds the lock. The error names it.

    Examples:
        >>> from pathlib import Path
        >>> with only_process(Path("out.lock"), "output", "embed"):
        ...     Path("out.lock").exists()
        True
        >>> Path("out.lock").exists()
        False
    """
    descriptor = _acquire(path, argument)
    try:
        holder = {"work": work, "pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
        with naming_file(path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(holder).encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, argument: str) -> int:
    """A locked descriptor of the file at `path`."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(descriptor):
            holder = _holder(descriptor)
            os.close(descriptor)
            problem = f"another process works on it ({holder})"
            reject(argument, str(path.with_name(_owner(path))), problem, "wait for it or stop it, or name another one")
        # The holder before may have removed the file between the two calls above: then the lock is on no file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether the lock was free; it is now held."""
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """Who holds the lock, in words."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = json.loads(os.read(descriptor, 10_000))
        return f"{holder['work']}, process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it does not say which"


def _owner(path: Path) -> str:
    """The name that a lock file ".NAME.lock" protects."""
    return path.name.removeprefix(".").removesuffix(".lock")
