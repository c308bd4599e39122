"""The embedded backend: a folder with a SQLite ledger and a faiss file, or the same in memory.

The ledger is the truth, and names the vector file. So

- `insert` and `delete` are one transaction of the ledger each, and durable when they return;
- `save` writes a new vector file beside the old one and makes it current in one transaction;
- a process killed at any instant leaves the state before or the state after, and at worst an unused file.

Several processes may open one folder. Each call notices what others have committed, and writers queue.
"""

import contextlib
import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import reject, require, writing_atomically
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.recall import calibrate
from aleator.retrieval.stores.base import Candidates
from aleator.retrieval.stores.faiss import VectorIndex, list_count
from aleator.retrieval.stores.ledger import Generation, Ledger

_LEDGER = "ledger.sqlite"
# How the names of vector files begin: finished ones, and temporary ones that a killed save left behind.
_VECTOR_FILES = ("vectors-", ".vectors-", "partial-")


class FolderStore:
    """A `Store` on one machine. Arrays are by position in the vector index; `rows` ascends."""

    config: dict[str, Any]
    vectors: VectorIndex
    rows: np.ndarray  # (n,) uint32 while the numbers fit, then int64
    kappa: np.ndarray  # (n,) float32
    alive: np.ndarray  # (n,) bool, false where the item was removed

    def __init__(self, ledger: Ledger, folder: Path | None, memory_map: bool = False):
        self._ledger = ledger
        self._folder = folder
        self._memory_map = memory_map
        self._lock = threading.RLock()
        self._seen: int | None = None  # the ledger's version that the arrays reflect

    @classmethod
    def create(cls, items: Items, config: dict[str, Any]) -> "FolderStore":
        """A collection in memory; its ledger is a temporary file that goes with the process."""
        store = cls(Ledger(None), None)
        store.config = config
        store.vectors = VectorIndex.build(items.mu, store._lists_wanted(len(items)))
        store.kappa = items.kappa
        store.alive = np.ones(len(items), bool)
        with store._transaction():
            store._ledger.configure("next_row", 0)
            store.rows = _compact(store._ledger.record(items))
        store._calibrate()
        return store

    @classmethod
    def open(cls, folder: Path, memory_map: bool = False) -> "FolderStore":
        """`memory_map` leaves the vectors on disk, for collections larger than memory; it is read-only."""
        path = folder / _LEDGER
        require(path.is_file(), "location", str(folder), "holds no index", "build one there first")
        try:
            store = cls(Ledger(path), folder, memory_map)
            with contextlib.ExitStack() as failing:
                failing.callback(store.close)
                with store._fresh():
                    failing.pop_all()
            return store
        except sqlite3.DatabaseError as error:
            reject("location", str(folder), f"the ledger is damaged: {error}", "restore it from a copy")

    @staticmethod
    def exists(folder: Path) -> bool:
        return Ledger.exists(folder / _LEDGER)

    @property
    def location(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def __len__(self) -> int:
        with self._fresh():
            return int(self.alive.sum())

    @property
    def efforts(self) -> list[int]:
        """Numbers of lists, eight in each octave."""
        return sorted({round(2 ** (i / 8)) for i in range(8 * self.vectors.lists.bit_length() - 7)})

    def reserve(self, count: int) -> list[int]:
        with self._fresh():
            first = self._ledger.setting("next_row")
            return list(range(first, first + count))

    def insert(self, items: Items) -> None:
        with self._change():
            rows = self._ledger.record(items)
            if self._folder is not None:
                self._ledger.append(rows, items)
        self._append(rows, items.kappa, items.mu)

    def delete(self, keys: list[str]) -> None:
        with self._change():
            found = self._ledger.find(keys)
            unknown = [key for key in keys if key not in found]
            if unknown:
                reject("ids", decode_id(unknown[0]), "not in the index", "remove only what it holds")
            rows = list(found.values())
            self._ledger.strike(rows)
        self.alive[np.searchsorted(self.rows, rows)] = False

    def present(self, keys: list[str]) -> set[str]:
        with self._lock:
            return set(self._ledger.find(keys))

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._fresh():
            return self._candidates(*self.vectors.within(mu, radius, effort))

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._fresh():
            query, position, reach = self.vectors.closest(mu, k, effort)
            return self._candidates(query, position), reach

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        with self._lock:
            return self._ledger.describe(rows)

    def kappa_range(self) -> tuple[float, float]:
        with self._fresh():
            finite = self.kappa[self.alive & np.isfinite(self.kappa)]
            return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)

    def sample(self, count: int) -> np.ndarray:
        with self._fresh():
            held = np.nonzero(self.alive)[0]
            spread = np.unique(np.linspace(0, len(held) - 1, count).astype(np.int64))
            return self.vectors.vectors(held[spread])

    def save(self, location: str | None = None) -> None:
        """Fold what changed into a new vector file; with a location, move there and replace what it held."""
        target = self._folder if location is None else Path(location)
        if target is None:
            reject("location", None, "the index lives in memory", "name a folder to save it in")
        if target != self._folder:
            self._move(target)
        else:
            self._require_writable()
            with self._transaction():
                if self._ledger.setting("saved"):
                    return
                self._settle()
                self._publish(target)
        with self._transaction():  # holding the lock, so that no other process is about to name a file
            _discard_unused(target, self._ledger.generation().file)

    def close(self) -> None:
        self._ledger.close()

    # What is held in memory

    def _candidates(self, query: np.ndarray, position: np.ndarray) -> Candidates:
        keep = self.alive[position]
        if not keep.all():
            query, position = query[keep], position[keep]
        return Candidates(
            query, self.rows[position].astype(np.int64), self.vectors.vectors(position), self.kappa[position]
        )

    def _append(self, rows: np.ndarray, kappa: np.ndarray, mu: np.ndarray) -> None:
        self.vectors.add(mu)
        self.rows = _compact(np.concatenate([self.rows.astype(np.int64), rows]))
        self.kappa = np.concatenate([self.kappa, kappa])
        self.alive = np.concatenate([self.alive, np.ones(len(rows), bool)])

    def _lists_wanted(self, size: int) -> int:
        return list_count(size) if size >= self.config["exact_below"] else 0

    def _settle(self) -> None:
        """Leave out the removed, and change the kind of index where the size asks for it."""
        held = np.nonzero(self.alive)[0]
        lists, wanted = self.vectors.lists, self._lists_wanted(len(held))
        many = len(self.rows) - len(held) > (len(held) // 10 if lists else 0)
        # Training the lists anew is worth it only after much has changed.
        if many or bool(lists) != bool(wanted) or wanted >= 4 * lists > 0:
            self.vectors = VectorIndex.build(self.vectors.vectors(held), wanted)
            self.rows, self.kappa, self.alive = self.rows[held], self.kappa[held], self.alive[held]
        self._calibrate()

    def _calibrate(self) -> None:
        report = calibrate(self, self.config["recall"]) if self.vectors.lists else None
        self.config = {**self.config, "report": report}

    def _load(self, folder: Path) -> None:
        """Bring the arrays to what the ledger says; inside a transaction."""
        self._ledger.require_format(folder)
        self.config = self._ledger.setting("config")
        generation = self._ledger.generation()
        path = folder / generation.file
        require(
            path.is_file() and (self._memory_map or _sha256(path) == generation.sha256),
            "location",
            str(folder),
            f"the vector file {generation.file!r} is missing or damaged",
            "restore the folder from a copy",
        )
        self.vectors = VectorIndex.read(path, self._memory_map)
        self.rows, self.kappa = _compact(generation.rows), generation.kappa
        self.alive = np.ones(len(self.rows), bool)
        added = self._ledger.added(self.config["dim"])
        if len(added[0]):
            require(
                not self._memory_map,
                "memory_map",
                True,
                f"{len(added[0])} items were added since the last save",
                "save the index once without memory_map",
            )
            self._append(*added)
        self.alive[np.searchsorted(self.rows, self._ledger.removed())] = False

    # What is on disk

    def _publish(self, folder: Path) -> None:
        """Write the vectors to a new file in `folder` and name it in the ledger; inside a transaction."""
        token = secrets.token_hex(8)
        path = folder / f"vectors-{token}.faiss"
        with writing_atomically(path) as temporary:
            self.vectors.write(temporary)
        generation = Generation(path.name, _sha256(path), self.rows, self.kappa)
        self._ledger.publish(generation, self.rows[~self.alive])
        self._ledger.configure("config", self.config)
        self._ledger.configure("saved", True)

    def _move(self, target: Path) -> None:
        require(
            not target.exists() or (target.is_dir() and all(map(_is_ours, target.iterdir()))),
            "location",
            str(target),
            "holds something that is not an index",
            "name a new or an empty folder, or one that holds an index",
        )
        with self._fresh():
            if self._folder is not None:  # leave the old folder as it is
                scratch = Ledger(None)
                self._ledger.copy_to(scratch)
                self._ledger.close()
                self._ledger, self._folder = scratch, None
            target.mkdir(parents=True, exist_ok=True)
            with self._transaction():
                self._settle()
                self._publish(target)
            moved = Ledger(target / _LEDGER)
            self._ledger.copy_to(moved)  # the instant of replacement
            self._ledger.close()
            self._ledger, self._folder = moved, target
            self._seen = moved.version()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        self._require_writable()
        with self._transaction():
            yield
            self._ledger.configure("saved", False)

    def _require_writable(self) -> None:
        require(not self._memory_map, "memory_map", True, "is read-only", "open the index without it")

    @contextlib.contextmanager
    def _fresh(self) -> Iterator[None]:
        """Arrays that reflect every commit so far, this process's and others'."""
        with self._lock:
            if self._folder is not None and self._ledger.version() != self._seen:
                with self._transaction(write=False):
                    pass
            yield

    @contextlib.contextmanager
    def _transaction(self, write: bool = True) -> Iterator[None]:
        """A transaction on a ledger that the arrays reflect."""
        with self._lock, self._ledger.transaction(write):
            if self._folder is not None:
                version = self._ledger.version()
                if version != self._seen:
                    self._seen = None
                    self._load(self._folder)
                    self._seen = version
            yield


def _compact(rows: np.ndarray) -> np.ndarray:
    """Ascending numbers in half the memory, as long as the last one fits."""
    return rows.astype(np.uint32 if len(rows) == 0 or rows[-1] < 2**32 else np.int64)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _discard_unused(folder: Path, current: str) -> None:
    """Remove vector files that the ledger does not name: of earlier saves, and of saves that were killed."""
    for path in folder.iterdir():
        if path.name.startswith(_VECTOR_FILES) and path.name != current:
            path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    return path.name.startswith((_LEDGER, *_VECTOR_FILES))
