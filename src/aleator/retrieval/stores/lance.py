"""A store on Lance: in a folder or on an object store, shared by many readers and writers on many machines.

A place holds two tables of LanceDB. The table of items has the vectors. The ledger (`lance_ledger.py`) says which of
them are in the index, and decides between writers:

- `insert` takes numbers for its rows in the ledger, appends the items, and shows them by one change of the ledger;
- `delete` hides the items by one change of the ledger, and then removes them from the table;
- `create` with `replacing` writes a new table, and makes it current by one change of the ledger.

So a change happens completely or not at all, also when a writer is killed. An id is never stored twice: a change is
made again if another writer came in between. A search reads one version of both tables.

Lance does not verify checksums of its files.
"""

import contextlib
import datetime
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from aleator.foundation import DamagedFileError, reject, require
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.recall import tune_recall
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates, Store
from aleator.retrieval.stores.consistency import directions_problem
from aleator.retrieval.stores.lance_items import ItemTable, batches, schema
from aleator.retrieval.stores.lance_ledger import LEDGER, Ledger, State, gone
from aleator.retrieval.stores.lance_place import ConflictError, Place

_MOST_IN_MEMORY = 2**24  # numbers in the vectors of a collection that is kept in memory: 64 MiB
_MOST_DESCRIBED = 100_000  # items whose ids and metadata are kept after a search
_MOST_KEPT = 2**20  # vectors that an exact search keeps before it looks which are still near
_TRIES = 5  # of compaction, while others write
_ABANDONED = datetime.timedelta(days=1)  # a table that no ledger names after this long was left by a killed writer
_TABLES = "items-"


