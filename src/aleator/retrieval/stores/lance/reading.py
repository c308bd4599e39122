"""Reading an index on Lance: one version of its ledger and of its table of items."""

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aleator.retrieval.items import digests_of, state_text, sum_of
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates, Finder, Store
from aleator.retrieval.stores.consistency import directions_problem
from aleator.retrieval.stores.exact import closest_exactly, within_exactly
from aleator.retrieval.stores.lance.certainties import Certainties, shown_kappas
from aleator.retrieval.stores.lance.checksums import (
    TEXT_CHECK,
    VECTOR_CHECK,
    Totals,
    total_of,
    totals_of,
)
from aleator.retrieval.stores.lance.files import missing_files, verify_files
from aleator.retrieval.stores.lance.items import ItemTable, contains_any_of_each
from aleator.retrieval.stores.lance.ledger import Ledger
from aleator.retrieval.stores.lance.place import FilesGoneError, Place
from aleator.retrieval.stores.lance.state import State, gone

_MOST_IN_MEMORY = 2**24  # numbers in the vectors of a collection that is kept in memory: 64 MiB
_MOST_DESCRIBED = 100_000  # items whose ids and metadata are kept after a search
_SAMPLED = 64  # vectors that `check` asks the vector index for
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
        self._certain: Certainties | None = None  # at this version, or at an earlier one
        self._texts_verified = False  # at this version
        self._files_verified: dict[str, str] = {}
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

    def state(self) -> str:
        with self._up_to_date() as state:
            return state_text(state.totals.get("items", 0)) if self._items.checked else super().state()

    @property
    def efforts(self) -> list[int]:
        """Numbers of partitions to search, eight for each doubling."""
        partitions = self._state.partitions if self._state else 0
        return sorted({round(2 ** (i / 8)) for i in range(8 * partitions.bit_length() - 7)})

    def existing(self, keys: list[str]) -> set[str]:
        with self._up_to_date():
            found = set(self._rows_of(keys))
            if len(found) < len(set(keys)):
                self._require_texts()  # an id that was damaged would not be found
            return found

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is None or not state.partitions:
                return within_exactly(self._blocks(), mu, radius - slack(mu.shape[1]))
            self._require_rows()
            candidates, described = self._items.within(mu, radius, effort)
            self._described = described
            return self._shown(candidates)

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._up_to_date() as state:
            self._require_dim(mu)
            if effort is not None and state.partitions:
                self._require_rows()
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
                found = self._items.find("row", missing, self._items.text_columns)
                rows_found, key, note = self._items.texts(found)
                shown = dict(zip(rows_found.tolist(), self._require_state().shows(rows_found).tolist(), strict=True))
                pairs = zip(rows_found.tolist(), zip(key, note, strict=True), strict=True)
                learned = {row: about for row, about in pairs if shown[row]}
                self._require_found(missing, set(learned))
                if len(learned) + len(self._described) > _MOST_DESCRIBED:
                    both = self._described | learned
                    return {row: both[row] for row in wanted if row in both}
                self._described |= learned
            return {row: self._described[row] for row in wanted if row in self._described}

    def components(self, rows: np.ndarray) -> Candidates:
        with self._up_to_date():
            held = self._in_memory()
            if held is None:
                found = self._items.find("row", np.unique(rows).tolist(), self._items.vector_columns)
                held = self._shown(self._items.candidates(found, np.zeros(len(found), np.int64)))
                self._require_found(rows.tolist(), set(held.row.tolist()))
            held = held.take(np.isin(held.row, rows))
            order = np.argsort(rows)
            number = order[np.searchsorted(rows[order], held.row)]
            weight = held.weight if held.weight is not None else np.ones(len(held), np.float32)
            held = Candidates(number, held.row, held.mu, held.kappa, held.weight)
            return held.take(np.lexsort((-weight, number)))

    def kappa_range(self) -> tuple[float, float]:
        with self._up_to_date():
            return self._certainties().finite_range

    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        with self._up_to_date():
            return np.searchsorted(self._certainties().heaviest, np.asarray(kappa, np.float32))

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
        """Read everything, and compare it with its checksums and with the ledger. Ask the vector index for some items.

        Raises:
            DamagedFileError: If something does not fit.
        """
        with self._up_to_date() as state:
            if not self._items.checked:
                old = "it was written by an earlier release and has no checksums, so damage may go unnoticed"
                warnings.warn(f"{self._place}: {old}; build it again to get them", stacklevel=2)
            verify_files(self._place, state.files)
            rows, problem = [], None
            for block in self._all_blocks():
                rows.append(np.unique(block.row))
                problem = problem or directions_problem(block.mu)
            items = len(np.unique(np.concatenate(rows))) if rows else 0
            if items != state.count:
                problem = f"its ledger counts {state.count} items, and there are vectors of {items}"
            if problem is not None:
                raise self._place.damaged(problem)
            self._certain, self._texts_verified = None, False
            self._certainties()
            if self._items.checked:
                self._verify_texts()
            self._require_own_neighbours()

    def close(self) -> None:
        """Nothing stays open between calls."""

    # Reading

    @contextlib.contextmanager
    def _up_to_date(self) -> Iterator[State]:
        """One thread at a time, with the newest version."""
        with self._lock:
            state = self._require_state() if self._pinned else self._ledger.refresh()
            try:
                if self._state is None or state.number != self._state.number:
                    self._load(state)
                yield state
            except FilesGoneError:
                # Files of an older version may go. Nobody takes those that the ledger still names.
                if self._place.version is not None or self._ledger.refresh().number != state.number:
                    raise
                lost = next(missing_files(self._place, state.files), "a file")
                raise self._place.damaged(f"{lost} of its newest version is missing") from None

    @contextlib.contextmanager
    def one_version(self) -> Iterator[None]:
        with self._up_to_date():
            self._pinned += 1
            try:
                yield
            finally:
                self._pinned -= 1

    def _load(self, state: State) -> None:
        """Read a state, and the version of the items that belongs to it. Its files are verified before."""
        verify_files(self._place, {k: v for k, v in state.files.items() if self._files_verified.get(k) != v})
        self._files_verified = dict(state.files)
        if state.table != self._name:
            with self._place.plain_errors():
                table = self._connection.open_table(state.table)
            mixtures = state.config.get("modes", 1) > 1
            self._items = ItemTable(self._place, table, state.config["dim"], mixtures, checked=state.format > 1)
            self._name = state.table
        with self._place.plain_errors():
            self._items.table.checkout(state.version)
        self._state, self.config = state, state.config
        self._described, self._held, self._where = {}, None, None
        self._texts_verified = False

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
        if self._held is None and self._is_small():
            parts = list(self._all_blocks())
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
        yield from self._all_blocks(where)

    def _all_blocks(self, where: str | None = None) -> Iterator[Candidates]:
        """Blocks from the table. Without a condition their checksums sum up to the total in the ledger."""
        total = 0
        for block, checks in self._items.blocks(where):
            shown = self._require_state().shows(block.row)
            total += total_of(checks[shown])
            yield block if shown.all() else block.take(shown)
        if where is None:
            self._require_total("vectors", total)

    def _is_small(self) -> bool:
        """Whether all vectors are kept in memory."""
        return self._require_state().count * self.config.get("modes", 1) * self.config["dim"] <= _MOST_IN_MEMORY

    def _rows_where(self, where: str) -> np.ndarray:
        """Rows of the items for which an SQL condition holds. Those of the last condition are kept."""
        self._require_texts()  # Lance compares texts as they are, also damaged ones
        if self._where is None or self._where[0] != where:
            parts = [batch["row"].to_numpy() for batch in self._items.scan(["row"], where)]
            self._where = where, np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return self._where[1]

    def _none(self) -> Candidates:
        return self._items.candidates(self._items.schema.empty_table(), np.zeros(0, int))

    def _certainties(self) -> Certainties:
        """Kappas of all vectors at this version, which match their total."""
        state, known = self._require_state(), self._certain
        if known is not None and known.state.number != state.number:
            known = known.moved_on(self._items, self._ledger.since(known.state.number))
            if known is not None and known.total != self._total("kappas", known.total):
                known = None  # all of them decide
        if known is None:
            known = Certainties.read(self._items, state)
            self._require_total("kappas", known.total)
        self._certain = known
        return known

    def _rows_of(self, keys: list[str]) -> dict[str, int]:
        """Rows of those keys that the index holds."""
        return self._shown_keys(self._items.find("key", list(keys), self._items.text_columns))

    def _shown_keys(self, found: Any) -> dict[str, int]:
        rows, key, _ = self._items.texts(found)
        shown = self._require_state().shows(rows).tolist()
        return {key: row for key, row, show in zip(key, rows.tolist(), shown, strict=True) if show}

    def _found(self, keys: list[str]) -> tuple[dict[str, int], Totals]:
        """Rows of those keys that the index holds, and the totals of their checksums."""
        items = self._items
        if not items.checked:
            return self._rows_of(keys), {}
        wanted = [*items.text_columns, *items.vector_columns, *items.kappa_columns]
        found = items.find("key", list(keys), list(dict.fromkeys(wanted)))
        shown = self._require_state().shows(items.column(found, "row"))
        held = items.candidates(found, np.zeros(len(found), np.int64)).take(shown)  # verified
        described = [text for text, show in zip(zip(*items.texts(found)[1:], strict=True), shown, strict=True) if show]
        of_items = {"items": sum_of(digests_of(described, held.mu, held.kappa, held.weight))}
        checks = (items.column(found, name)[shown] for name in (VECTOR_CHECK, TEXT_CHECK))
        totals = totals_of(*shown_kappas(items, self._require_state(), found), *checks) | of_items
        return self._shown_keys(found), totals

    # Verifying

    def _require_total(self, name: str, total: int) -> None:
        """Raise unless a total over all rows is that of the ledger."""
        if self._total(name, total % 2**64) != total % 2**64:
            raise self._place.damaged(
                f"the {name} of all items do not match their checksum: some are lost, or too many"
            )

    def _total(self, name: str, without: int) -> int:
        """A total of the ledger; an index of an earlier release has none."""
        return self._require_state().totals.get(name, 0) if self._items.checked else without

    def _require_found(self, rows: list[int], found: set[int]) -> None:
        """Raise if rows of this version are not there. Between two versions they may have been removed."""
        lost = [row for row in rows if row not in found]
        if lost and self._pinned and self._items.checked:
            raise self._place.damaged(f"the item in row {lost[0]} cannot be found")

    def _require_rows(self) -> None:
        """In a folder: no row is lost, and none that was removed has come back. Looked at once for each version.

        After a change only the rows that were added or removed are read.
        """
        if self._items.checked and self._place.folder is not None:
            self._certainties()

    def _require_texts(self) -> None:
        """Raise unless all ids and metadata of a small index are whole. Looked at once for each version."""
        if self._items.checked and not self._texts_verified and self._is_small():
            self._verify_texts()

    def _verify_texts(self) -> None:
        total = 0
        for batch in self._items.scan(self._items.text_columns):
            row, _, _ = self._items.texts(batch)
            total += total_of(self._items.column(batch, TEXT_CHECK)[self._require_state().shows(row)])
        self._require_total("texts", total)
        self._texts_verified = True

    def _require_own_neighbours(self) -> None:
        """Raise unless the vector index, asked for some of the items, finds them."""
        if not self.efforts:
            return
        mu = self.sample_directions(_SAMPLED)
        found, _, _ = self._items.closest(mu, 1, self.efforts[-1])
        cosine = np.einsum("nd,nd->n", mu[found.query], found.mu)
        if len(found) < len(mu) or (cosine < 1 - slack(mu.shape[1])).any():
            raise self._place.damaged("its vector index does not find items that the index holds")


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
