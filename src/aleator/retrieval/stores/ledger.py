"""The SQLite file of an index folder: ids, metadata, settings, and the name of the current vector file.

It also lists the items that were added and removed since that file was written. So adding and removing are one
transaction here, and write no other file. SQLite recovers by itself when a process is killed.

Every row has a digest of its values, which is compared when the row is read.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aleator.foundation import DamagedFileError, reject, require
from aleator.retrieval.items import Items, decode_id, sum_of
from aleator.retrieval.stores.checksums import row_digest

WAY_OUT = (
    "restore the folder from a copy, or run `aleator index repair`, with --from POSTERIORS to bring lost vectors back"
)
_APPLICATION_ID = 0x616C6561  # "alea", in the header of the file
_FORMAT = 1
_BLOCK = 10_000  # rows written at a time
_TIMEOUT = 60.0  # seconds to wait for a transaction of another process
_SCHEMA = """
CREATE TABLE config (key TEXT PRIMARY KEY, value TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, note TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE vectors (file TEXT NOT NULL, sha256 TEXT NOT NULL, rows BLOB NOT NULL, kappas BLOB NOT NULL,
                      weights BLOB NOT NULL, checks BLOB NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE added (row INTEGER PRIMARY KEY, kappa REAL NOT NULL, mu BLOB NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY, digest INTEGER NOT NULL);
"""
# What a row of each table holds, for errors.
_ROWS = {
    "config": "a setting",
    "items": "the id or the metadata of an item",
    "vectors": "the list of vectors",
    "added": "an item added since the last save",
    "removed": "the number of an item removed since the last save",
}


class VectorFile(NamedTuple):
    """A vector file, with what is known of the vector at each position."""

    file: str
    sha256: str
    rows: np.ndarray  # (n,) int64, of the items
    kappa: np.ndarray  # (n,) float32
    weight: np.ndarray | None  # (n,) float32; None for items of one mode
    checks: np.ndarray  # (n,) int64, see `vector_checks`


class Ledger:
    """One SQLite database. Call methods that write inside `transaction`.

    Args:
        path: The file. None makes a temporary database that disappears with the process.
    """

    def __init__(self, path: Path | None):
        self.path = path
        with sqlite_errors(path):
            self._db = sqlite3.connect(
                "" if path is None else path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            self._status = None if path is None else os.stat(path)
            self._is_sound = path is None
            try:
                self._db.execute("PRAGMA synchronous = FULL")
                if path is None:
                    self._db.executescript(_SCHEMA)
                    self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._db.execute(f"PRAGMA user_version = {_FORMAT}")
            except BaseException:
                self.close()
                raise

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a ledger. The empty file of a first save that was killed does not count."""
        if not path.is_file():
            return False
        with contextlib.closing(Ledger(path)) as ledger:
            return ledger._number("application_id") == _APPLICATION_ID

    def close(self) -> None:
        self._db.close()

    def in_place(self) -> bool:
        """Whether the file is still at its path: nobody has removed or replaced it. A ledger in memory always is."""
        if self.path is None or self._status is None:
            return True
        try:
            return os.path.samestat(self._status, os.stat(self.path))
        except OSError:
            return False

    def copy_to(self, other: "Ledger") -> None:
        """Replace the content of another ledger, in one transaction of that ledger."""
        self._db.backup(other._db)

    def verify(self) -> None:
        """Read everything. Raise unless the database is sound, and every row matches its digest."""
        self._is_sound = False
        self.require_sound()
        for table in _ROWS:
            for _ in self._rows(table):
                pass

    def require_sound(self) -> None:
        """Raise if SQLite finds damage. It looks once, and takes a second or two for a million items.

        Ids are looked up in an index of SQLite, whose rows have no digest. So an id that is not there may be damaged.
        """
        if not self._is_sound:
            (state,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise self.damage(str(state).replace("\n", " "))
            self._is_sound = True

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
        problem = f"is in format {written}, and this release reads format {_FORMAT}"
        require(written == _FORMAT, "location", str(folder), problem, "open it with the release that wrote it")

    def setting(self, key: str) -> Any:
        """Read a setting."""
        for _, text in self._rows("config", "WHERE key = ?", key):
            with contextlib.suppress(ValueError):
                return json.loads(text)
        raise self.damage(f"the setting {key!r} is missing or cannot be read")

    def configure(self, key: str, value: Any) -> None:
        """Write a setting."""
        self._db.execute("DELETE FROM config WHERE key = ?", (key,))
        self._insert("config", [(key, json.dumps(value))])

    def record(self, items: Items) -> np.ndarray:
        """Write ids and metadata of new items, and return their rows (n,)."""
        first = self.setting("next_row")
        rows = np.arange(first, first + len(items))
        try:
            for start in range(0, len(items), _BLOCK):
                block = slice(start, start + _BLOCK)
                lines = zip(rows[block].tolist(), items.keys[block], items.metadata_json[block], strict=True)
                self._insert("items", lines)
        except sqlite3.IntegrityError:
            existing = self.find(list(items.keys), below=first)
            duplicate = next(key for key in items.keys if key in existing)
            reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")
        self.configure("next_row", first + len(items))
        self.configure("state", (self.setting("state") + sum_of(items.digests())) % 2**64)
        return rows

    def append(self, rows: np.ndarray, items: Items) -> None:
        """Write vectors of items that the current vector file does not have."""
        kappa, vectors = items.kappa, list(items.mu)
        if items.weight is not None and items.owner is not None:
            # One line for each item: rows of weight, kappa and mu, one for each component.
            packed = np.column_stack([items.weight, items.kappa, items.mu])
            first = np.searchsorted(items.owner, np.arange(len(items)))
            kappa, vectors = kappa[first], np.split(packed, first[1:]) if len(items) else []
        self._insert("added", zip(rows.tolist(), kappa.tolist(), map(np.ndarray.tobytes, vectors), strict=True))

    def delete(self, rows: list[int], digests: int) -> None:
        """Remove items. `digests` is the sum of the digests of their vectors."""
        self.configure("state", (self.setting("state") - digests) % 2**64)
        self._db.execute("DELETE FROM items WHERE row IN (SELECT value FROM json_each(?))", (json.dumps(rows),))
        self._insert("removed", ((row,) for row in rows))

    def find(self, keys: list[str], below: int = 2**62) -> dict[str, int]:
        """Rows by key, for the keys that the ledger holds, in rows below a limit."""
        select = "SELECT i.key, i.row FROM json_each(?) AS k JOIN items AS i ON i.key = k.value"
        return dict(self._db.execute(f"{select} WHERE i.row < ?", (json.dumps(keys), below)))

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Key and metadata as JSON text, by row."""
        listed = json.dumps(np.unique(rows).tolist())
        found = self._rows("items", "WHERE row IN (SELECT value FROM json_each(?))", listed)
        return {row: (key, metadata) for row, key, metadata in found}

    def count_items(self) -> int:
        """Number of items."""
        return self._db.execute("SELECT count(*) FROM items").fetchone()[0]

    def set_vector_file(self, vector_file: VectorFile, removed: np.ndarray) -> None:
        """Make a vector file the current one. It may still hold `removed` rows."""
        for table in ("vectors", "added", "removed"):
            self._db.execute(f"DELETE FROM {table}")
        rows, kappa = vector_file.rows.astype(np.int64), vector_file.kappa.astype(np.float32)
        weight = b"" if vector_file.weight is None else vector_file.weight.astype(np.float32).tobytes()
        blobs = rows.tobytes(), kappa.tobytes(), weight, vector_file.checks.tobytes()
        self._insert("vectors", [(vector_file.file, vector_file.sha256, *blobs)])
        self._insert("removed", ((row,) for row in np.unique(removed).tolist()))

    def vector_file(self) -> VectorFile:
        """The current vector file."""
        for file, sha256, *blobs in self._rows("vectors"):
            rows, checks = (self._numbers(blob, np.int64) for blob in (blobs[0], blobs[3]))
            kappa, weight = (self._numbers(blob, np.float32) for blob in (blobs[1], blobs[2]))
            return VectorFile(str(file), str(sha256), rows, kappa, weight if len(weight) else None, checks)
        raise self.damage("it does not name its vectors")

    def added(self, dim: int, mixtures: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Rows (n,), kappas (n,), directions (n, D) and weights (n,) that the current vector file does not have."""
        added = list(self._rows("added", "ORDER BY row"))
        width = dim + 2 if mixtures else dim
        counts = [len(mu) / (4 * width) if isinstance(mu, bytes) else 0 for *_, mu in added]
        if any(count < 1 or count % 1 or (count > 1 and not mixtures) for count in counts):
            raise self.damage("the direction of an added item has another dimension")
        if not all(isinstance(kappa, int | float) for _, kappa, _ in added):
            raise self.damage("the certainty of an added item is not a number")
        rows = np.repeat(np.array([row for row, _, _ in added], np.int64), np.array(counts, np.int64))
        numbers = np.frombuffer(b"".join(mu for *_, mu in added), np.float32).reshape(-1, width)
        if mixtures:
            return rows, numbers[:, 1], numbers[:, 2:], numbers[:, 0]
        return rows, np.array([kappa for _, kappa, _ in added], np.float32), numbers, None

    def removed(self) -> np.ndarray:
        """Rows (n,) of removed items that the current vector file still has."""
        return np.array([row for (row,) in self._rows("removed")], np.int64)

    def damage(self, problem: str) -> DamagedFileError:
        """The error for damage of this ledger."""
        return DamagedFileError(self.path or "the ledger in memory", problem, WAY_OUT)

    def _insert(self, table: str, lines: Iterable[tuple]) -> None:
        """Write rows with their digests."""
        checked = [(*line, row_digest(*line)) for line in lines]
        if checked:
            self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(checked[0]))})", checked)

    def _rows(self, table: str, where: str = "", *parameters: Any) -> Iterator[list]:
        """Rows of a table, without their digests, which they match."""
        for *values, digest in self._db.execute(f"SELECT * FROM {table} {where}", parameters):
            if row_digest(*values) != digest:
                about = f" (row {values[0]})" if table == "items" else ""
                raise self.damage(f"{_ROWS[table]} does not match its checksum{about}")
            yield values

    def _numbers(self, data: Any, dtype: type[np.generic]) -> np.ndarray:
        """An array from a blob."""
        if not isinstance(data, bytes) or len(data) % np.dtype(dtype).itemsize:
            raise self.damage("its list of vectors is cut short")
        return np.frombuffer(data, dtype)

    def _number(self, pragma: str) -> int:
        return self._db.execute(f"PRAGMA {pragma}").fetchone()[0]


