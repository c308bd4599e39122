"""A store on Lance: in a folder or on an object store, shared by many readers and writers on many machines.

An index is one table of LanceDB. It has one row for each component of each item, and one row more: the state, which
says what the index holds, with its settings. Every change of the index is one commit of Lance, which replaces the state
and adds or removes items. If another writer has replaced the state meanwhile, the commit fails, and the change is made
again from the new state. So a change happens completely or not at all, also when a writer is killed, and an id is never
stored twice.

Files, versions and the vector index are Lance's. It verifies no checksums, so every row has its own, which is compared
when the row is read; and the state says how many rows there are.
"""

import contextlib
import datetime
import json
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aleator.foundation import reject, require
from aleator.retrieval.items import Items, decode_id, digests_of, state_text, sum_of
from aleator.retrieval.recall import tune_recall
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates, Finder, IndexGoneError, Store
from aleator.retrieval.stores.checksums import row_digest, vector_checks
from aleator.retrieval.stores.consistency import config_problem, directions_problem
from aleator.retrieval.stores.lance.place import Place

_TABLE = "items"
_FORMAT = 1
_STATE_ROW = -1
_TRIES = 200  # changes that other writers may make before one of ours; each attempt sees one of theirs succeed
_REMEMBERED = 64  # changes whose tokens are kept

_MOST_IN_MEMORY = 2**24  # numbers in the vectors of a collection that is kept in memory: 64 MiB
_MOST_DESCRIBED = 100_000  # items whose ids and metadata are kept after a search
_MOST_IN_LIST = 1_000  # values in a condition of a query; for more, a scan of the column is faster
_BLOCK = 65_536  # vectors written or compared at a time
_MOST_KEPT = 2**20  # vectors that are kept before it is looked which are still near
_FEW = 64  # items whose metadata are looked up faster one by one than by looking at those of all items
_FIRST_NEIGHBOURS = 64
_AT_ONCE = 4  # queries to the vector index; some wait while others are computed
_SAMPLED = 64  # vectors that `check` asks the vector index for

_KEPT = datetime.timedelta(days=7)  # versions of the index
_TRAINED_ON = 64  # vectors for each partition of the vector index
_ROUNDS = 10  # of k-means
_GROWTH = 4  # the vector index is trained again when the collection has grown this many times


@dataclass(frozen=True)
class State:
    """What an index holds.

    Args:
        index: A random number of the index, which another one in its place does not have.
        token: A random number of this state.
        tokens: Those of the last states. A writer whose connection broke sees whether its change happened.
        next_row: Rows from here on were never given out.
        count: Number of items.
        vectors: Number of their components.
        digest: The sum of their digests, see `Store.state`.
        kappas: The smallest and the largest finite kappa of a component; zeros if there is none.
        partitions: Partitions of the vector index; 0 if there is none.
        config: Settings of the index.
        format: Of the table.
    """

    index: int
    token: int
    tokens: list[int]
    next_row: int
    count: int
    vectors: int
    digest: int
    kappas: tuple[float, float]
    partitions: int
    config: dict[str, Any]
    format: int = _FORMAT

    def with_items(self, items: Items) -> "State":
        """This state with more items."""
        low, high = self.kappas if self.kappas != (0.0, 0.0) else (math.inf, -math.inf)
        more = _finite_range(items.kappa)
        if more != (0.0, 0.0):
            low, high = min(low, more[0]), max(high, more[1])
        return replace(
            self,
            next_row=self.next_row + len(items),
            count=self.count + len(items),
            vectors=self.vectors + len(items.mu),
            digest=(self.digest + sum_of(items.digests())) % 2**64,
            kappas=(low, high) if low <= high else (0.0, 0.0),
        )


@dataclass(frozen=True)
class _Change:
    """A new state, and the items that are added or the rows that are removed with it."""

    state: State
    added: Sequence[pa.RecordBatch] = ()
    removed: Sequence[int] = ()


