"""The ledger of an index on Lance, which says what the index holds. Here: a table of Lance with one row.

Lance commits optimistically: two writers may append at the same time, and neither knows of the other. So the items
alone cannot keep ids unique. The ledger can. A change is made of the state that was read, and takes effect only if the
ledger still has this state (compare and swap). Otherwise another writer was faster, and the change is made again from
the new state.

An index on an object store has a table as its ledger; in a folder the ledger is a file for each state
(`folder_ledger.py`). The row of the table has a number that grows by one. A change replaces the row if its number
is still the one that was read, in one commit of Lance. Of two writers who replace the row, Lance lets one win. The
other's condition is tried again on the new row, does not hold, and nothing happens. (Inserting a row n + 1 unless there
is one would not do: a writer that is two changes late finds none.)
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pyarrow as pa

from aleator.foundation import reject
from aleator.retrieval.stores.lance.place import ConflictError, Place
from aleator.retrieval.stores.lance.state import State, read_state

LEDGER = "ledger"
_ATTEMPTS = 200  # changes that other writers may make before one of ours; each attempt sees one of theirs succeed
_REMEMBERED = 64  # changes whose tokens are kept
_SCHEMA = pa.schema([("slot", pa.int64()), ("number", pa.int64()), ("state", pa.string())])


class Ledger(ABC):
    """The ledger at a place."""

    state: State
    version: int  # number of this version of the index

    def __init__(self, place: Place):
        self._place = place
        self._read()

    @abstractmethod
    def _read(self) -> None:
        """Read the state; the newest, unless the place names an older version."""

    @abstractmethod
    def _has_changed(self) -> bool:
        """Whether there is a newer state than the one that was read."""

    @abstractmethod
    def _put(self, old: State, new: State) -> None:
        """Make `new` the state, if `old` still is. If not, nothing happens."""

    def since(self, number: int) -> list[State]:
        """The states after the one with a number until the current one, as far as they are at hand."""
        return [self.state]

    @abstractmethod
    def forget(self, age: timedelta) -> None:
        """Remove states that are older than this, where that saves much. The newest state stays."""

    def refresh(self) -> State:
        """The newest state; the state of an older version never changes."""
        if self._place.version is None and self._has_changed():
            self._read()
        return self.state

    def swap(self, old: State, **changes: Any) -> State | None:
        """Change the state `old`. None: it is not the current state any more, and nothing happened."""
        token = secrets.token_hex(8)
        tokens = [*old.tokens[-_REMEMBERED + 1 :], token]
        new = replace(old, number=old.number + 1, tokens=tokens, **changes)
        self._put(old, new)
        # An answer that was lost on the way looks like a conflict. The token says what happened.
        return new if token in self.refresh().tokens else None

    def change(self, make: Callable[[State], dict[str, Any]]) -> State:
        """Apply `make`, which returns changes of the state that it gets, until no other writer comes in between."""
        for _ in range(_ATTEMPTS):
            state = self.refresh()
            new = self.swap(state, **make(state))
            if new is not None:
                return new
        raise ConflictError(f"{self._place}: too many others write at the same time; repeat it")


class TableLedger(Ledger):
    """A ledger that is a table of Lance: on an object store, and in folders of earlier releases."""

    def __init__(self, place: Place, table: Any):
        self._table = table
        super().__init__(place)

    @classmethod
    def create(cls, place: Place, connection: Any, state: State) -> "TableLedger":
        """Make the ledger. Of several writers who do this, one succeeds."""
        with place.plain_errors():
            try:
                table = connection.create_table(LEDGER, _row(state), mode="create")
            except ValueError as error:
                if "already exists" not in str(error).lower():
                    raise
                table = None
        if table is None:
            refuse_second(place)
        return cls(place, table)

    @classmethod
    def find(cls, place: Place, connection: Any) -> "TableLedger | None":
        """The ledger, or None if there is none."""
        with place.plain_errors():
            if LEDGER not in connection.list_tables().tables:
                return None
            table = connection.open_table(LEDGER)
            known = [] if place.version is None else [version["version"] for version in table.list_versions()]
        if place.version is not None:
            require_known(place, known)
            with place.plain_errors():
                table.checkout(place.version)
        return cls(place, table)

    def forget(self, age: timedelta) -> None:
        pass  # versions of one row are small

    def _has_changed(self) -> bool:
        with self._place.plain_errors():
            self._table.checkout_latest()
            return self._table.version != self.version

    def _put(self, old: State, new: State) -> None:
        try:
            with self._place.plain_errors():
                merge = self._table.merge_insert("slot")
                merge.when_matched_update_all(where=f"target.number = {old.number}").execute(_row(new))
        except ConflictError:
            pass

    def _read(self) -> None:
        with self._place.plain_errors():
            self.version = self._table.version
            rows = self._table.to_arrow().to_pylist()
        if len(rows) != 1 or not {"number", "state"} <= set(rows[0]):
            raise self._place.damaged(f"its ledger has {len(rows)} rows, or another one than it should have")
        self.state = read_state(self._place, rows[0]["state"], rows[0]["number"])


def refuse_second(place: Place) -> NoReturn:
    """Refuse to build an index where there is one."""
    reject("location", str(place), "already holds an index", "add to it, or pass replace=True")


def require_known(place: Place, known: list[int]) -> None:
    """Refuse a place that names another version than these."""
    if place.version not in known:
        problem = f"the index has the versions {known[0]} to {known[-1]}"
        reject("location", str(place), problem, "name one of them, or leave out the # for the newest")


def _row(state: State) -> pa.Table:
    return pa.table({"slot": [0], "number": [state.number], "state": [state.to_json()]}, schema=_SCHEMA)
