"""A store in a folder: a SQLite ledger and a faiss file. In memory it is the same, with a temporary ledger.

The ledger decides what the index holds, and names the current vector file. So

- `insert` and `delete` are one transaction of the ledger each, and are durable when they return;
- `save` writes a new vector file beside the old one, and makes it current in one transaction;
- a process that is killed leaves the state before or after the call, and at worst an unused file.

Several processes may open one folder. Each call sees what the others have committed. Writers wait for each other.

Everything that decides an answer has a checksum. Those of the vector file and of the rows of the ledger that the arrays
need are verified when the index is opened; those of ids and metadata when an answer shows them.
"""

import contextlib
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import DamagedFileError, file_sha256, reject, require, writing_atomically
from aleator.retrieval.items import Items, decode_id, digests_of, state_text, sum_of
from aleator.retrieval.recall import tune_recall
from aleator.retrieval.stores.base import Candidates, IndexGoneError, Store
from aleator.retrieval.stores.checksums import vector_checks
from aleator.retrieval.stores.consistency import arrays_problem, config_problem, directions_problem
from aleator.retrieval.stores.faiss import VectorIndex, list_count
from aleator.retrieval.stores.ledger import WAY_OUT, Ledger, VectorFile, sqlite_errors

LEDGER = "ledger.sqlite"

# How the names of vector files begin: finished ones, and temporary ones that a killed save left behind.
_VECTOR_FILES = ("vectors-", ".vectors-")
_BLOCK = 65_536  # vectors whose checksums are made at a time


