"""Reading an index on Lance: one version of its ledger and of its table of items."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aleator.foundation import DamagedFileError
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates, Finder, Store
from aleator.retrieval.stores.consistency import directions_problem
from aleator.retrieval.stores.exact import closest_exactly, within_exactly
from aleator.retrieval.stores.lance_items import ItemTable, contains_any_of_each, schema
from aleator.retrieval.stores.lance_ledger import Ledger, State, gone
from aleator.retrieval.stores.lance_place import Place

_MOST_IN_MEMORY = 2**24  # numbers in the vectors of a collection that is kept in memory: 64 MiB
_MOST_DESCRIBED = 100_000  # items whose ids and metadata are kept after a search
_FEW = 64  # items whose metadata are looked up faster one by one than by looking at those of all items


class LanceReader(Store):
    """The part of `LanceStore` that changes nothing.

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
        self._where: tuple[str, np.ndarray] | None = None  # the last condition and its rows, at this version
        with self._up_to_date():
            pass

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

    def existing(self, keys: list[str]) -> set[str]:
        with self._up_to_date():
            return set(self._rows_of(keys))

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is None or not state.partitions:
                return within_exactly(self._blocks(), mu, radius - slack(mu.shape[1]))
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
            return closest_exactly(self._blocks(), mu, k)

    def narrowed(self, texts: Sequence[Sequence[str]]) -> Finder:
        return _Narrowed(self, contains_any_of_each(texts))

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
                held = self._shown(self._items.candidates(found, np.zeros(len(found), np.int64)))
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
        self._described, self._held, self._kappas, self._where = {}, None, None, None

    def _require_state(self) -> State:
        assert self._state is not None
        return self._state

    def _require_dim(self, mu: np.ndarray) -> None:
        if mu.shape[1] != self.config["dim"]:
            raise gone(self._place, f"the index was replaced by one of {self.config['dim']} dimensions")

    def _shown(self, candidates: Candidates) -> Candidates:
        shown = self._require_state().shows(candidates.row)
        return candidates if shown.all() else candidates.take(shown)

    def _in_memory(self) -> Candidates | None:
        """All vectors, in the order of their rows; None if they are many."""
        state = self._require_state()
        if self._held is None and state.count * self.config.get("modes", 1) * self.config["dim"] <= _MOST_IN_MEMORY:
            parts = [self._shown(block) for block in self._items.blocks()]
            held = Candidates.concatenate(parts or [self._none()])
            self._held = held.take(np.argsort(held.row, kind="stable"))
        return self._held

    def _blocks(self, where: str | None = None) -> Iterator[Candidates]:
        """All vectors, or those of items for which an SQL condition holds, in blocks. At least one block."""
        held = self._in_memory()
        if held is not None:
            yield held if where is None else held.take(np.isin(held.row, self._rows_where(where)))
            return
        yield self._none()
        for block in self._items.blocks(where):
            yield self._shown(block)

    def _rows_where(self, where: str) -> np.ndarray:
        """Rows of the items for which an SQL condition holds. Those of the last condition are kept."""
        if self._where is None or self._where[0] != where:
            parts = [batch["row"].to_numpy() for batch in self._items.scan(["row"], where)]
            self._where = where, np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return self._where[1]

    def _none(self) -> Candidates:
        return self._items.candidates(schema(self._items.dim, self._items.mixtures).empty_table(), np.zeros(0, int))

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


class _Narrowed(Finder):
    """Exact search among the items for which an SQL condition holds, which Lance evaluates before it reads vectors."""

    def __init__(self, reader: LanceReader, where: str):
        self._reader, self._where = reader, where

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        reader = self._reader
        with reader._up_to_date():
            held = reader._in_memory() is not None
            found = None if not held else reader.within(mu, radius, effort)
            if found is not None and len(np.unique(found.row)) <= _FEW:
                return found
            reader._require_dim(mu)
            return within_exactly(reader._blocks(self._where), mu, radius - slack(mu.shape[1]))

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        reader = self._reader
        with reader._up_to_date():
            if k <= _FEW and reader._in_memory() is not None:
                return reader.closest(mu, k, effort)
            reader._require_dim(mu)
            return closest_exactly(reader._blocks(self._where), mu, k)