class LanceStore(Store):
    """A `Store` on Lance.

    Args:
        place: Where it is.
        connection: A connection of LanceDB.
        table: Its table.
    """

    config: dict[str, Any]

    def __init__(self, place: Place, connection: Any, table: Any):
        self._place, self._connection, self._table = place, connection, table
        self._lock = threading.RLock()
        self._pinned = 0  # how many contexts want to stay at this version
        self._version: int | None = None
        self._state: State
        # What was read at this version.
        self._described: dict[int, tuple[str, str]] = {}  # by the last searches
        self._held: Candidates | None = None  # all vectors, if they are few
        self._heaviest: np.ndarray | None = None  # kappas of the heaviest component of each item, ascending
        self._where: tuple[str, np.ndarray] | None = None  # the last condition and its rows
        self._refresh()

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
        connection, table = _find_table(place)
        if table is not None and not replacing:
            _refuse_second(place)
        columns = _schema(config["dim"], config.get("modes", 1) > 1)
        token = secrets.randbits(62)
        first = State(secrets.randbits(62), token, [token], 0, 0, 0, 0, (0.0, 0.0), 0, config).with_items(items)

        def written() -> Iterator[pa.RecordBatch]:
            yield _state_row(first, columns)
            yield from _batches(items, 0, columns)

        reader = pa.RecordBatchReader.from_batches(columns, written())
        mode = "overwrite" if replacing else "create"
        try:
            with place.calls(writing=True):
                table = connection.create_table(_TABLE, reader, mode=mode, on_bad_vectors="null")
        except OSError:  # another writer was faster, or the answer was lost on the way
            _, table = _find_table(place)
            if table is None or cls(place, connection, table)._state.index != first.index:
                if table is not None and not replacing:
                    _refuse_second(place)
                raise
        store = cls(place, connection, table)
        store.save(None)
        return store

    @classmethod
    def open(cls, location: str, options: Mapping[str, str] | None = None) -> "LanceStore":
        """Open an index that `create` made."""
        place = Place.parse(location, options)
        connection, table = _find_table(place)
        if table is None:
            reject("location", str(place), "holds no index", "build one there first")
        if place.version is not None:
            with place.calls():
                known = [version["version"] for version in table.list_versions()]
            problem = f"the index has the versions {known[0]} to {known[-1]}"
            way_out = "name one of them, or leave out the # for the newest"
            require(place.version in known, "location", str(place), problem, way_out)
            with place.calls():
                table.checkout(place.version)
        return cls(place, connection, table)

    @property
    def location(self) -> str | None:
        return self._place.location

    @property
    def version(self) -> int:
        """Number of the version that was read last. `location#number` opens it again."""
        with self._lock:
            assert self._version is not None
            return self._version

    def __len__(self) -> int:
        with self._up_to_date() as state:
            return state.count

    def state(self) -> str:
        with self._up_to_date() as state:
            return state_text(state.digest)

    def holds(self, items: Items) -> bool:
        """Whether the index holds these items and no others."""
        with self._up_to_date() as state:
            return len(items) == state.count and sum_of(items.digests()) == state.digest

    @property
    def efforts(self) -> list[int]:
        """Numbers of partitions to search, eight for each doubling."""
        return sorted({round(2 ** (i / 8)) for i in range(8 * self._state.partitions.bit_length() - 7)})

    # Changing

    def reserve_ids(self, count: int) -> list[int]:
        start = 0

        def reserve(state: State) -> _Change:
            nonlocal start
            start = state.next_row
            return _Change(replace(state, next_row=start + count))

        self._change(reserve)
        return list(range(start, start + count))

    def insert(self, items: Items) -> None:
        index: int | None = None

        def add(state: State) -> _Change:
            nonlocal index
            index = state.index if index is None else index
            if state.index != index:
                raise IndexGoneError(f"{self._place}: the index was replaced while items were added")
            self._require_dim(items.mu)
            held = self._rows_of(list(items.keys))
            duplicate = next((key for key in items.keys if key in held), None)
            if duplicate is not None:
                reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")
            return _Change(state.with_items(items), list(_batches(items, state.next_row, self._columns)))

        self._change(add)

    def delete(self, keys: list[str]) -> None:
        def remove(state: State) -> _Change:
            found = self._find("key", keys, self._columns.names)
            row, key, note = self._texts(found)
            unknown = set(keys).difference(key)
            if unknown:
                first = next(key for key in keys if key in unknown)
                reject("ids", decode_id(first), "not in the index", "remove only items that it holds")
            lost = self._candidates(found, np.zeros(len(found), np.int64))
            digest = sum_of(digests_of(list(zip(key, note, strict=True)), lost.mu, lost.kappa, lost.weight))
            kappas = state.kappas
            if np.isin(lost.kappa, np.array(kappas, np.float32)).any():  # others are at the ends now
                kappas = _finite_range(self._kappas(without=row))
            left = replace(
                state,
                count=state.count - len(keys),
                vectors=state.vectors - len(found),
                digest=(state.digest - digest) % 2**64,
                kappas=kappas,
            )
            return _Change(left, removed=np.unique(row).tolist())

        if keys:
            self._change(remove)

    def configure(self, **changes: Any) -> None:
        self._change(lambda state: _Change(replace(state, config={**state.config, **changes})))

    def save(self, location: str | None = None) -> None:
        """Compact the files, and bring the vector index up to date. Versions older than a week are removed."""
        require(location is None, "location", location, "the index is on Lance", "build another one there")
        self._require_newest()
        with self._up_to_date() as state:
            wanted = partition_count(state.count) if state.count >= state.config["exact_below"] else 0
            self._compact()  # it adds new rows to the indexes, too
            partitions = state.partitions if wanted else 0
            if wanted and (not partitions or wanted >= _GROWTH * partitions):
                from lancedb.index import BTree, IvfFlat

                nearest = IvfFlat("l2", num_partitions=wanted, sample_rate=_TRAINED_ON, max_iterations=_ROUNDS)
                with self._place.calls(writing=True):
                    self._table.create_index("mu", config=nearest, name="nearest")
                    for column in ("row", "key"):
                        self._table.create_index(column, config=BTree())
                partitions = wanted

            def indexed(newest: State) -> _Change:
                if newest.index != state.index:
                    raise IndexGoneError(f"{self._place}: the index was replaced while it was saved")
                return _Change(replace(newest, partitions=partitions))

            if partitions != state.partitions:
                self._change(indexed)
            self._refresh()
            report = tune_recall(self, self.config["recall"]) if partitions else None
            if report != self.config["report"]:
                self.configure(report=report)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _change(self, make: Callable[[State], _Change]) -> None:
        """Make a change of the newest state, until no other writer comes in between."""
        self._require_newest()
        with self._lock:
            for _ in range(_TRIES):
                self._refresh()
                old, version = self._state, self._version
                change, token = make(old), secrets.randbits(62)
                new = replace(change.state, token=token, tokens=[*old.tokens[-_REMEMBERED + 1 :], token])
                rows = pa.Table.from_batches([_state_row(new, self._columns), *change.added])
                # Lance tries again by itself where others were faster, and a condition that is false would leave out
                # the state alone. A division by zero fails, and then nothing happens.
                is_old = f"1 / (1 - CAST(target.token <> {old.token} AS BIGINT)) = 1"
                merge = self._table.merge_insert("row").when_matched_update_all(where=is_old)
                if change.added:
                    merge = merge.when_not_matched_insert_all()
                if change.removed:
                    listed = ", ".join(map(str, change.removed))
                    merge = merge.when_not_matched_by_source_delete(f"row IN ({listed})")
                try:
                    with self._place.calls(writing=True):
                        merge.execute(rows, on_bad_vectors="null")
                    return self._refresh()
                except OSError:
                    self._refresh()
                    if token in self._state.tokens:  # the answer was lost on the way
                        return None
                    if self._version == version:  # nobody was faster: it is another failure
                        raise
        raise ConnectionError(f"{self._place}: too many others write at the same time; repeat it")

    def _compact(self) -> None:
        version = self._version
        try:
            with self._place.calls(writing=True):
                self._table.optimize(cleanup_older_than=_KEPT)
        except OSError:
            self._refresh()
            if self._version == version:
                raise
            # Others write. The files stay as they are, which is slower and as right.

    def _require_newest(self) -> None:
        way_out = "open the newest version, without the #"
        require(self._place.version is None, "location", str(self._place), "an older version cannot change", way_out)

    # Reading

    def existing(self, keys: list[str]) -> set[str]:
        with self._up_to_date():
            return set(self._rows_of(keys))

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is None or not state.partitions:
                return _within_exactly(self._blocks(), mu, radius - slack(mu.shape[1]))
            bound = 2 - 2 * (radius - slack(mu.shape[1]))  # squared distance of unit vectors
            return self._together(self._ask_all(mu, None, bound.tolist(), effort))

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is None or not state.partitions:
                return _closest_exactly(self._blocks(), mu, k)
            parts = self._ask_all(mu, k, [None] * len(mu), effort)
            far = [part["_distance"][-1].as_py() if len(part) >= k else np.inf for part in parts]
            return self._together(parts), 1 - np.array(far, np.float64) / 2

    def narrowed(self, texts: Sequence[Sequence[str]]) -> Finder:
        return _Narrowed(self, _contains_any_of_each(texts))

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        with self._up_to_date():
            wanted = np.unique(rows).tolist()
            missing = [row for row in wanted if row not in self._described]
            known = self._described
            if missing:
                row, key, note = self._texts(self._find("row", missing, _TEXTS))
                known = known | dict(zip(row.tolist(), zip(key, note, strict=True), strict=True))
                self._require_found(missing, known)
                if len(known) <= _MOST_DESCRIBED:
                    self._described = known
            return {row: known[row] for row in wanted if row in known}

    def components(self, rows: np.ndarray) -> Candidates:
        with self._up_to_date():
            held = self._in_memory()
            if held is None:
                found = self._find("row", np.unique(rows).tolist(), self._vector_columns)
                held = self._candidates(found, np.zeros(len(found), np.int64))
                self._require_found(rows.tolist(), set(held.row.tolist()))
            held = held.take(np.isin(held.row, rows))
            order = np.argsort(rows)
            number = order[np.searchsorted(rows[order], held.row)]
            weight = held.weight if held.weight is not None else np.ones(len(held), np.float32)
            held = Candidates(number, held.row, held.mu, held.kappa, held.weight)
            return held.take(np.lexsort((-weight, number)))

    def kappa_range(self) -> tuple[float, float]:
        with self._up_to_date() as state:
            return state.kappas

    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        with self._up_to_date():
            if self._heaviest is None:
                self._heaviest = np.sort(self._kappas(heaviest=True))
            return np.searchsorted(self._heaviest, np.asarray(kappa, np.float32))

    def sample_directions(self, count: int) -> np.ndarray:
        with self._up_to_date() as state:
            held = self._in_memory()
            if held is not None:
                return held.mu[np.unique(np.linspace(0, len(held) - 1, count).astype(np.int64))]
            offsets = np.unique(np.linspace(0, state.vectors, count).astype(np.int64))  # with the row of the state
            with self._place.calls():
                found = self._table.take_offsets(offsets.tolist()).select(self._vector_columns).to_arrow()
            found = found.filter(pc.field("row") != _STATE_ROW)
            return self._candidates(found, np.zeros(len(found), np.int64)).mu

    def check(self) -> None:
        """Read everything, and compare it with its checksums and with the state. Ask the vector index for some items.

        Raises:
            DamagedFileError: If something does not fit.
        """
        with self._up_to_date() as state:
            self._held, seen = None, np.zeros(0, np.int64)
            for block in self._all_blocks():
                seen = np.union1d(seen, block.row)
                problem = directions_problem(block.mu)
                if problem is not None:
                    raise self._place.damaged(problem)
            described = sum(len(np.unique(self._texts(batch)[0])) for batch in self._scan(_TEXTS))
            if not len(seen) == state.count <= described:
                raise self._place.damaged(f"it has {len(seen)} items, and {state.count} were written")
            if _finite_range(self._kappas()) != tuple(state.kappas):
                raise self._place.damaged("its smallest and largest kappa are not those of its items")
            if self.efforts:
                mu = self.sample_directions(_SAMPLED)
                found, _ = self.closest(mu, 1, self.efforts[-1])
                cosine = np.einsum("nd,nd->n", mu[found.query], found.mu)
                if len(found) < len(mu) or (cosine < 1 - slack(mu.shape[1])).any():
                    raise self._place.damaged("its vector index does not find items that the index holds")

    @contextlib.contextmanager
    def one_version(self) -> Iterator[None]:
        with self._up_to_date():
            self._pinned += 1
            try:
                yield
            finally:
                self._pinned -= 1

    @contextlib.contextmanager
    def _up_to_date(self) -> Iterator[State]:
        """One thread at a time, with the newest version."""
        with self._lock:
            if not self._pinned:
                self._refresh()
            yield self._state

    def _refresh(self) -> None:
        """Go to the newest version, unless the place names an older one, and read its state."""
        with self._place.calls():
            if self._place.version is None:
                self._table.checkout_latest()
            version = self._table.version
        if version == self._version:
            return
        state = self._read_state()
        with self._place.calls():
            held = self._table.count_rows() - 1
        if held != state.vectors:
            raise self._place.damaged(f"it has {held} vectors, and {state.vectors} were written: some are lost")
        self._state, self.config, self._version = state, state.config, version
        self._columns = _schema(self.config["dim"], self.config.get("modes", 1) > 1)
        self._described, self._held, self._heaviest, self._where = {}, None, None, None

    def _read_state(self) -> State:
        with self._place.calls():
            found = self._table.search().where(f"row = {_STATE_ROW}").select([*_TEXTS, "token"]).to_arrow()
        if len(found) != 1:
            raise self._place.damaged(f"it has {len(found)} rows that say what it holds")
        _, _, (text,) = self._texts(found)
        values = json.loads(text)
        problem = f"is in format {values['format']}, and this release reads format {_FORMAT}"
        require(
            values["format"] == _FORMAT, "location", str(self._place), problem, "open it with the release that wrote it"
        )
        state = State(**{**values, "kappas": tuple(values["kappas"])})
        misfit = config_problem(state.config)
        if misfit is not None or found["token"][0].as_py() != state.token:
            raise self._place.damaged(misfit or "the number of its state is another one")
        return state

    def _require_dim(self, mu: np.ndarray) -> None:
        if mu.shape[1] != self.config["dim"]:
            raise IndexGoneError(f"{self._place}: the index was replaced by one of {self.config['dim']} dimensions")

    def _in_memory(self) -> Candidates | None:
        """All vectors, in the order of their rows; None if they are many."""
        if self._held is None and self._state.vectors * self.config["dim"] <= _MOST_IN_MEMORY:
            held = Candidates.concatenate(list(self._all_blocks()))
            self._held = held.take(np.argsort(held.row, kind="stable"))
        return self._held

    def _blocks(self, where: str | None = None) -> Iterator[Candidates]:
        """All vectors, or those of items for which an SQL condition holds, in blocks. At least one block."""
        held = self._in_memory()
        if held is None:
            yield from self._all_blocks(where)
        elif where is None:
            yield held
        else:
            if self._where is None or self._where[0] != where:
                parts = [batch["row"].to_numpy() for batch in self._scan(["row"], where)]
                self._where = where, np.concatenate([np.zeros(0, np.int64), *parts])
            yield held.take(np.isin(held.row, self._where[1]))

    def _all_blocks(self, where: str | None = None) -> Iterator[Candidates]:
        """Blocks from the table. At least one; `query` is 0. Without a condition none is missing."""
        count, gathered = 0, [self._columns.empty_table().select(self._vector_columns)]
        for batch in self._scan(self._vector_columns, where):
            gathered.append(pa.Table.from_batches([batch]))
            count += len(batch)
            if sum(map(len, gathered)) >= _BLOCK:
                yield self._plain(gathered)
                gathered = gathered[:1]
        yield self._plain(gathered)
        if where is None and count != self._state.vectors:
            raise self._place.damaged(f"it has {count} vectors, and {self._state.vectors} were written")

    def _plain(self, found: list[pa.Table]) -> Candidates:
        together = pa.concat_tables(found)
        return self._candidates(together, np.zeros(len(together), np.int64))

    def _kappas(self, heaviest: bool = False, without: np.ndarray | None = None) -> np.ndarray:
        """Kappas of all vectors, or of the heaviest component of each item, or of all without some rows."""
        first = ["first"] if heaviest and "first" in self._columns.names else []
        parts = [np.zeros(0, np.float32)]
        for batch in self._scan(["row", "kappa", *first]):
            chosen = self._column(batch, "first") if first else np.ones(len(batch), bool)
            if without is not None:
                chosen = chosen & ~np.isin(self._column(batch, "row"), without)
            parts.append(self._column(batch, "kappa")[chosen])
        return np.concatenate(parts)

    def _rows_of(self, keys: list[str]) -> dict[str, int]:
        """Rows of those keys that the index holds."""
        row, key, _ = self._texts(self._find("key", keys, _TEXTS))
        return dict(zip(key, row.tolist(), strict=True))

    def _require_found(self, rows: list[int], found: Any) -> None:
        """Raise if rows of this version are not there. Between two versions they may have been removed."""
        lost = [row for row in rows if row not in found] if self._pinned else []
        if lost:
            raise self._place.damaged(f"the item in row {lost[0]} cannot be found")

    def _find(self, column: str, values: list, wanted: list[str]) -> pa.Table:
        """The columns `wanted` of all rows of items whose `column` has one of the values."""
        none = pa.Table.from_batches([], self._columns).select(wanted)
        if not values:
            return none
        if len(values) <= _MOST_IN_LIST:
            listed = ", ".join(_quoted(value) if isinstance(value, str) else str(value) for value in values)
            with self._place.calls():
                return self._table.search().where(f"{column} IN ({listed})").select(wanted).to_arrow()
        known = pa.array(values, self._columns.field(column).type)
        columns = list(dict.fromkeys([*wanted, column]))
        found = [batch.filter(pc.is_in(batch[column], known)) for batch in self._scan(columns)]
        return pa.Table.from_batches(found).select(wanted) if found else none

    def _scan(self, columns: list[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows of items, or of those for which an SQL condition holds."""
        items = f"row != {_STATE_ROW}" if where is None else f"row != {_STATE_ROW} AND ({where})"
        with self._place.calls():
            reader = self._table.search().where(items).select(columns).to_batches()
        while True:
            with self._place.calls():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    def _ask_all(self, mu: np.ndarray, k: int | None, bounds: list, effort: int) -> list[pa.Table]:
        """Neighbours of each vector, nearest first, of `effort` partitions. Without k: all within its bound."""

        def ask(vector: np.ndarray, bound: float | None) -> pa.Table:
            limit = _FIRST_NEIGHBOURS if k is None else k
            while True:
                # Ids and metadata of few items cost little here, and save another query.
                few = limit <= _FIRST_NEIGHBOURS
                columns = list(dict.fromkeys([*self._vector_columns, *(_TEXTS if few else [])]))
                with self._place.calls():
                    query = self._table.search(vector, vector_column_name="mu").distance_type("l2").nprobes(effort)
                    if bound is not None:
                        query = query.distance_range(None, max(0.0, bound) if np.isfinite(bound) else None)
                    found = query.select([*columns, "_distance"]).limit(limit).to_arrow()
                if k is not None or len(found) < limit:
                    return found
                limit *= 32

        if len(mu) == 1:
            return [ask(mu[0], bounds[0])]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(ask, mu, bounds))

    def _together(self, parts: list[pa.Table]) -> Candidates:
        """Answers as candidates. What they say about ids and metadata is kept."""
        described: dict[int, tuple[str, str]] = {}
        for part in parts:
            if "key" in part.column_names:
                row, key, note = self._texts(part)
                described.update(zip(row.tolist(), zip(key, note, strict=True), strict=True))
        self._described = described
        found = pa.concat_tables([part.select(self._vector_columns) for part in parts])
        return self._candidates(found, np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    def _candidates(self, found: pa.Table, query: np.ndarray) -> Candidates:
        """Rows with the columns of vectors, as candidates of these queries. They match their checksums."""
        row, kappa = self._column(found, "row"), self._column(found, "kappa")
        weight = self._column(found, "weight") if "weight" in self._columns.names else None
        mu = self._column(found, "mu").reshape(len(found), self.config["dim"])
        right = vector_checks(row, mu, kappa, weight) == self._column(found, "vector_check")
        self._require_right(right, row, "vectors or kappas")
        return Candidates(query, row, mu, kappa, weight)

    def _texts(self, found: Any) -> tuple[np.ndarray, list[str], list[str]]:
        """Row, id and metadata of rows with the columns of texts. They match their checksums."""
        row, checks = self._column(found, "row"), self._column(found, "text_check")
        with self._place.calls():
            key, note = found["key"].to_pylist(), found["note"].to_pylist()
        digests = map(row_digest, row.tolist(), key, note)
        right = np.fromiter(map(int.__eq__, digests, checks.tolist()), bool, len(row))
        self._require_right(right, row, "ids or metadata")
        return row, key, note

    def _column(self, found: Any, name: str) -> np.ndarray:
        """A column of numbers; of vectors one after the other."""
        values = found[name]
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        flat = values.flatten() if name == "mu" else values
        if (
            values.null_count
            or flat.null_count
            or len(flat) != len(values) * (self.config["dim"] if name == "mu" else 1)
        ):
            raise self._place.damaged(f"values of the column {name!r} are missing")
        return flat.to_numpy(zero_copy_only=False)

    def _require_right(self, right: np.ndarray, row: np.ndarray, what: str) -> None:
        if not right.all():
            wrong = f"{len(right) - right.sum()} of the {len(right)} that were read, the first in row {row[~right][0]}"
            raise self._place.damaged(f"{what} of items do not match their checksums ({wrong})")

    @property
    def _vector_columns(self) -> list[str]:
        """Columns that `_candidates` needs."""
        return [name for name in ("row", "kappa", "mu", "weight", "vector_check") if name in self._columns.names]


class _Narrowed(Finder):
    """Exact search among the items for which an SQL condition holds, which Lance evaluates before it reads vectors."""

    def __init__(self, store: LanceStore, where: str):
        self._store, self._where = store, where

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        store = self._store
        with store._up_to_date():
            held = store._in_memory() is not None
            found = None if not held else store.within(mu, radius, effort)
            if found is not None and len(np.unique(found.row)) <= _FEW:
                return found
            store._require_dim(mu)
            return _within_exactly(store._blocks(self._where), mu, radius - slack(mu.shape[1]))

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        store = self._store
        with store._up_to_date():
            if k <= _FEW and store._in_memory() is not None:
                return store.closest(mu, k, effort)
            store._require_dim(mu)
            return _closest_exactly(store._blocks(self._where), mu, k)


def partition_count(size: int) -> int:
    """Number of partitions of the vector index of so many items: about sqrt(n)."""
    return 1 << max(0, round(math.log2(math.sqrt(size)))) if size else 0


_TEXTS = ["row", "key", "note", "text_check"]


def _schema(dim: int, mixtures: bool) -> pa.Schema:
    """Columns of the table. `first` is true for the heaviest component of an item; `token` is of the state alone."""
    columns = [("row", pa.int64()), ("key", pa.string()), ("kappa", pa.float32()), ("note", pa.string())]
    more = [("weight", pa.float32()), ("first", pa.bool_())] if mixtures else []
    checks = [("vector_check", pa.int64()), ("text_check", pa.int64()), ("token", pa.int64())]
    return pa.schema([*columns, *more, *checks, ("mu", pa.list_(pa.float32(), dim))])


def _batches(items: Items, first_row: int, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Items as batches of Arrow, with rows from `first_row` on."""
    owner = np.arange(len(items)) if items.owner is None else items.owner
    for start in range(0, len(owner), _BLOCK):
        block, part = slice(start, start + _BLOCK), owner[start : start + _BLOCK]
        low, high = int(part[0]), int(part[-1]) + 1
        about = list(zip(items.keys[low:high], items.metadata_json[low:high], strict=True))
        row, mu, kappa = part + first_row, items.mu[block], items.kappa[block]
        weight = None if items.weight is None else items.weight[block]
        texts = [about[i - low] for i in part.tolist()]
        data = {
            "row": row,
            "key": [key for key, _ in texts],
            "kappa": kappa,
            "note": [note for _, note in texts],
            "vector_check": vector_checks(row, mu, kappa, weight),
            "text_check": [row_digest(number, *text) for number, text in zip(row.tolist(), texts, strict=True)],
            "token": pa.nulls(len(part), pa.int64()),
            "mu": pa.FixedSizeListArray.from_arrays(pa.array(mu.reshape(-1)), items.mu.shape[1]),
        }
        if weight is not None:
            data |= {"weight": weight, "first": np.diff(part, prepend=owner[start - 1] if start else -1) > 0}
        yield pa.RecordBatch.from_pydict({name: data[name] for name in columns.names}, schema=columns)


def _state_row(state: State, columns: pa.Schema) -> pa.RecordBatch:
    text = json.dumps(asdict(state))
    values = {"row": _STATE_ROW, "key": "", "note": text, "token": state.token}
    values["text_check"] = row_digest(_STATE_ROW, "", text)
    return pa.RecordBatch.from_pylist([values], columns)


def _find_table(place: Place) -> tuple[Any, Any]:
    """A connection of LanceDB, and the table of the index; None if there is none."""
    import lancedb

    with place.calls():
        connection = lancedb.connect(place.uri, storage_options=dict(place.options) or None)
        exists = _TABLE in connection.list_tables().tables
        try:
            return connection, connection.open_table(_TABLE) if exists else None
        except ValueError:  # a first build that was killed leaves files, and no version of the table
            return connection, None


def _refuse_second(place: Place) -> None:
    reject("location", str(place), "already holds an index", "add to it, or pass replace=True")


def _finite_range(kappa: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest finite kappa; zeros if there is none."""
    finite = kappa[np.isfinite(kappa)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _contains_any_of_each(texts: Sequence[Sequence[str]]) -> str:
    """An SQL condition: the metadata contain at least one text of each sequence."""
    each = [" OR ".join(f"contains(note, {_quoted(text)})" for text in any_of) or "false" for any_of in texts]
    return " AND ".join(f"({condition})" for condition in each)


def _quoted(text: str) -> str:
    """A string of SQL. Nothing but a quote has a meaning inside; JSON text has no control characters."""
    return "'" + text.replace("'", "''") + "'"


def _within_exactly(blocks: Iterable[Candidates], mu: np.ndarray, radius: np.ndarray) -> Candidates:
    """The vectors of all blocks that reach each query's radius. There is at least one block."""
    parts = []
    for block in blocks:
        query, position = np.nonzero(mu @ block.mu.T >= radius[:, None])
        parts.append(replace(block.take(position), query=query))
    return Candidates.concatenate(parts)


def _closest_exactly(blocks: Iterable[Candidates], mu: np.ndarray, k: int) -> tuple[Candidates, np.ndarray]:
    """The vectors that reach each query's k-th cosine, and a reach as `Store.closest` has it."""
    best = np.full((len(mu), k), -np.inf, np.float32)
    parts: list[Candidates] = []
    cosines: list[np.ndarray] = []

    def prune() -> None:
        cosine, together = np.concatenate(cosines), Candidates.concatenate(parts)
        # In the order of `concatenate`.
        cosine = cosine[np.argsort(np.concatenate([part.query for part in parts]), kind="stable")]
        near = cosine >= best.min(axis=1)[together.query]
        parts[:], cosines[:] = [together.take(near)], [cosine[near]]

    for block in blocks:
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
