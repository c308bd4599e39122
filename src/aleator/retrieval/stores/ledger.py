"""The SQLite file of an index folder: ids, metadata, settings, and the name of the current vector file.

It also lists the items that were added and removed since that file was written. So adding and removing are one
transaction here, and write no other file. SQLite recovers by itself when a process is killed.

Every table has a checksum (see `ledger_checks`). Ledgers of older releases have none until they are first changed.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aleator.foundation import DamagedFileError, reject, require
from aleator.retrieval.items import Items, decode_id, is_readable, sum_of
from aleator.retrieval.stores.ledger_checks import (
    WAY_OUT,
    add_to_total,
    has_totals,
    item_digest,
    row_digest,
    set_total,
    sqlite_errors,
    table_names,
    table_total,
    verify_tables,
)
from aleator.retrieval.stores.seal import LedgerReader, sealed_sha256, write_seal

_APPLICATION_ID = 0x616C6561  # "alea", in the header of the file
# Formats 1 and 2 have no checksums. Items of formats 2 and 4 have several modes, with weights.
_FORMATS = (1, 2, 3, 4)
_FORMAT, _MIXTURE_FORMAT = 3, 4
_MIXTURE_FORMATS = (2, 4)
_BLOCK = 10_000  # rows written at a time
_TIMEOUT = 60.0  # seconds to wait for a transaction of another process
_SCHEMA = """
CREATE TABLE config (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, note TEXT NOT NULL, digest INTEGER);
CREATE TABLE vectors (file TEXT NOT NULL, sha256 TEXT NOT NULL, rows BLOB NOT NULL, kappas BLOB NOT NULL);
CREATE TABLE added (row INTEGER PRIMARY KEY, kappa REAL NOT NULL, mu BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
"""
_CHECKS = """
CREATE TABLE checks (name TEXT PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE parts (bytes INTEGER NOT NULL, digests BLOB NOT NULL);
"""


class VectorFile(NamedTuple):
    """A vector file, with the row and the kappa of the item at each position; for items of several modes the weight."""

    file: str
    sha256: str
    rows: np.ndarray  # (n,) int64
    kappa: np.ndarray  # (n,) float32
    weight: np.ndarray | None  # (n,) float32
    size: int | None = None  # of the file, in bytes
    digests: bytes | None = None  # see VectorParts; None in files of older releases


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
            self._reader = None if path is None else LedgerReader(path)
            try:
                self._db.execute("PRAGMA synchronous = FULL")
                if path is None:
                    self._db.executescript(_SCHEMA + _CHECKS)
                    self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._set_format(_FORMAT)
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
        if self._reader is not None:
            self._reader.close()

    def in_place(self) -> bool:
        """Whether the file is still at its path. A ledger in memory always is."""
        return self._reader is None or self._reader.in_place()

    def copy_to(self, other: "Ledger") -> None:
        """Replace the content of another ledger, in one transaction of that ledger."""
        self._db.backup(other._db)

    def seal(self, config: dict[str, Any]) -> None:
        """Write the seal of the file; inside a transaction that has changed nothing so far."""
        if self.path is not None and self._reader is not None:
            sha256 = self._reader.sha256()
            if sealed_sha256(self.path) != sha256:
                write_seal(self.path, sha256, config)

    def verify(self, thorough: bool = False) -> None:
        """Raise unless the file is as it was written; inside a transaction. A seal that fits is enough.

        Args:
            thorough: Whether to verify every row, also where the seal fits.
        """
        if self.path is None or self._reader is None:
            return
        if thorough or sealed_sha256(self.path) != self._reader.sha256():
            verify_tables(self._db, self.path)

    def upgrade(self) -> None:
        """Give a ledger of an older release its checksums; inside a transaction that writes."""
        if has_totals(self._db):
            return
        mixture = self._number("user_version") in _MIXTURE_FORMATS
        if "digest" not in [column for _, column, *_ in self._db.execute("PRAGMA table_info(items)")]:
            self._db.execute("ALTER TABLE items ADD COLUMN digest INTEGER")
        self._db.create_function("item_digest", 3, item_digest, deterministic=True)
        self._db.execute("UPDATE items SET digest = item_digest(row, key, note)")
        for statement in _CHECKS.strip().split(";\n"):
            self._db.execute(statement)
        for table in table_names(self._db):
            set_total(self._db, table, table_total(self._db, table))
        self._set_format(_MIXTURE_FORMAT if mixture else _FORMAT)

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
        problem = f"is in format {written}, and this release reads formats up to {_FORMATS[-1]}"
        known = written in _FORMATS
        require(known, "location", str(folder), problem, "open it with the release that wrote it")

    def setting(self, key: str) -> Any:
        """Read a setting."""
        text = self._setting_text(key)
        try:
            return json.loads(text or "")
        except ValueError:
            raise self.damage(f"the setting {key!r} is missing or cannot be read") from None

    def configure(self, key: str, value: Any) -> None:
        """Write a setting."""
        before, text = self._setting_text(key), json.dumps(value)
        self._db.execute("INSERT OR REPLACE INTO config VALUES (?, ?)", (key, text))
        replaced = 0 if before is None else row_digest("config", key, before)
        add_to_total(self._db, "config", row_digest("config", key, text) - replaced)

    def record(self, items: Items) -> np.ndarray:
        """Write ids and metadata of new items, and return their rows (n,)."""
        first = self.setting("next_row")
        rows, total = np.arange(first, first + len(items)), 0
        try:
            for start in range(0, len(items), _BLOCK):
                block = slice(start, start + _BLOCK)
                lines = zip(rows[block].tolist(), items.keys[block], items.metadata_json[block], strict=True)
                checked = [(*line, item_digest(*line)) for line in lines]
                self._db.executemany("INSERT INTO items (row, key, note, digest) VALUES (?, ?, ?, ?)", checked)
                total += sum(digest for *_, digest in checked)
        except sqlite3.IntegrityError:
            existing = self.find(list(items.keys), below=first)
            duplicate = next(key for key in items.keys if key in existing)
            reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")
        add_to_total(self._db, "items", total)
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
        lines = list(zip(rows.tolist(), kappa.tolist(), map(np.ndarray.tobytes, vectors), strict=True))
        self._db.executemany("INSERT INTO added VALUES (?, ?, ?)", lines)
        add_to_total(self._db, "added", sum(row_digest("added", *line) for line in lines))

    def delete(self, rows: list[int], digests: int) -> None:
        """Remove items. `digests` is the sum of the digests of their vectors."""
        self.configure("state", (self.setting("state") - digests) % 2**64)
        listed = json.dumps(rows)
        select = "SELECT row, key, note FROM items WHERE row IN (SELECT value FROM json_each(?))"
        add_to_total(self._db, "items", -sum(item_digest(*item) for item in self._db.execute(select, (listed,))))
        add_to_total(self._db, "removed", sum(row_digest("removed", row) for row in rows))
        self._db.execute("DELETE FROM items WHERE row IN (SELECT value FROM json_each(?))", (listed,))
        self._db.execute("INSERT INTO removed SELECT value FROM json_each(?)", (listed,))

    def find(self, keys: list[str], below: int = 2**62) -> dict[str, int]:
        """Rows by key, for the keys that the ledger holds, in rows below a limit."""
        select = "SELECT i.key, i.row FROM json_each(?) AS k JOIN items AS i ON i.key = k.value"
        return dict(self._db.execute(f"{select} WHERE i.row < ?", (json.dumps(keys), below)))

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Key and metadata as JSON text, by row. An item that does not match its checksum is damage."""
        checked = has_totals(self._db)
        digest = "i.digest" if checked else "NULL"
        select = f"SELECT i.row, i.key, i.note, {digest} FROM json_each(?) AS k JOIN items AS i ON i.row = k.value"
        described = {}
        for row, key, metadata, expected in self._db.execute(select, (json.dumps(sorted(set(rows.tolist()))),)):
            if expected is not None and item_digest(row, key, metadata) != expected:
                raise self.damage(f"the id or the metadata of item {row} do not match their checksum")
            if not checked and not is_readable(key, metadata):  # of an older release
                raise self.damage(f"the id or the metadata of item {row} cannot be read")
            described[row] = (key, metadata)
        return described

    def count_items(self) -> int:
        """Number of items."""
        return self._db.execute("SELECT count(*) FROM items").fetchone()[0]

    def set_vector_file(self, vector_file: VectorFile, removed: np.ndarray) -> None:
        """Make a vector file the current one. It may still hold `removed` rows."""
        for table in ("vectors", "added", "removed", "parts"):
            self._db.execute(f"DELETE FROM {table}")
            set_total(self._db, table, 0)
        rows, kappa = vector_file.rows.astype(np.int64), vector_file.kappa.astype(np.float32)
        self._insert("vectors", vector_file.file, vector_file.sha256, rows.tobytes(), kappa.tobytes())
        if vector_file.digests is not None:
            self._insert("parts", vector_file.size, vector_file.digests)
        if vector_file.weight is not None:
            self._db.execute("CREATE TABLE IF NOT EXISTS weights (weights BLOB NOT NULL)")
            self._db.execute("DELETE FROM weights")
            set_total(self._db, "weights", 0)
            self._insert("weights", vector_file.weight.astype(np.float32).tobytes())
            self._set_format(_MIXTURE_FORMAT)
        still_there = np.unique(removed).tolist()
        self._db.executemany("INSERT INTO removed VALUES (?)", ((row,) for row in still_there))
        add_to_total(self._db, "removed", sum(row_digest("removed", row) for row in still_there))

    def vector_file(self) -> VectorFile:
        """The current vector file."""
        line = self._db.execute("SELECT file, sha256, rows, kappas FROM vectors").fetchone()
        if line is None:
            raise self.damage("it does not name its vectors")
        file, sha256, rows, kappas = line
        weight, parts = None, (None, None)
        if self._number("user_version") in _MIXTURE_FORMATS:
            weights = self._db.execute("SELECT weights FROM weights").fetchone()
            weight = self._numbers("weights", b"" if weights is None else weights[0], np.float32)
        if has_totals(self._db):
            parts = self._db.execute("SELECT bytes, digests FROM parts").fetchone() or parts
        rows, kappa = self._numbers("rows", rows, np.int64), self._numbers("kappas", kappas, np.float32)
        return VectorFile(str(file), str(sha256), rows, kappa, weight, *parts)

    def added(self, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Rows (n,), kappas (n,), directions (n, D) and weights (n,) that the current vector file does not have."""
        added = self._db.execute("SELECT row, kappa, mu FROM added ORDER BY row").fetchall()
        rows = np.array([row for row, _, _ in added], np.int64)
        mixture = self._number("user_version") in _MIXTURE_FORMATS
        width = 4 * (dim + 2 if mixture else dim)
        for *_, mu in added:
            components = len(mu) / width if isinstance(mu, bytes) else 0
            if components < 1 or components % 1 or (components > 1 and not mixture):
                raise self.damage("the direction of an added item has another dimension")
        numbers = np.frombuffer(b"".join(mu for _, _, mu in added), np.float32)
        if mixture:
            packed = numbers.reshape(-1, dim + 2)
            counts = [len(mu) // (4 * (dim + 2)) for _, _, mu in added]
            return np.repeat(rows, counts), packed[:, 1], packed[:, 2:], packed[:, 0]
        if not all(isinstance(kappa, int | float) for _, kappa, _ in added):
            raise self.damage("the certainty of an added item is not a number")
        kappa = np.array([kappa for _, kappa, _ in added], np.float32)
        return rows, kappa, numbers.reshape(-1, dim), None

    def removed(self) -> np.ndarray:
        """Rows (n,) of removed items that the current vector file still has."""
        return np.array([row for (row,) in self._db.execute("SELECT row FROM removed")], np.int64)

    def damage(self, problem: str) -> DamagedFileError:
        """The error for damage of this ledger."""
        return DamagedFileError(self.path or "the ledger in memory", problem, WAY_OUT)

    def _insert(self, table: str, *values: object) -> None:
        self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        add_to_total(self._db, table, row_digest(table, *values))

    def _setting_text(self, key: str) -> str | None:
        line = self._db.execute("SELECT value FROM config WHERE key = ?", (key,)).fetchone()
        return None if line is None else line[0]

    def _set_format(self, written: int) -> None:
        self._db.execute(f"PRAGMA user_version = {written}")
        set_total(self._db, "format", written)

    def _numbers(self, name: str, data: Any, dtype: type[np.generic]) -> np.ndarray:
        """An array from a blob."""
        if not isinstance(data, bytes) or len(data) % np.dtype(dtype).itemsize:
            raise self.damage(f"its {name} are cut short")
        return np.frombuffer(data, dtype)

    def _number(self, pragma: str) -> int:
        return self._db.execute(f"PRAGMA {pragma}").fetchone()[0]
