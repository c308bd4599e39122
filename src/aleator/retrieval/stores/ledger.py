"""The SQLite file of an index folder: ids, metadata, settings, and which vector file is the current one.

Beside the current vector file it lists what came and went since that file was written, so that adding and
removing are one transaction here and touch no other file. SQLite recovers by itself from a process that was
killed.
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

_APPLICATION = 0x616C6561  # "alea", in the file's header
_VERSION = 1
_BLOCK = 10_000  # rows written at a time
_PATIENCE = 60.0  # seconds to wait for another process's transaction
_SCHEMA = """
CREATE TABLE config (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, note TEXT NOT NULL);
CREATE TABLE vectors (file TEXT NOT NULL, sha256 TEXT NOT NULL, rows BLOB NOT NULL, kappas BLOB NOT NULL);
CREATE TABLE added (row INTEGER PRIMARY KEY, kappa REAL NOT NULL, mu BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
"""


class Generation(NamedTuple):
    """A vector file and, by position in it, the rows and kappas of its items."""

    file: str
    sha256: str
    rows: np.ndarray  # (n,) int64
    kappa: np.ndarray  # (n,) float32


class Ledger:
    """One SQLite database. Methods that write belong inside `transaction`."""

    def __init__(self, path: Path | None):
        """None is a temporary database that goes with the process."""
        self._db = sqlite3.connect(
            "" if path is None else path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA synchronous = FULL")
        if path is None:
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a ledger; the empty file of a first save that was killed is none."""
        if not path.is_file():
            return False
        with contextlib.closing(Ledger(path)) as ledger:
            return ledger._number("application_id") == _APPLICATION

    def close(self) -> None:
        self._db.close()

    def copy_to(self, other: "Ledger") -> None:
        """Replace the whole content of another ledger, in one transaction of that ledger."""
        self._db.backup(other._db)

    @contextlib.contextmanager
    def transaction(self, write: bool = True) -> Iterator[None]:
        """All of it or nothing; readers see one state, writers of all processes queue."""
        self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # takes the lock of a reader
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def version(self) -> int:
        """Changes when another process (or connection) has committed."""
        return self._number("data_version")

    def require_format(self, folder: Path) -> None:
        application, version = self._number("application_id"), self._number("user_version")
        ours = application == _APPLICATION
        require(ours, "location", str(folder), "holds no index", "build one there first")
        require(
            version == _VERSION,
            "location",
            str(folder),
            f"is in format {version}, and this release reads format {_VERSION}",
            "open it with the release that wrote it",
        )

    def setting(self, key: str) -> Any:
        return json.loads(self._db.execute("SELECT value FROM config WHERE key = ?", (key,)).fetchone()[0])

    def configure(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO config VALUES (?, ?)", (key, json.dumps(value)))

    def record(self, items: Items) -> np.ndarray:
        """Enter ids and metadata, and return the new rows (n,)."""
        first = self.setting("next_row")
        rows = np.arange(first, first + len(items))
        try:
            for start in range(0, len(items), _BLOCK):
                block = slice(start, start + _BLOCK)
                lines = zip(rows[block].tolist(), items.keys[block], items.notes[block], strict=True)
                self._db.executemany("INSERT INTO items VALUES (?, ?, ?)", lines)
        except sqlite3.IntegrityError:
            held = self.find(list(items.keys), below=first)
            twice = next(key for key in items.keys if key in held)
            reject("ids", decode_id(twice), "already in the index", "remove it first, or choose another id")
        self.configure("next_row", first + len(items))
        return rows

    def append(self, rows: np.ndarray, items: Items) -> None:
        """Keep vectors that the current file lacks."""
        vectors = zip(rows.tolist(), items.kappa.tolist(), map(np.ndarray.tobytes, items.mu), strict=True)
        self._db.executemany("INSERT INTO added VALUES (?, ?, ?)", vectors)

    def strike(self, rows: list[int]) -> None:
        listed = json.dumps(rows)
        self._db.execute("DELETE FROM items WHERE row IN (SELECT value FROM json_each(?))", (listed,))
        self._db.execute("INSERT INTO removed SELECT value FROM json_each(?)", (listed,))

    def find(self, keys: list[str], below: int = 2**62) -> dict[str, int]:
        """Rows by key, of the keys that are there."""
        select = "SELECT i.key, i.row FROM json_each(?) AS k JOIN items AS i ON i.key = k.value"
        found = self._db.execute(f"{select} WHERE i.row < ?", (json.dumps(keys), below))
        return dict(found)

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        select = "SELECT i.row, i.key, i.note FROM json_each(?) AS k JOIN items AS i ON i.row = k.value"
        found = self._db.execute(select, (json.dumps(sorted(set(rows.tolist()))),))
        return {row: (key, note) for row, key, note in found}

    def publish(self, generation: Generation, removed: np.ndarray) -> None:
        """Make a vector file the current one; `removed` rows are still in it."""
        for table in ("vectors", "added", "removed"):
            self._db.execute(f"DELETE FROM {table}")
        rows, kappa = generation.rows.astype(np.int64), generation.kappa.astype(np.float32)
        blobs = (generation.file, generation.sha256, rows.tobytes(), kappa.tobytes())
        self._db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?)", blobs)
        self._db.executemany("INSERT INTO removed VALUES (?)", ((row,) for row in removed.tolist()))

    def generation(self) -> Generation:
        file, sha256, rows, kappas = self._db.execute("SELECT * FROM vectors").fetchone()
        return Generation(file, sha256, np.frombuffer(rows, np.int64), np.frombuffer(kappas, np.float32))

    def added(self, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows (n,), kappas (n,) and directions (n, D) that the current file lacks."""
        found = self._db.execute("SELECT row, kappa, mu FROM added ORDER BY row").fetchall()
        rows = np.array([row for row, _, _ in found], np.int64)
        kappa = np.array([kappa for _, kappa, _ in found], np.float32)
        return rows, kappa, np.frombuffer(b"".join(mu for _, _, mu in found), np.float32).reshape(-1, dim)

    def removed(self) -> np.ndarray:
        return np.array([row for (row,) in self._db.execute("SELECT row FROM removed")], np.int64)

    def _number(self, pragma: str) -> int:
        return self._db.execute(f"PRAGMA {pragma}").fetchone()[0]
