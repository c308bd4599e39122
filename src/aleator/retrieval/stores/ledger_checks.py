"""Checksums inside a ledger, and what the errors of SQLite mean.

The table `checks` has a total for each other table: the sum of the digests of its rows. A change adds and subtracts the
digests of the rows that it writes, in the same transaction. So the totals cost nothing to keep, and a row that is lost,
altered or added by damage does not go unnoticed.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from aleator.foundation import DamagedFileError

WAY_OUT = (
    "restore the folder from a copy, or run `aleator index repair`, with --from POSTERIORS to bring lost vectors back"
)
_TOTAL_BITS = 62
# What the tables hold, for errors.
_TABLES = {
    "config": "the settings",
    "items": "the ids and metadata",
    "vectors": "the numbers and kappas of the items",
    "weights": "the weights of the modes",
    "added": "the items added since the last save",
    "removed": "the items removed since the last save",
    "parts": "the checksums of the vectors",
}


def row_digest(table: str, *values: object) -> int:
    """A digest of 48 bits of one row."""
    total = hashlib.blake2b(table.encode(), digest_size=6)
    for value in values:
        total.update(b"\0")
        total.update(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass"))
    return int.from_bytes(total.digest())


def item_digest(row: int, key: str, metadata: str) -> int:
    """`row_digest` of an item; faster, because there are many."""
    return int.from_bytes(hashlib.blake2b(f"{row}\0{key}\0{metadata}".encode(), digest_size=6).digest())


def add_to_total(db: sqlite3.Connection, table: str, change: int) -> None:
    """Add the digests of new rows to the total of a table, or subtract those of removed rows."""
    statement = f"""INSERT INTO checks VALUES (?, ? & {2**_TOTAL_BITS - 1}) ON CONFLICT (name)
                    DO UPDATE SET total = (total + excluded.total) & {2**_TOTAL_BITS - 1}"""
    change %= 2**_TOTAL_BITS
    db.execute(statement, (table, change))


def set_total(db: sqlite3.Connection, table: str, total: int) -> None:
    """Set the total of a table whose rows have been replaced."""
    db.execute("INSERT OR REPLACE INTO checks VALUES (?, ?)", (table, total % 2**_TOTAL_BITS))


def table_total(db: sqlite3.Connection, table: str) -> int:
    """The total of a table, from its rows."""
    if table == "items":
        digests: Iterable[int] = (item_digest(*row) for row in db.execute("SELECT row, key, note FROM items"))
    else:
        digests = (row_digest(table, *row) for row in db.execute(f"SELECT * FROM {table}"))
    return sum(digests) % 2**_TOTAL_BITS


def table_names(db: sqlite3.Connection) -> list[str]:
    """The tables of a ledger that have a total."""
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in names if name in _TABLES]


def verify_tables(db: sqlite3.Connection, path: Path) -> None:
    """Raise unless the file is a sound database, and every table matches its total.

    A ledger of an older release has no totals. Then the database alone is verified.
    """
    (state,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if state != "ok":
        raise DamagedFileError(path, str(state).replace("\n", " "), WAY_OUT)
    if not has_totals(db):
        return
    totals = dict(db.execute("SELECT name, total FROM checks"))
    (written,) = db.execute("PRAGMA user_version").fetchone()
    if totals.pop("format", written) != written:
        raise DamagedFileError(path, "the number of its format does not match its checksum", WAY_OUT)
    for table in sorted({*table_names(db), *totals}, key=str):
        if table not in _TABLES or table not in totals or table_total(db, table) != totals[table]:
            content = _TABLES.get(table, "its checksums")
            raise DamagedFileError(path, f"{content} do not match their checksum", WAY_OUT)


def has_totals(db: sqlite3.Connection) -> bool:
    """Whether the ledger has checksums; those of older releases do not."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'checks'").fetchone() is not None


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
