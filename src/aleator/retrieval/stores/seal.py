"""The seal of a ledger: its SHA-256 after the last save, in a small file beside it.

A ledger that matches its seal is whole, and a million items are verified in a tenth of a second. A seal that is old,
damaged or missing proves nothing, and then the checksums inside the ledger are verified, which takes longer. The seal
also has a copy of the settings, for `repair_index`.
"""

import hashlib
import json
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aleator.foundation import write_json

_VERSION = 1
_BLOCK = 1 << 20


class LedgerReader:
    """Reads the bytes of a ledger beside SQLite.

    When a process closes any descriptor of a file, POSIX releases all locks of this process on that file, those of
    SQLite as well. So all readers of one file share a descriptor, which is closed with the last of them.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._status = os.stat(path)
        self._key = (self._status.st_dev, self._status.st_ino)
        with _lock:
            if self._key not in _shared:
                _shared[self._key] = _Shared(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
            _shared[self._key].readers += 1
        self.close = weakref.finalize(self, _release, self._key)
        """Release the file. The ledger itself must be closed before."""

    def in_place(self) -> bool:
        """Whether the file is still the one at its path: nobody has removed or replaced it."""
        try:
            return os.path.samestat(self._status, os.stat(self.path))
        except OSError:
            return False

    def sha256(self) -> str:
        """SHA-256 of the file. Call it inside a transaction: then nobody writes meanwhile."""
        total = hashlib.sha256()
        with _lock:
            descriptor = _shared[self._key].descriptor
            os.lseek(descriptor, 0, os.SEEK_SET)
            while block := os.read(descriptor, _BLOCK):
                total.update(block)
        return total.hexdigest()


@dataclass
class _Shared:
    """A descriptor, and how many readers use it."""

    descriptor: int
    readers: int = 0


_shared: dict[tuple[int, int], _Shared] = {}
_lock = threading.RLock()


def _release(key: tuple[int, int]) -> None:
    with _lock:
        shared = _shared[key]
        shared.readers -= 1
        if not shared.readers:
            os.close(_shared.pop(key).descriptor)


def write_seal(ledger: Path, sha256: str, config: dict[str, Any]) -> None:
    """Write the seal of a ledger."""
    sealed = {"version": _VERSION, "sha256": sha256, "config": config, "config_sha256": _digest(config)}
    write_json(seal_path(ledger), sealed)


def sealed_sha256(ledger: Path) -> str | None:
    """The SHA-256 that the seal of a ledger names; None if there is no seal that can be read."""
    return _read(ledger).get("sha256")


def sealed_config(ledger: Path) -> dict[str, Any] | None:
    """The copy of the settings in the seal of a ledger; None if there is none that is whole."""
    seal = _read(ledger)
    config = seal.get("config")
    return config if isinstance(config, dict) and seal.get("config_sha256") == _digest(config) else None


def seal_path(ledger: Path) -> Path:
    """Where the seal of a ledger is."""
    return ledger.with_name(ledger.name + ".seal")


def _read(ledger: Path) -> dict[str, Any]:
    try:
        seal = json.loads(seal_path(ledger).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return seal if isinstance(seal, dict) and seal.get("version") == _VERSION else {}


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