@contextlib.contextmanager
def sqlite_errors(path: Path | None) -> Iterator[None]:
    """Errors of SQLite as errors about the index in a folder. `path` is the ledger; None for one in memory."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise ValueError("the index is closed; open it again") from error
    except sqlite3.Error as error:
        if path is None:
            raise OSError(f"the temporary file of the index: {error}; free some space") from error
        raise _translated(error, path) from error
    except UnicodeDecodeError as error:  # a text in a row, or in what SQLite says about it
        if path is None:
            raise
        raise DamagedFileError(path, "a text is not UTF-8", WAY_OUT) from error


def _translated(error: sqlite3.Error, path: Path) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    environment = {
        "SQLITE_BUSY": "another process is writing for longer than this one waits; repeat it later",
        "SQLITE_LOCKED": "another process is writing for longer than this one waits; repeat it later",
        "SQLITE_FULL": "the disk is full, and nothing was changed; free some space and repeat it",
        "SQLITE_READONLY": "it cannot be written, and nothing was changed; check its permissions",
        "SQLITE_CANTOPEN": "it cannot be opened; check the folder and its permissions",
        "SQLITE_PERM": "it cannot be opened; check its permissions",
        "SQLITE_IOERR": "the disk reports an error, and nothing was changed; check the disk",
        "SQLITE_NOMEM": "there is not enough memory; free some",
    }
    for prefix, meaning in environment.items():
        if name.startswith(prefix):
            return OSError(f"{path}: {meaning}")
    return DamagedFileError(path, str(error).replace("\n", " "), WAY_OUT)
