"""The SQLite file of an index folder: ids, metadata, settings, and the name of the current vector file.

It also lists the items that were added and removed since that file was written. So adding and removing are one
transaction here, and write no other file. SQLite recovers by itself when a process is killed.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aleator.foundation import reject, require
from aleator.retrieval.items import Items, decode_id

_APPLICATION_ID = 0x616C6561  # "alea", in the header of the file
_FORMAT = 1
_MIXTURE_FORMAT = 2  # as format 1, with weights: items have several modes
_BLOCK = 10_000  # rows written at a time
_TIMEOUT = 60.0  # seconds to wait for a transaction of another process
_SCHEMA = """
CREATE TABLE config (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, note TEXT NOT NULL);
CREATE TABLE vectors (file TEXT NOT NULL, sha256 TEXT NOT NULL, rows BLOB NOT NULL, kappas BLOB NOT NULL);
CREATE TABLE added (row INTEGER PRIMARY KEY, kappa REAL NOT NULL, mu BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
"""


class VectorFile(NamedTuple):
    """A vector file, with the row and the kappa of the item at each position; for items of several modes the weight."""

    file: str
    sha256: str
    rows: np.ndarray  # (n,) int64
    kappa: np.ndarray  # (n,) float32
    weight: np.ndarray | None  # (n,) float32


class Ledger:
    """One SQLite database. Call methods that write inside `transaction`.

    Args:
        path: The file. None makes a temporary database that disappears with the process.
    """

    def __init__(self, path: Path | None):
        self._db = sqlite3.connect(
            "" if path is None else path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA synchronous = FULL")
        if path is None:
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a ledger. The empty file of a first save that was killed does not count."""
        if not path.is_file():
            return False
        with contextlib.closing(Ledger(path)) as ledger:
            return ledger._number("application_id") == _APPLICATION_ID

    def close(self) -> None:
        self._db.close()

    def copy_to(self, other: "Ledger") -> None:
        """Replace the content of another ledger, in one transaction of that ledger."""
        self._db.backup(other._db)

    @contextlib.contextmanager
    def transaction(self, write: bool = True) -> Iterator[None]:
        """All changes or none. Readers see one state. Writers of all processes wait for each other."""
        self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # takes a read lock
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def version(self) -> int:
        """A number that changes when another process or connection has committed."""
        return self._number("data_version")

    def require_format(self, folder: Path) -> None:
        """Raise unless this is a ledger in the format of this release."""
        is_ledger = self._number("application_id") == _APPLICATION_ID
        require(is_ledger, "location", str(folder), "holds no index", "build one there first")
        written = self._number("user_version")
        problem = f"is in format {written}, and this release reads formats up to {_MIXTURE_FORMAT}"
        known = _FORMAT <= written <= _MIXTURE_FORMAT
        require(known, "location", str(folder), problem, "open it with the release that wrote it")

    def setting(self, key: str) -> Any:
        """Read a setting."""
        return json.loads(self._db.execute("SELECT value FROM config WHERE key = ?", (key,)).fetchone()[0])

    def configure(self, key: str, value: Any) -> None:
        """Write a setting."""
        self._db.execute("INSERT OR REPLACE INTO config VALUES (?, ?)", (key, json.dumps(value)))

    def record(self, items: Items) -> np.ndarray:
        """Write ids and metadata of new items, and return their rows (n,)."""
        first = self.setting("next_row")
        rows = np.arange(first, first + len(items))
        try:
            for start in range(0, len(items), _BLOCK):
                block = slice(start, start + _BLOCK)
                lines = zip(rows[block].tolist(), items.keys[block], items.metadata_json[block], strict=True)
                self._db.executemany("INSERT INTO items VALUES (?, ?, ?)", lines)
        except sqlite3.IntegrityError:
            existing = self.find(list(items.keys), below=first)
            duplicate = next(key for key in items.keys if key in existing)
            reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")
        self.configure("next_row", first + len(items))
        return rows

    def append(self, rows: np.ndarray, items: Items) -> None:
        """Write vectors of items that the current vector file does not have."""
        kappa, vectors = items.kappa, list(items.mu)
        if items.weight is not None and items.owner is not None:
            # One line for each item: rows of weight, kappa and mu, one for each component.
            packed = np.column_stack([items.weight, items.kappa, items.mu])
            first = np.searchsorted(items.owner, np.arange(len(items)))
            kappa, vectors = kappa[first], np.split(packed, first[1:]) if len(items) else []
        lines = zip(rows.tolist(), kappa.tolist(), map(np.ndarray.tobytes, vectors), strict=True)
        self._db.executemany("INSERT INTO added VALUES (?, ?, ?)", lines)

    def delete(self, rows: list[int]) -> None:
        """Remove items."""
        listed = json.dumps(rows)
        self._db.execute("DELETE FROM items WHERE row IN (SELECT value FROM json_each(?))", (listed,))
        self._db.execute("INSERT INTO removed SELECT value FROM json_each(?)", (listed,))

    def find(self, keys: list[str], below: int = 2**62) -> dict[str, int]:
        """Rows by key, for the keys that the ledger holds, in rows below a limit."""
        select = "SELECT i.key, i.row FROM json_each(?) AS k JOIN items AS i ON i.key = k.value"
        return dict(self._db.execute(f"{select} WHERE i.row < ?", (json.dumps(keys), below)))

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Key and metadata as JSON text, by row."""
        select = "SELECT i.row, i.key, i.note FROM json_each(?) AS k JOIN items AS i ON i.row = k.value"
        described = self._db.execute(select, (json.dumps(sorted(set(rows.tolist()))),))
        return {row: (key, metadata) for row, key, metadata in described}

    def set_vector_file(self, vector_file: VectorFile, removed: np.ndarray) -> None:
        """Make a vector file the current one. It may still hold `removed` rows."""
        for table in ("vectors", "added", "removed"):
            self._db.execute(f"DELETE FROM {table}")
        rows, kappa = vector_file.rows.astype(np.int64), vector_file.kappa.astype(np.float32)
        columns = (vector_file.file, vector_file.sha256, rows.tobytes(), kappa.tobytes())
        self._db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?)", columns)
        if vector_file.weight is not None:
            self._db.execute("CREATE TABLE IF NOT EXISTS weights (weights BLOB NOT NULL)")
            self._db.execute("DELETE FROM weights")
            self._db.execute("INSERT INTO weights VALUES (?)", (vector_file.weight.astype(np.float32).tobytes(),))
            self._db.execute(f"PRAGMA user_version = {_MIXTURE_FORMAT}")
        self._db.executemany("INSERT INTO removed VALUES (?)", ((row,) for row in np.unique(removed).tolist()))

    def vector_file(self) -> VectorFile:
        """The current vector file."""
        file, sha256, rows, kappas = self._db.execute("SELECT * FROM vectors").fetchone()
        weight = None
        if self._number("user_version") == _MIXTURE_FORMAT:
            weight = np.frombuffer(self._db.execute("SELECT weights FROM weights").fetchone()[0], np.float32)
        return VectorFile(file, sha256, np.frombuffer(rows, np.int64), np.frombuffer(kappas, np.float32), weight)

    def added(self, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Rows (n,), kappas (n,), directions (n, D) and weights (n,) that the current vector file does not have."""
        added = self._db.execute("SELECT row, kappa, mu FROM added ORDER BY row").fetchall()
        rows = np.array([row for row, _, _ in added], np.int64)
        numbers = np.frombuffer(b"".join(mu for _, _, mu in added), np.float32)
        if self._number("user_version") == _MIXTURE_FORMAT:
            packed = numbers.reshape(-1, dim + 2)
            counts = [len(mu) // (4 * (dim + 2)) for _, _, mu in added]
            return np.repeat(rows, counts), packed[:, 1], packed[:, 2:], packed[:, 0]
        kappa = np.array([kappa for _, kappa, _ in added], np.float32)
        return rows, kappa, numbers.reshape(-1, dim), None

    def removed(self) -> np.ndarray:
        """Rows (n,) of removed items that the current vector file still has."""
        return np.array([row for (row,) in self._db.execute("SELECT row FROM removed")], np.int64)

    def _number(self, pragma: str) -> int:
        return self._db.execute(f"PRAGMA {pragma}").fetchone()[0]