class FolderStore(Store):
    """A `Store` on one machine.

    `rows`, `kappa`, `alive` and `weight` have one entry for each position in the vector index. An item of several modes
    takes several positions, one after the other, with the same row.
    """

    config: dict[str, Any]
    vectors: VectorIndex
    rows: np.ndarray  # (n,) ascending; uint32 while the numbers fit, then int64
    kappa: np.ndarray  # (n,) float32
    alive: np.ndarray  # (n,) bool; false if the item was removed
    weight: np.ndarray | None  # (n,) float32, of components; None if every item has one mode

    def __init__(self, ledger: Ledger, folder: Path | None, memory_map: bool = False):
        self._ledger = ledger
        self._folder = folder
        self._memory_map = memory_map
        self._lock = threading.RLock()
        self._loaded_version: int | None = None  # version of the ledger that the arrays reflect

    @classmethod
    def create(cls, items: Items, config: dict[str, Any]) -> "FolderStore":
        """A store in memory. Its ledger is a temporary file that disappears with the process."""
        store = cls(Ledger(None), None)
        store.config = config
        store.vectors = VectorIndex.build(items.mu, store._lists_wanted(len(items), len(items.mu)))
        store.kappa, store.weight = items.kappa, items.weight
        store.alive = np.ones(len(items.mu), bool)
        with store._transaction():
            store._ledger.configure("next_row", 0)
            store._ledger.configure("state", 0)
            store.rows = _compact(items.rows_of_vectors(store._ledger.record(items)))
        store._tune_recall()
        return store

    @classmethod
    def open(cls, folder: Path, memory_map: bool = False) -> "FolderStore":
        """Open the store in a folder. With `memory_map` the vectors stay on disk, and the store is read-only."""
        store = cls(Ledger(ledger_of(folder)), folder, memory_map)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(store.close)
            with store._up_to_date():
                on_failure.pop_all()
        return store

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether the folder holds an index."""
        with sqlite_errors(folder / LEDGER):
            return Ledger.exists(folder / LEDGER)

    @property
    def location(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def __len__(self) -> int:
        with self._up_to_date():
            return self._count()

    def state(self) -> str:
        with self._up_to_date():
            return state_text(self._ledger.setting("state"))

    @property
    def efforts(self) -> list[int]:
        """Numbers of lists to search, eight for each doubling."""
        return sorted({round(2 ** (i / 8)) for i in range(8 * self.vectors.lists.bit_length() - 7)})

    def reserve_ids(self, count: int) -> list[int]:
        with self._up_to_date():
            first = self._ledger.setting("next_row")
            return list(range(first, first + count))

    def insert(self, items: Items) -> None:
        with self._lock:  # also for the arrays: other threads may not come between
            with self._change():
                rows = self._ledger.record(items)
                if self._folder is not None:
                    self._ledger.append(rows, items)
            self._append(items.rows_of_vectors(rows), items.kappa, items.mu, items.weight)

    def delete(self, keys: list[str]) -> None:
        with self._lock:
            with self._change():
                row_of_key = self._ledger.find(keys)
                unknown = [key for key in keys if key not in row_of_key]
                if unknown:
                    reject("ids", decode_id(unknown[0]), "not in the index", "remove only items that it holds")
                rows = list(row_of_key.values())
                positions = self._positions(np.array(rows, np.int64))[0]
                self._ledger.delete(rows, self._digests(positions))
            self.alive[positions] = False

    def existing(self, keys: list[str]) -> set[str]:
        with self._in_place():
            found = set(self._ledger.find(keys))
            if len(found) < len(set(keys)):
                self._ledger.require_sound()
            return found

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._up_to_date():
            self._require_dim(mu)
            return self._candidates(*self.vectors.within(mu, radius, effort))

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._up_to_date():
            self._require_dim(mu)
            query, position, reach = self.vectors.closest(mu, k, effort)
            return self._candidates(query, position), reach

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        with self._in_place():
            described = self._ledger.describe(rows)
            missing = [row for row in np.unique(rows).tolist() if row not in described]
            if missing:  # removed by now, or lost
                with self._transaction(write=False):
                    lost = self.alive[self._positions(np.array(missing))[0]].any()
                if lost:
                    raise self._ledger.damage(f"ids and metadata of {len(missing)} items are lost")
            return described

    def components(self, rows: np.ndarray) -> Candidates:
        with self._up_to_date():
            position, number = self._positions(rows)
            return self._candidates(number, position)

    def kappa_range(self) -> tuple[float, float]:
        with self._up_to_date():
            finite = self.kappa[self.alive & np.isfinite(self.kappa)]
            return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)

    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        with self._up_to_date():
            held = np.flatnonzero(self.alive)
            if self.weight is not None:  # the heaviest mode of each item
                held = held[np.lexsort((-self.weight[held], self.rows[held]))]
                held = held[np.unique(self.rows[held], return_index=True)[1]]
            return np.searchsorted(np.sort(self.kappa[held]), np.asarray(kappa, np.float32))

    def sample_directions(self, count: int) -> np.ndarray:
        with self._up_to_date():
            held = np.nonzero(self.alive)[0]
            spread = np.unique(np.linspace(0, len(held) - 1, count).astype(np.int64))
            return self.vectors.vectors(held[spread])

    def configure(self, **changes: Any) -> None:
        self._require_writable()
        with self._transaction():
            config = {**self.config, **changes}
            self._ledger.configure("config", config)
        self.config = config

    def check(self) -> None:
        """Verify every row of the ledger and every vector.

        Raises:
            DamagedFileError: If something is damaged.
        """
        with self._in_place(), self._ledger.transaction(write=False):
            self._ledger.verify()
            if self._folder is not None:
                self._load(self._folder)

    def save(self, location: str | None = None) -> None:
        """Write changes into a new vector file. With a location, move there and replace the index in that folder."""
        target = self._folder if location is None else Path(location)
        if target is None:
            reject("location", None, "the index is in memory", "name a folder to save it in")
        if target != self._folder:
            self._move(target)
        else:
            self._require_writable()
            with self._transaction():
                if not self._ledger.setting("saved"):
                    self._rebuild_if_needed()
                    self._publish(target)
        with self._transaction():  # the lock keeps other processes from making a new file current meanwhile
            _remove_unused_files(target, self._ledger.vector_file().file)

    def close(self) -> None:
        self._ledger.close()

    # In memory

    def _count(self) -> int:
        """Number of items."""
        if self.weight is None:
            return int(self.alive.sum())
        first = self.rows[1:] != self.rows[:-1]
        return int(self.alive[:1].sum() + np.count_nonzero(first & self.alive[1:]))

    def _candidates(self, query: np.ndarray, position: np.ndarray) -> Candidates:
        """Candidates at these positions, without the removed items."""
        keep = self.alive[position]
        if not keep.all():
            query, position = query[keep], position[keep]
        weight = None if self.weight is None else self.weight[position]
        rows = self.rows[position].astype(np.int64)
        return Candidates(query, rows, self.vectors.vectors(position), self.kappa[position], weight)

    def _positions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All positions of the given rows, and for each position the number of its row among them."""
        start = np.searchsorted(self.rows, rows)
        counts = np.searchsorted(self.rows, rows, side="right") - start
        number = np.repeat(np.arange(len(rows)), counts)
        return start[number] + np.arange(len(number)) - (np.cumsum(counts) - counts)[number], number

    def _digests(self, position: np.ndarray) -> int:
        """The sum of the digests of the vectors at some positions."""
        held = self._candidates(position, position)
        texts = self._ledger.describe(held.row)
        described = [texts[row] for row in held.row.tolist()]
        return sum_of(digests_of(described, held.mu, held.kappa, held.weight))

    def _append(self, rows: np.ndarray, kappa: np.ndarray, mu: np.ndarray, weight: np.ndarray | None) -> None:
        """Add items to the arrays in memory."""
        if self.weight is not None and weight is not None:
            self.weight = np.concatenate([self.weight, weight])
        self.vectors.add(mu)
        self.rows = _compact(np.concatenate([self.rows.astype(np.int64), rows]))
        self.kappa = np.concatenate([self.kappa, kappa])
        self.alive = np.concatenate([self.alive, np.ones(len(rows), bool)])

    def _lists_wanted(self, items: int, vectors: int) -> int:
        """Number of lists for so many items, of which each has a vector for each mode; 0: exact search."""
        return list_count(vectors) if items >= self.config["exact_below"] else 0

    def _rebuild_if_needed(self) -> None:
        """Drop removed items from the vectors, and change between exact and approximate search with the size."""
        held = np.nonzero(self.alive)[0]
        lists, wanted = self.vectors.lists, self._lists_wanted(self._count(), len(held))
        many_removed = len(self.rows) - len(held) > (len(held) // 10 if lists else 0)
        # Training lists takes long, so an inverted file is rebuilt only after large changes.
        if many_removed or bool(lists) != bool(wanted) or wanted >= 4 * lists > 0:
            self.vectors = VectorIndex.build(self.vectors.vectors(held), wanted)
            self.rows, self.kappa, self.alive = self.rows[held], self.kappa[held], self.alive[held]
            self.weight = None if self.weight is None else self.weight[held]
        self._tune_recall()

    def _tune_recall(self) -> None:
        report = tune_recall(self, self.config["recall"]) if self.vectors.lists else None
        self.config = {**self.config, "report": report}

    def _load(self, folder: Path) -> None:
        """Read the arrays that the ledger describes; inside a transaction."""
        self._ledger.require_format(folder)
        config = self._ledger.setting("config")
        self._require_whole(config_problem(config))
        vector_file = self._ledger.vector_file()
        vectors = self._read_vectors(folder, vector_file)
        if vectors.dim != config["dim"]:
            raise self._ledger.damage(f"dim = {config['dim']}, and its vectors have {vectors.dim} dimensions")
        self._require_whole(arrays_problem(vector_file.rows, vector_file.kappa, vector_file.weight, len(vectors)))
        self.config, self.vectors = config, vectors
        self.rows, self.kappa, self.weight = _compact(vector_file.rows), vector_file.kappa, vector_file.weight
        self.alive = np.ones(len(self.rows), bool)
        added = self._ledger.added(config["dim"], config.get("modes", 1) > 1)
        if len(added[0]):
            require(
                not self._memory_map,
                "memory_map",
                True,
                f"{len(added[0])} items were added to {self._folder} since the last save",
                "save the index once without memory_map",
            )
            self._require_whole(directions_problem(added[2]))
            self._append(*added)
            self._require_whole(arrays_problem(self.rows.astype(np.int64), self.kappa, self.weight, len(self.rows)))
        self.alive[self._positions(self._ledger.removed())[0]] = False
        held, listed = self._count(), self._ledger.count_items()
        if held != listed:
            raise self._ledger.damage(f"it lists {listed} items, and there are vectors of {held}")

    def _read_vectors(self, folder: Path, vector_file: VectorFile) -> VectorIndex:
        """The vectors of a file, verified: some damage would make faiss end the process."""
        path = folder / vector_file.file
        if path.parent != folder or not path.name.startswith("vectors-"):
            raise self._ledger.damage(f"it names the vector file {vector_file.file!r}")
        if not path.is_file():
            raise DamagedFileError(path, "the vector file is missing", WAY_OUT)
        if file_sha256(path) != vector_file.sha256:
            raise DamagedFileError(path, "the vectors do not match their checksum", WAY_OUT)
        return VectorIndex.read(path, self._memory_map)

    def _require_dim(self, mu: np.ndarray) -> None:
        """Raise if another process has put an index of another dimension in the place of this one."""
        if mu.shape[1] != self.vectors.dim:
            problem = f"the index was replaced by one of {self.vectors.dim} dimensions, and the query has {mu.shape[1]}"
            raise IndexGoneError(f"{self.location or 'the index'}: {problem}")

    def _require_whole(self, problem: str | None) -> None:
        if problem is not None:
            raise self._ledger.damage(problem)

    # On disk

    def _publish(self, folder: Path) -> None:
        """Write the vectors to a new file in `folder` and make it current in the ledger; inside a transaction."""
        token = secrets.token_hex(8)
        path = folder / f"vectors-{token}.faiss"
        with writing_atomically(path) as temporary:
            self.vectors.write(temporary)
        rows = self.rows.astype(np.int64)
        everything = (np.arange(start, min(start + _BLOCK, len(rows))) for start in range(0, len(rows), _BLOCK))
        checks = [self._checks(rows[some], some) for some in everything]
        together = np.concatenate([np.zeros(0, np.int64), *checks])
        vector_file = VectorFile(path.name, file_sha256(path), rows, self.kappa, self.weight, together)
        self._ledger.set_vector_file(vector_file, rows[~self.alive])
        self._ledger.configure("config", self.config)
        self._ledger.configure("saved", True)

    def _checks(self, rows: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Checksums of the vectors at some positions."""
        weight = None if self.weight is None else self.weight[position]
        return vector_checks(rows, self.vectors.vectors(position), self.kappa[position], weight)

    def _move(self, target: Path) -> None:
        """Continue in another folder, and replace the index there in one step."""
        require(
            not target.exists() or (target.is_dir() and all(map(_is_index_file, target.iterdir()))),
            "location",
            str(target),
            "holds files that are not an index",
            "name a new or an empty folder, or one that holds an index",
        )
        with self._up_to_date():
            if self._folder is not None:  # leave the old folder as it is
                scratch = Ledger(None)
                self._ledger.copy_to(scratch)
                self._ledger.close()
                self._ledger, self._folder = scratch, None
            target.mkdir(parents=True, exist_ok=True)
            with self._transaction():
                self._rebuild_if_needed()
                self._publish(target)
            moved = Ledger(target / LEDGER)
            self._ledger.copy_to(moved)  # replaces the index there, in one transaction
            self._ledger.close()
            self._ledger, self._folder = moved, target
            self._loaded_version = moved.version()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """A transaction that changes the items."""
        self._require_writable()
        with self._transaction():
            self._ledger.require_sound()
            yield
            self._ledger.configure("saved", False)

    def _require_writable(self) -> None:
        require(not self._memory_map, "memory_map", True, "is read-only", "open the index without it")

    @contextlib.contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """Arrays that reflect all commits so far, of this and of other processes."""
        with self._in_place():
            if self._folder is not None and self._ledger.version() != self._loaded_version:
                with self._transaction(write=False):
                    pass
            yield

    @contextlib.contextmanager
    def _transaction(self, write: bool = True) -> Iterator[None]:
        """A transaction of the ledger, with arrays that reflect it."""
        with self._in_place(), self._ledger.transaction(write):
            if self._folder is not None:
                version = self._ledger.version()
                if version != self._loaded_version:
                    self._loaded_version = None
                    self._load(self._folder)
                    self._loaded_version = version
            yield

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """One thread at a time, on a folder that is still there. Errors of SQLite are translated."""
        with self._lock, sqlite_errors(self._ledger.path):
            if not self._ledger.in_place():
                raise IndexGoneError(f"{self.location}: the folder was removed or replaced while the index was open")
            yield


def ledger_of(folder: Path) -> Path:
    """The ledger of the index in a folder; an error that tells a lost ledger from a folder without an index."""
    path = folder / LEDGER
    if not path.is_file() and any(folder.glob("vectors-*")):
        problem = f"holds no index: it has vectors and no {LEDGER}, which was lost, or never finished by a killed build"
        reject("location", str(folder), problem, "restore it from a copy, or build the index again")
    require(path.is_file(), "location", str(folder), "holds no index", "build one there first")
    return path


def _compact(rows: np.ndarray) -> np.ndarray:
    """Ascending rows as uint32, while the last one fits, or as int64."""
    return rows.astype(np.uint32 if len(rows) == 0 or rows[-1] < 2**32 else np.int64)


def _remove_unused_files(folder: Path, current: str) -> None:
    """Remove vector files that the ledger does not name, of earlier saves, and what saves that were killed left."""
    for path in folder.iterdir():
        if path.name.startswith(_VECTOR_FILES) and path.name != current:
            path.unlink(missing_ok=True)


def _is_index_file(path: Path) -> bool:
    return path.name.startswith((LEDGER, *_VECTOR_FILES))
