"""Everything an index holds, read in one pass: for looking at a collection as a whole."""

from dataclasses import dataclass

import numpy as np

from aleator.retrieval.index import CredibleIndex

_BLOCK = 10_000  # items described at a time


@dataclass(frozen=True)
class Contents:
    """n items in the order in which they were added; ids and metadata as JSON text."""

    keys: list[str]  # (n,)
    mu: np.ndarray  # (n, D) float32
    kappa: np.ndarray  # (n,) float32
    notes: list[str]  # (n,)

    def __len__(self) -> int:
        return len(self.keys)


def read_contents(index: CredibleIndex) -> Contents:
    """All items of an index. Those that are removed meanwhile are left out."""
    store = index._store
    axis = np.eye(1, index.dim, dtype=np.float32)
    found = store.within(axis, np.array([-np.inf]), None)  # no cosine is too small
    found = found.take(np.argsort(found.row))
    described: dict[int, tuple[str, str]] = {}
    for start in range(0, len(found), _BLOCK):
        described |= store.describe(found.row[start : start + _BLOCK])
    there = np.array([row in described for row in found.row.tolist()], bool)
    if not there.all():
        found = found.take(there)
    pairs = [described[row] for row in found.row.tolist()]
    return Contents([key for key, _ in pairs], found.mu, found.kappa, [note for _, note in pairs])
