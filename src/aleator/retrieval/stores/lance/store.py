"""A store on Lance: in a folder or on an object store, shared by many readers and writers on many machines.

A place holds a table of LanceDB and a ledger. The table has the items with their vectors. The ledger
(`ledger.py`) says which of them are in the index, and decides between writers:

- `insert` takes numbers for its rows in the ledger, appends the items, and shows them by one change of the ledger;
- `delete` hides the items by one change of the ledger, and then removes them from the table;
- `create` with `replacing` writes a new table, and makes it current by one change of the ledger.

So a change happens completely or not at all, also when a writer is killed. An id is never stored twice: a change is
made again if another writer came in between. A search reads the version of the table that one state of the ledger names
(`reading.py`).

Lance does not verify checksums. The rows have checksums of their own (`checksums.py`), and so have the files of
an index in a folder (`files.py`).
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from aleator.foundation import reject, require
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.recall import tune_recall
from aleator.retrieval.stores.lance.building import TABLES, bring_up_to_date, drop_abandoned, drop_old_versions
from aleator.retrieval.stores.lance.checksums import Totals, combined
from aleator.retrieval.stores.lance.files import table_files
from aleator.retrieval.stores.lance.folder_ledger import create_ledger, find_ledger
from aleator.retrieval.stores.lance.items import batches, schema
from aleator.retrieval.stores.lance.place import ConflictError, Place
from aleator.retrieval.stores.lance.reading import LanceReader
from aleator.retrieval.stores.lance.state import FORMAT, State, gone

_TRIES = 5  # of compaction and of appending, while others write


class LanceStore(LanceReader):
    """A `Store` on Lance. `LanceReader` has its arguments."""

    @classmethod
    def create(
        cls,
        location: str,
        items: Items,
        config: dict[str, Any],
        replacing: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> "LanceStore":
        """Write the items, and make them the index at this location in one step."""
        place = Place.parse(location, options)
        require(place.version is None, "location", str(place), "an older version cannot change", "leave out the #")
        connection = place.connect()
        ledger = find_ledger(place, connection)
        if ledger is not None and not replacing:
            reject("location", str(place), "already holds an index", "add to it, or pass replace=True")
        name = TABLES + secrets.token_hex(8)
        columns = schema(config["dim"], config.get("modes", 1) > 1, checked=True)
        totals: Totals = {}
        with place.plain_errors():
            reader = pa.RecordBatchReader.from_batches(columns, batches(items, 0, columns, totals))
            table = connection.create_table(name, reader, schema=columns)
            version = table.version
        files = table_files(place, name, version, {})
        first = State(0, name, version, len(items), len(items), config, format=FORMAT, totals=totals, files=files)
        if ledger is None:
            ledger = create_ledger(place, connection, first)
        else:
            fresh = {key: value for key, value in vars(first).items() if key not in ("number", "tokens")}
            ledger.change(lambda _: fresh)
        store = cls(place, connection, ledger)
        store.save(None)
        return store

    @classmethod
    def open(cls, location: str, options: Mapping[str, str] | None = None) -> "LanceStore":
        """Open an index that `create` made."""
        place = Place.parse(location, options)
        connection = place.connect()
        ledger = find_ledger(place, connection)
        if ledger is None:
            reject("location", str(place), "holds no index", "build one there first")
        return cls(place, connection, ledger)

    def holds(self, items: Items) -> bool:
        """Whether the index holds these items, as `create` writes them, and no others."""
        with self._up_to_date() as state:
            same = len(items) == state.count and items.mu.shape[1] == self.config["dim"]
            if not same or (items.weight is not None) != self._items.mixtures or not self._items.checked:
                return False
            totals: Totals = {}
            for _ in batches(items, 0, self._items.schema, totals):
                pass  # the totals grow
            return totals == state.totals

    def reserve_ids(self, count: int) -> list[int]:
        with self._changing():
            start = self._ledger.change(lambda state: {"next_row": state.next_row + count}).next_row - count
            return list(range(start, start + count))

    def insert(self, items: Items) -> None:
        count = len(items)
        with self._changing():
            self._require_dim(items.mu)
            self._refuse_existing(items)
            table = self._name
            token, start, totals = self._append(items)

            def show(state: State) -> dict[str, Any]:
                self._require_table(state, table)
                self._load(state)
                self._refuse_existing(items)
                shown = {"count": state.count + count, "totals": combined(state.totals, totals)}
                return {"open": _without(state.open, token), **shown, **self._newest(state)}

            try:
                self._ledger.change(show)
            except ValueError as refused:
                # Another writer added one of the ids meanwhile. The rows stay hidden, and need not stay in the table.
                # If they cannot be removed now, the caller must still learn why the items were refused.
                if not isinstance(refused, ConnectionError):
                    with contextlib.suppress(ConnectionError):
                        self._withdraw(table, token, (start, start + count))
                raise

    def delete(self, keys: list[str]) -> None:
        with self._changing():
            gone_rows: list[tuple[int, int]] = []

            def hide(state: State) -> dict[str, Any]:
                self._load(state)
                row_of_key, totals = self._found(keys)
                unknown = [key for key in keys if key not in row_of_key]
                if unknown:
                    reject("ids", decode_id(unknown[0]), "not in the index", "remove only items that it holds")
                gone_rows[:] = _ranges(np.array(list(row_of_key.values()), np.int64))
                left = {"count": state.count - len(keys), "totals": combined(state.totals, totals, -1)}
                return {"removed": [*state.removed, *gone_rows], **left}

            if keys:
                self._ledger.change(hide)
                self._clear()

    def configure(self, **changes: Any) -> None:
        with self._changing():
            self._ledger.change(lambda state: {"config": {**state.config, **changes}})
            self._load(self._ledger.state)

    def save(self, location: str | None = None) -> None:
        """Remove what killed writers left, compact the files, and bring the vector index up to date."""
        require(location is None, "location", location, "the index is on Lance", "build another one there")
        with self._changing() as state:
            if state.removed:
                self._clear()
            drop_abandoned(self._place, self._connection, state.table)
            self._to_latest(state)
            partitions = bring_up_to_date(self._items, state.partitions, state.count, state.config, _TRIES)

            def indexed(newest: State) -> dict[str, Any]:
                self._require_table(newest, state.table)
                return {"partitions": partitions, **self._newest(newest)}

            version = self._ledger.change(indexed).version
            drop_old_versions(self._items, self._ledger)  # only now, because others were reading the version before
            if self._items.table.version != version:
                self._ledger.change(indexed)
            self._load(self._ledger.state)
            report = tune_recall(self, self.config["recall"]) if partitions else None
            if report != self.config["report"]:
                self.configure(report=report)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        way_out = "open the newest version, without the #"
        require(self._place.version is None, "location", str(self._place), "an older version cannot change", way_out)
        with self._up_to_date() as state:
            yield state

    def _require_table(self, state: State, table: str) -> None:
        if state.table != table:
            raise gone(self._place, "the index was replaced while items were added")

    # Writing

    def _append(self, items: Items) -> tuple[str, int, Totals]:
        """Append items to the table, hidden. Returns the token of their entry in the ledger, their first row, totals.

        If other writers were always faster, they are appended again under other rows. The first rows stay hidden,
        whether they are there or not.
        """
        table, count = self._name, len(items)
        for tries_left in reversed(range(_TRIES)):
            token = secrets.token_hex(8)

            def begin(state: State, token: str = token) -> dict[str, Any]:
                self._require_table(state, table)
                stop = state.next_row + count
                return {"next_row": stop, "open": {**state.open, token: (state.next_row, stop)}}

            start = self._ledger.change(begin).open[token][0]
            try:
                self._to_latest(self._ledger.state)
                return token, start, self._items.add(items, start)
            except ConflictError:
                if not tries_left:
                    raise
        raise AssertionError  # not reached

    def _to_latest(self, state: State) -> None:
        """Have the newest version of the table, which alone can change."""
        with self._place.plain_errors():
            self._items.table.checkout_latest()
            newest = self._items.table.version
        if newest < state.version:
            raise self._place.damaged(f"its table has the version {newest}, and its ledger names {state.version}")

    def _newest(self, state: State) -> dict[str, Any]:
        """What the ledger says about the newest version of the table. The table stays at this version."""
        self._to_latest(state)
        version = self._items.table.version
        if not self._items.checked:
            return {"version": version}
        files = table_files(self._place, self._name, version, {**self._files_verified, **state.files})
        self._files_verified |= files
        return {"version": version, "files": files}

    def _withdraw(self, table: str, token: str, rows: tuple[int, int]) -> None:
        """Take rows that were appended and refused out of the table."""
        self._to_latest(self._ledger.state)
        self._items.delete([rows])

        def close(newest: State) -> dict[str, Any]:
            self._require_table(newest, table)
            return {"open": _without(newest.open, token), **self._newest(newest)}

        self._ledger.change(close)

    def _refuse_existing(self, items: Items) -> None:
        held = self._rows_of(list(items.keys))
        duplicate = next((key for key in items.keys if key in held), None)
        if duplicate is not None:
            reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")

    def _clear(self) -> None:
        """Take removed items out of the table. The index has not had them since `delete` hid them."""
        state = self._ledger.refresh()
        done = {(start, stop) for start, stop in state.removed}
        self._load(state)
        try:
            self._to_latest(state)
            self._items.delete(sorted(done))
        except ConflictError:
            return  # they stay hidden; the next `delete` or `save` tries again
        table = self._name

        def clear(newest: State) -> dict[str, Any]:
            if newest.table != table:
                return {}
            left = [rows for rows in newest.removed if tuple(rows) not in done]
            return {"removed": left, **self._newest(newest)}

        self._ledger.change(clear)


def _without(open_rows: dict[str, tuple[int, int]], token: str) -> dict[str, tuple[int, int]]:
    return {other: rows for other, rows in open_rows.items() if other != token}


def _ranges(rows: np.ndarray) -> list[tuple[int, int]]:
    """Rows as ranges (start, stop)."""
    rows = np.sort(rows)
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, breaks) if len(part)]