class LanceStore(Store):
    """A `Store` on Lance.

    Args:
        place: Where it is.
        connection: A connection of LanceDB.
        ledger: Its ledger.
    """

    config: dict[str, Any]

    def __init__(self, place: Place, connection: Any, ledger: Ledger):
        self._place, self._connection, self._ledger = place, connection, ledger
        self._lock = threading.RLock()
        self._state: State | None = None
        self._pinned = 0  # how many contexts want to stay at this version
        self._items: ItemTable
        self._name = ""  # of the open table of items
        self._described: dict[int, tuple[str, str]] = {}  # what the last search learned, at this version
        self._held: Candidates | None = None  # all vectors at this version, if they are few
        self._kappas: np.ndarray | None = None  # at this version, ascending
        with self._up_to_date():
            pass

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
        ledger = Ledger.find(place, connection)
        if ledger is not None and not replacing:
            reject("location", str(place), "already holds an index", "add to it, or pass replace=True")
        name = _TABLES + secrets.token_hex(8)
        columns = schema(config["dim"], config.get("modes", 1) > 1)
        with place.plain_errors():
            reader = pa.RecordBatchReader.from_batches(columns, batches(items, 0, columns))
            table = connection.create_table(name, reader, schema=columns)
            version = table.version
        first = State(0, name, version, len(items), len(items), config)
        if ledger is None:
            ledger = Ledger.create(place, connection, first)
        else:
            fresh = {"open": {}, "removed": [], "partitions": 0, "config": config, "version": version}
            ledger.change(lambda _: {"table": name, "next_row": len(items), "count": len(items), **fresh})
        store = cls(place, connection, ledger)
        store.save(None)
        return store

    @classmethod
    def open(cls, location: str, options: Mapping[str, str] | None = None) -> "LanceStore":
        """Open an index that `create` made."""
        place = Place.parse(location, options)
        connection = place.connect()
        ledger = Ledger.find(place, connection)
        if ledger is None:
            reject("location", str(place), "holds no index", "build one there first")
        return cls(place, connection, ledger)

    @property
    def location(self) -> str | None:
        return self._place.location

    @property
    def version(self) -> int:
        """Number of the version that was read last. `location#number` opens it again."""
        with self._lock:
            return self._ledger.version

    def __len__(self) -> int:
        with self._up_to_date() as state:
            return state.count

    def state(self) -> object:
        with self._up_to_date():
            return self._ledger.version

    @property
    def efforts(self) -> list[int]:
        """Numbers of partitions to search, eight for each doubling."""
        partitions = self._state.partitions if self._state else 0
        return sorted({round(2 ** (i / 8)) for i in range(8 * partitions.bit_length() - 7)})

    def reserve_ids(self, count: int) -> list[int]:
        with self._changing():
            start = self._ledger.change(lambda state: {"next_row": state.next_row + count}).next_row - count
            return list(range(start, start + count))

    def insert(self, items: Items) -> None:
        token, count = secrets.token_hex(8), len(items)
        with self._changing():
            self._require_dim(items.mu)
            self._refuse_existing(items)
            table = self._name

            def begin(state: State) -> dict[str, Any]:
                self._require_table(state, table)
                stop = state.next_row + count
                return {"next_row": stop, "open": {**state.open, token: (state.next_row, stop)}}

            start = self._ledger.change(begin).open[token][0]
            self._items.add(items, start)

            def show(state: State) -> dict[str, Any]:
                self._require_table(state, table)
                self._load(state)
                self._refuse_existing(items)
                still_open = {other: rows for other, rows in state.open.items() if other != token}
                version = self._items.table.version
                return {"open": still_open, "count": state.count + count, "version": version}

            try:
                self._ledger.change(show)
            except ValueError as refused:
                # Another writer added one of the ids meanwhile. The rows stay hidden, and need not stay in the table.
                if not isinstance(refused, ConnectionError):
                    self._items.delete([(start, start + count)])
                raise

    def delete(self, keys: list[str]) -> None:
        with self._changing():
            gone_rows: list[tuple[int, int]] = []

            def hide(state: State) -> dict[str, Any]:
                self._load(state)
                row_of_key = self._rows_of(keys)
                unknown = [key for key in keys if key not in row_of_key]
                if unknown:
                    reject("ids", decode_id(unknown[0]), "not in the index", "remove only items that it holds")
                gone_rows[:] = _ranges(np.array(list(row_of_key.values()), np.int64))
                return {"removed": [*state.removed, *gone_rows], "count": state.count - len(keys)}

            if keys:
                self._ledger.change(hide)
                self._clear()

    def existing(self, keys: list[str]) -> set[str]:
        with self._up_to_date():
            return set(self._rows_of(keys))

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is None or not state.partitions:
                return self._within_exactly(mu, radius - slack(mu.shape[1]))
            candidates, described = self._items.within(mu, radius, effort)
            self._described = described
            return self._shown(candidates)

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is not None and state.partitions:
                candidates, reach, described = self._items.closest(mu, k, effort)
                self._described = described
                return self._shown(candidates), reach
            return self._closest_exactly(mu, k)

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        with self._up_to_date():
            wanted = np.unique(rows).tolist()
            missing = [row for row in wanted if row not in self._described]
            if missing:
                found = self._items.find("row", missing, ["row", "key", "note"])
                rows_found = found["row"].to_numpy()
                shown = dict(zip(rows_found.tolist(), self._require_state().shows(rows_found).tolist(), strict=True))
                described = zip(found["key"].to_pylist(), found["note"].to_pylist(), strict=True)
                pairs = zip(rows_found.tolist(), described, strict=True)
                learned = {row: about for row, about in pairs if shown[row]}
                if len(learned) + len(self._described) > _MOST_DESCRIBED:
                    return {row: about for row, about in {**self._described, **learned}.items() if row in set(wanted)}
                self._described |= learned
            return {row: self._described[row] for row in wanted if row in self._described}

    def components(self, rows: np.ndarray) -> Candidates:
        with self._up_to_date():
            held = self._in_memory()
            if held is None:
                found = self._items.find("row", np.unique(rows).tolist(), ["row", "kappa", "mu", "weight"])
                held = self._shown(self._items._candidates(found, np.zeros(len(found), np.int64)))
            held = held.take(np.isin(held.row, rows))
            order = np.argsort(rows)
            number = order[np.searchsorted(rows[order], held.row)]
            weight = held.weight if held.weight is not None else np.ones(len(held), np.float32)
            held = Candidates(number, held.row, held.mu, held.kappa, held.weight)
            return held.take(np.lexsort((-weight, number)))

    def kappa_range(self) -> tuple[float, float]:
        with self._up_to_date():
            finite = self._certainties(heaviest=False)
            finite = finite[np.isfinite(finite)]
            return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)

    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        with self._up_to_date():
            if self._kappas is None:
                self._kappas = np.sort(self._certainties(heaviest=True))
            return np.searchsorted(self._kappas, np.asarray(kappa, np.float32))

    def sample_directions(self, count: int) -> np.ndarray:
        with self._up_to_date():
            held = self._in_memory()
            if held is None:
                with self._place.plain_errors():
                    vectors = self._items.table.count_rows()
                offsets = np.unique(np.linspace(0, vectors - 1, count).astype(np.int64))
                return self._shown(self._items.take(offsets)).mu
            return held.mu[np.unique(np.linspace(0, len(held) - 1, count).astype(np.int64))]

    def configure(self, **changes: Any) -> None:
        with self._changing():
            self._ledger.change(lambda state: {"config": {**state.config, **changes}})
            self._load(self._ledger.state)

    def check(self) -> None:
        """Read everything, and compare it with the ledger.

        Raises:
            DamagedFileError: If something does not fit.
        """
        with self._up_to_date() as state:
            rows, problem = [], None
            for block in self._items.blocks():
                block = self._shown(block)
                rows.append(np.unique(block.row))
                problem = problem or directions_problem(block.mu)
            items = len(np.unique(np.concatenate(rows))) if rows else 0
            if items != state.count:
                problem = f"its ledger counts {state.count} items, and there are vectors of {items}"
        if problem is not None:
            raise DamagedFileError(str(self._place), problem, "open an older version, or restore it")

    def save(self, location: str | None = None) -> None:
        """Remove what killed writers left, compact the files, and bring the vector index up to date."""
        require(location is None, "location", location, "the index is on Lance", "build another one there")
        from aleator.retrieval.stores.lance_building import bring_up_to_date

        with self._changing() as state:
            if state.removed:
                self._clear()
            self._drop_abandoned(state.table)
            partitions = bring_up_to_date(self._items, state.partitions, state.count, state.config, _TRIES)

            def indexed(newest: State) -> dict[str, Any]:
                self._require_table(newest, state.table)
                return {"partitions": partitions, "version": self._items.table.version}

            self._ledger.change(indexed)
            self._load(self._ledger.state)
            report = tune_recall(self, self.config["recall"]) if partitions else None
            if report != self.config["report"]:
                self.configure(report=report)

    def close(self) -> None:
        """Nothing stays open between calls."""

    # Reading

    @contextlib.contextmanager
    def _up_to_date(self) -> Iterator[State]:
        """One thread at a time, with the newest version."""
        with self._lock:
            state = self._require_state() if self._pinned else self._ledger.refresh()
            if self._state is None or state.number != self._state.number:
                self._load(state)
            yield state

    @contextlib.contextmanager
    def one_version(self) -> Iterator[None]:
        with self._up_to_date():
            self._pinned += 1
            try:
                yield
            finally:
                self._pinned -= 1

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        way_out = "open the newest version, without the #"
        require(self._place.version is None, "location", str(self._place), "an older version cannot change", way_out)
        with self._up_to_date() as state:
            yield state

    def _load(self, state: State) -> None:
        """Read a state, and the version of the items that belongs to it."""
        if state.table != self._name:
            with self._place.plain_errors():
                table = self._connection.open_table(state.table)
            mixtures = state.config.get("modes", 1) > 1
            self._items, self._name = ItemTable(self._place, table, state.config["dim"], mixtures), state.table
        with self._place.plain_errors():
            if self._place.version is None:
                self._items.table.checkout_latest()
            else:
                self._items.table.checkout(state.version)
        self._state, self.config = state, state.config
        self._described, self._held, self._kappas = {}, None, None

    def _require_state(self) -> State:
        assert self._state is not None
        return self._state

    def _require_dim(self, mu: np.ndarray) -> None:
        if mu.shape[1] != self.config["dim"]:
            raise gone(self._place, f"the index was replaced by one of {self.config['dim']} dimensions")

    def _require_table(self, state: State, table: str) -> None:
        if state.table != table:
            raise gone(self._place, "the index was replaced while items were added")

    def _shown(self, candidates: Candidates) -> Candidates:
        shown = self._require_state().shows(candidates.row)
        return candidates if shown.all() else candidates.take(shown)

    def _in_memory(self) -> Candidates | None:
        """All vectors, in the order of their rows; None if they are many."""
        state = self._require_state()
        if self._held is None and state.count * self.config.get("modes", 1) * self.config["dim"] <= _MOST_IN_MEMORY:
            parts = [self._shown(block) for block in self._items.blocks()]
            none = self._items._candidates(
                schema(self._items.dim, self._items.mixtures).empty_table(), np.zeros(0, int)
            )
            held = Candidates.concatenate(parts or [none])
            self._held = held.take(np.argsort(held.row, kind="stable"))
        return self._held

    def _blocks(self) -> Iterator[Candidates]:
        """All vectors in blocks, at least one block."""
        held = self._in_memory()
        if held is not None:
            yield held
            return
        for block in self._items.blocks():
            yield self._shown(block)

    def _within_exactly(self, mu: np.ndarray, radius: np.ndarray) -> Candidates:
        """Compare all vectors with all queries."""
        parts = []
        for block in self._blocks():
            query, position = np.nonzero(mu @ block.mu.T >= radius[:, None])
            parts.append(replace(block.take(position), query=query))
        return Candidates.concatenate(parts)

    def _closest_exactly(self, mu: np.ndarray, k: int) -> tuple[Candidates, np.ndarray]:
        """Compare all vectors with all queries, and keep those that reach each query's k-th cosine so far."""
        best = np.full((len(mu), k), -np.inf, np.float32)
        parts: list[Candidates] = []
        cosines: list[np.ndarray] = []

        def prune() -> None:
            cosine, together = np.concatenate(cosines), Candidates.concatenate(parts)
            # In the order of `concatenate`.
            cosine = cosine[np.argsort(np.concatenate([part.query for part in parts]), kind="stable")]
            near = cosine >= best.min(axis=1)[together.query]
            parts[:], cosines[:] = [together.take(near)], [cosine[near]]

        for block in self._blocks():
            cosine = mu @ block.mu.T
            for i in np.flatnonzero((cosine > best.min(axis=1)[:, None]).any(axis=1)):
                joined = np.concatenate([best[i], cosine[i][cosine[i] > best[i].min()]])
                best[i] = np.partition(joined, len(joined) - k)[len(joined) - k :]
            query, position = np.nonzero(cosine >= best.min(axis=1)[:, None])
            parts.append(replace(block.take(position), query=query))
            cosines.append(cosine[query, position])
            if sum(map(len, parts)) > max(_MOST_KEPT, 2 * best.size):
                prune()
        prune()
        return parts[0], best.min(axis=1).astype(np.float64)

    def _certainties(self, heaviest: bool) -> np.ndarray:
        """Kappas of all vectors, or of the heaviest of each item."""
        where = "first" if heaviest and self._items.mixtures else None
        state, parts = self._require_state(), []
        for batch in self._items.scan(["row", "kappa"], where):
            parts.append(batch["kappa"].to_numpy()[state.shows(batch["row"].to_numpy())])
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _rows_of(self, keys: list[str]) -> dict[str, int]:
        """Rows of those keys that the index holds."""
        found = self._items.find("key", list(keys), ["key", "row"])
        rows = found["row"].to_numpy()
        shown = self._require_state().shows(rows)
        return {key: int(row) for key, row, show in zip(found["key"].to_pylist(), rows, shown, strict=True) if show}

    # Writing

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
            self._items.delete(sorted(done))
        except ConflictError:
            return  # they stay hidden; the next `delete` or `save` tries again
        table, version = self._name, self._items.table.version

        def clear(newest: State) -> dict[str, Any]:
            if newest.table != table:
                return {}
            left = [rows for rows in newest.removed if tuple(rows) not in done]
            return {"removed": left, "version": max(version, newest.version)}

        self._ledger.change(clear)

    def _drop_abandoned(self, current: str) -> None:
        """Remove tables of builds that were killed, or replaced, long ago."""
        with self._place.plain_errors():
            for name in self._connection.list_tables().tables:
                if name in (LEDGER, current) or not name.startswith(_TABLES):
                    continue
                written = self._connection.open_table(name).list_versions()[-1]["timestamp"]
                if datetime.datetime.now() - written > _ABANDONED:
                    self._connection.drop_table(name)


def _ranges(rows: np.ndarray) -> list[tuple[int, int]]:
    """Rows as ranges (start, stop)."""
    rows = np.sort(rows)
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, breaks) if len(part)]
