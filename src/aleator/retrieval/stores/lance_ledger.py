"""The ledger of an index on Lance: a table of one row that says what the index holds.

Lance commits optimistically: two writers may append at the same time, and neither knows of the other. So the items
alone cannot keep ids unique. The ledger can. A change is made of the state that was read, and takes effect only if the
ledger still has this state (compare and swap). Otherwise another writer was faster, and the change is made again from
the new state.

The row has a number that grows by one. A change replaces the row if its number is still the one that was read, in one
commit of Lance. Of two writers who replace the row, Lance lets one win. The other's condition is tried again on the new
row, does not hold, and nothing happens. (Inserting a row n + 1 unless there is one would not do: a writer that is two
changes late finds none.)
"""

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from aleator.foundation import BadArgumentError, DamagedFileError, reject, require
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.consistency import config_problem
from aleator.retrieval.stores.lance_place import ConflictError, Place

LEDGER = "ledger"
_ATTEMPTS = 200  # changes that other writers may make before one of ours; each attempt sees one of theirs succeed
_REMEMBERED = 64  # changes whose tokens are kept
FORMAT = 2  # with checksums; indexes in format 1 have none
_SINCE_2 = ("format", "totals", "files")  # fields that format 1 does not have
_SCHEMA = pa.schema([("slot", pa.int64()), ("number", pa.int64()), ("state", pa.string())])


@dataclass(frozen=True)
class State:
    """What an index holds.

    Args:
        number: Number of changes so far.
        table: Name of the table of items.
        version: A version of that table that has all of these items.
        next_row: Rows from here on were never given out.
        count: Number of items.
        config: Settings of the index.
        open: By token, rows (start, stop) that a writer is adding. They are not in the index yet. A writer that was
            killed leaves its entry, and its rows are never shown.
        removed: Rows (start, stop) that were removed from the index and are perhaps still in the table.
        partitions: Partitions of the vector index; 0 if there is none.
        tokens: Tokens of the last changes. A writer whose connection broke can see whether its change happened.
        format: Of the ledger and the table.
        totals: Sums of the checksums of all rows of the index (`lance_checksums.py`); nothing in format 1.
        files: SHA-256 of the files of the last save, by path; nothing in format 1 and on an object store.
    """

    number: int
    table: str
    version: int
    next_row: int
    count: int
    config: dict[str, Any]
    open: dict[str, tuple[int, int]] = field(default_factory=dict)
    removed: list[tuple[int, int]] = field(default_factory=list)
    partitions: int = 0
    tokens: list[str] = field(default_factory=list)
    format: int = 1
    totals: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> np.ndarray:
        """Rows (n, 2), start and stop, ascending, that are not in the index."""
        return np.array(sorted([*map(tuple, self.open.values()), *map(tuple, self.removed)]), np.int64).reshape(-1, 2)

    def shows(self, rows: np.ndarray) -> np.ndarray:
        """Whether rows (n,) of the table are in the index."""
        hidden = self.hidden
        shown = rows < self.next_row
        if len(hidden):
            before = np.searchsorted(hidden[:, 0], rows, side="right") - 1
            shown &= (before < 0) | (rows >= hidden[before, 1])
        return shown

    def to_json(self) -> str:
        """As JSON, with a checksum."""
        values = asdict(self)
        if self.format == 1:
            return json.dumps({name: value for name, value in values.items() if name not in _SINCE_2})
        return json.dumps({**values, "digest": _digest(values)})

    @classmethod
    def from_json(cls, text: str, place: Place) -> "State":
        """A state that `to_json` wrote. A ValueError, TypeError or KeyError if it did not."""
        values = json.loads(text)
        written = values.get("format", 1)
        if ("digest" in values or written != 1) and values.pop("digest") != _digest(values):
            raise place.damaged("its ledger does not match its checksum")
        problem = f"is in format {written}, and this release reads formats up to {FORMAT}"
        require(written <= FORMAT, "location", str(place), problem, "open it with the release that wrote it")
        return cls(**values)


class Ledger:
    """The ledger at a place."""

    def __init__(self, place: Place, table: Any):
        self._place = place
        self._table = table
        self.state = self._read()

    @classmethod
    def create(cls, place: Place, connection: Any, state: State) -> "Ledger":
        """Make the ledger. Of several writers who do this, one succeeds."""
        with place.plain_errors():
            try:
                table = connection.create_table(LEDGER, _row(state), mode="create")
            except ValueError as error:
                if "already exists" not in str(error).lower():
                    raise
                table = None
        if table is None:
            reject("location", str(place), "already holds an index", "add to it, or pass replace=True")
        return cls(place, table)

    @classmethod
    def find(cls, place: Place, connection: Any) -> "Ledger | None":
        """The ledger, or None if there is no index."""
        with place.plain_errors():
            if LEDGER not in connection.list_tables().tables:
                return None
            table = connection.open_table(LEDGER)
            if place.version is not None:
                known = [version["version"] for version in table.list_versions()]
                if place.version in known:
                    table.checkout(place.version)
        if place.version is not None and place.version not in known:
            problem = f"the index has the versions {known[0]} to {known[-1]}"
            reject("location", str(place), problem, "name one of them, or leave out the # for the newest")
        return cls(place, table)

    @property
    def version(self) -> int:
        """Number of this version of the index."""
        return self._seen

    def refresh(self) -> State:
        """The newest state; the state of an older version never changes."""
        if self._place.version is None:
            with self._place.plain_errors():
                self._table.checkout_latest()
                unchanged = self._table.version == self._seen
            if not unchanged:
                self.state = self._read()
        return self.state

    def swap(self, old: State, **changes: Any) -> State | None:
        """Change the state `old`. None: it is not the current state any more, and nothing happened."""
        token = secrets.token_hex(8)
        tokens = [*old.tokens[-_REMEMBERED + 1 :], token]
        new = replace(old, number=old.number + 1, tokens=tokens, **changes)
        try:
            with self._place.plain_errors():
                merge = self._table.merge_insert("slot")
                merge.when_matched_update_all(where=f"target.number = {old.number}").execute(_row(new))
        except ConflictError:
            pass
        # An answer that was lost on the way looks like a conflict. The token says what happened.
        return new if token in self._read_newest().tokens else None

    def change(self, make: Any) -> State:
        """Apply `make`, which returns changes of the state that it gets, until no other writer comes in between."""
        for _ in range(_ATTEMPTS):
            state = self.refresh()
            new = self.swap(state, **make(state))
            if new is not None:
                return new
        raise ConflictError(f"{self._place}: too many others write at the same time; repeat it")

    def _read_newest(self) -> State:
        with self._place.plain_errors():
            self._table.checkout_latest()
        self.state = self._read()
        return self.state

    def _read(self) -> State:
        with self._place.plain_errors():
            self._seen = self._table.version
            rows = self._table.to_arrow().to_pylist()
        try:
            ((number, text),) = [[row["number"], row["state"]] for row in rows]
            state = State.from_json(text, self._place)
            problem = config_problem(state.config) if number == state.number else "its ledger has another number"
        except (DamagedFileError, BadArgumentError):
            raise
        except (TypeError, ValueError, KeyError, AttributeError):
            problem = f"its ledger has {len(rows)} rows, or one that cannot be read"
        if problem is not None:
            raise self._place.damaged(problem)
        return state


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _row(state: State) -> pa.Table:
    return pa.table({"slot": [0], "number": [state.number], "state": [state.to_json()]}, schema=_SCHEMA)


def gone(place: Place, problem: str) -> IndexGoneError:
    """The error for an index that was removed or replaced."""
    return IndexGoneError(f"{place}: {problem}")
