"""The certainties (kappas) of all vectors of an index on Lance, verified against their total in the ledger.

All of them are read once. Later versions of the index are reached by what has changed: the rows that were added and
removed are read, and must lead from the total that was verified to the total of the new version. The other rows are in
files that were verified, and their number must be right. If something does not fit, or if files were compacted, all of
them are read again, and that decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance.checksums import kappa_checks, total_of
from aleator.retrieval.stores.lance.items import ItemTable
from aleator.retrieval.stores.lance.state import State

_MOST_RANGES = 200  # in a condition; for more, all kappas are read

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Certainties:
    """Kappas at one state.

    Args:
        state: The state.
        total: Of their checksums, modulo 2**64.
        every: Kappas of all vectors, ascending.
        heaviest: Kappas of the heaviest component of each item, ascending.
    """

    state: State
    total: int
    every: np.ndarray
    heaviest: np.ndarray

    @classmethod
    def read(cls, items: ItemTable, state: State, where: str | None = None) -> "Certainties":
        """Read those of all rows that a state shows, or of those for which an SQL condition holds as well."""
        total, kappas, heaviest = 0, [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
        for batch in items.scan(items.kappa_columns, where):
            row, kappa, first = shown_kappas(items, state, batch)
            total += total_of(kappa_checks(row, kappa, first))
            kappas.append(kappa)
            heaviest.append(kappa if first is None else kappa[first])
        every = np.sort(np.concatenate(kappas))
        top = np.sort(np.concatenate(heaviest)) if items.mixtures else every
        return cls(state, total % 2**64, every, top)

    @property
    def finite_range(self) -> tuple[float, float]:
        """The smallest and the largest finite kappa; zeros if there is none."""
        finite = self.every[: np.searchsorted(self.every, np.inf)]
        return (float(finite[0]), float(finite[-1])) if len(finite) else (0.0, 0.0)

    def moved_on(self, items: ItemTable, later: list[State]) -> "Certainties | None":
        """Those at a later state of the same table; None if all of them must be read again.

        Args:
            items: The table, at the version of the later state. It is left there.
            later: The later state, after the states in between that are known.
        """
        old, state = self.state, later[-1]
        removed = sorted({(start, stop) for state in later for start, stop in state.removed})
        added = [*old.open.values(), *([(old.next_row, state.next_row)] if state.next_row > old.next_row else [])]
        if state.table != old.table or max(len(added), len(removed), len(state.hidden)) > _MOST_RANGES:
            return None
        if any(map(_compacted, [old, *later], later)):
            return None
        try:
            new = Certainties.read(items, state, _condition(added))
            lost = self._lost(items, state, removed)
            vectors = len(self.every) + len(new.every) - len(lost.every)
            if _count(items, state) != vectors:
                return None
        except IndexGoneError:
            return None  # the version before is not there any more
        if len(self.heaviest) + len(new.heaviest) - len(lost.heaviest) != state.count:
            return None
        every = merged(self.every, new.every, lost.every)
        heaviest = merged(self.heaviest, new.heaviest, lost.heaviest) if items.mixtures else every
        if every is None or heaviest is None:
            return None
        return Certainties(state, (self.total + new.total - lost.total) % 2**64, every, heaviest)

    def _lost(self, items: ItemTable, state: State, ranges: Ranges) -> "Certainties":
        """Of rows that were removed since. The version before has them."""
        if not ranges:
            return Certainties.read(items, state, "false")
        with items.place.plain_errors():
            items.table.checkout(self.state.version)
        try:
            return Certainties.read(items, self.state, _condition(ranges))
        finally:
            with items.place.plain_errors():
                items.table.checkout(state.version)


def shown_kappas(items: ItemTable, state: State, found: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Row, kappa and `first` of the rows of Arrow that a state shows."""
    row = items.column(found, "row")
    shown = state.shows(row)
    first = items.column(found, "first")[shown] if items.mixtures else None
    return row[shown], items.column(found, "kappa")[shown], first


def _condition(ranges: Ranges) -> str:
    return " OR ".join(f"(row >= {start} AND row < {stop})" for start, stop in ranges) or "false"


def _count(items: ItemTable, state: State) -> int:
    """Number of vectors in the table that a state shows. Lance knows it without reading them, if none is hidden."""
    hidden = [(int(start), int(stop)) for start, stop in state.hidden]
    with items.place.plain_errors():
        return items.table.count_rows() - (items.table.count_rows(_condition(hidden)) if hidden else 0)


def _compacted(old: State, new: State) -> bool:
    """Whether rows may have come into other files. Adding items makes files, and removing them drops files."""
    before, after = ({name for name in state.files if "/data/" in name} for state in (old, new))
    return bool(before - after and after - before)


def merged(values: np.ndarray, new: np.ndarray, lost: np.ndarray) -> np.ndarray | None:
    """Ascending values with new ones, and without lost ones; None if a lost one is not there."""
    values = np.insert(values, np.searchsorted(values, new), new)
    among_equals = np.arange(len(lost)) - np.searchsorted(lost, lost)
    places = np.searchsorted(values, lost) + among_equals
    if len(lost) and (places[-1] >= len(values) or (values[places] != lost).any()):
        return None
    return np.delete(values, places)
