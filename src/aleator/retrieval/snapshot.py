"""A copy of all items of an index in memory, for looking at a collection as a whole."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from aleator.posteriors import PosteriorBatch
from aleator.retrieval.match_scoring import posteriors
from aleator.retrieval.mixture_search import stored_mixtures
from aleator.retrieval.stores.base import Store

_BLOCK = 10_000  # items looked up at a time


@dataclass(frozen=True)
class Snapshot:
    """All n items of an index, in the order in which they were added."""

    keys: list[str]  # (n,) ids as JSON text
    mu: np.ndarray  # (n, D) float32, of the heaviest mode
    kappa: np.ndarray  # (n,) float32, of the heaviest mode
    metadata_json: list[str]  # (n,) metadata as JSON text
    posteriors: PosteriorBatch  # (n,), of one mode or several

    def __len__(self) -> int:
        return len(self.keys)


class HasStore(Protocol):
    """A `CredibleIndex`."""

    @property
    def store(self) -> Store:
        """The store that keeps the items."""


def take_snapshot(index: HasStore) -> Snapshot:
    """Read all items of an index. Items that are removed while this runs are left out."""
    store = index.store
    any_direction = np.eye(1, store.config["dim"], dtype=np.float32)
    items = store.within(any_direction, np.array([-np.inf]), None)  # every cosine reaches -inf
    items = items.take(np.lexsort((() if items.weight is None else (-items.weight,)) + (items.row,)))
    descriptions: dict[int, tuple[str, str]] = {}
    for start in range(0, len(items), _BLOCK):
        descriptions |= store.describe(items.row[start : start + _BLOCK])
    still_there = np.array([row in descriptions for row in items.row.tolist()], bool)
    if not still_there.all():
        items = items.take(still_there)
    rows, first, number = np.unique(items.row, return_index=True, return_inverse=True)
    described = [descriptions[row] for row in rows.tolist()]
    mu, kappa = items.mu[first], items.kappa[first]
    whole = posteriors(mu, kappa) if items.weight is None else stored_mixtures(replace(items, query=number), len(rows))
    return Snapshot([key for key, _ in described], mu, kappa, [metadata for _, metadata in described], whole)
