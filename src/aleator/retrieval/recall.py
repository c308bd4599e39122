"""How hard an approximate index must search: measured on the index itself, against exact search.

Items of the index serve as queries. For answers of 16, 128 and 1,024 items, the least effort is kept that
finds the target share of what exact search finds. A search starts at the first rung and climbs while its
answer is larger than the rung was measured for; past the last rung it is exact.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aleator.retrieval.scoring import cosines
from aleator.retrieval.stores.base import Candidates, Store

_QUERIES = 256
_SIZES = (16, 128, 1024)
_SHARE = 64  # an answer larger than this part of the collection is not worth approximating


@dataclass(frozen=True)
class Rung:
    """The effort that found `recall` of the answers of `size` items."""

    size: int
    effort: int
    recall: float


@dataclass(frozen=True)
class RecallReport:
    """What the index measured about itself. `recall` of each rung, less its standard error, is the target."""

    target: float
    queries: int
    rungs: tuple[Rung, ...]

    def effort(self, size: int) -> int | None:
        """The effort for an answer of `size` items; None is exact."""
        return next((rung.effort for rung in self.rungs if size <= rung.size), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "RecallReport":
        return cls(facts["target"], facts["queries"], tuple(Rung(**rung) for rung in facts["rungs"]))


def calibrate(store: Store, target: float) -> dict[str, Any]:
    """Measure the ladder of efforts; a `RecallReport` as a dict, for the store's settings."""
    mu = store.sample(_QUERIES)
    sizes = [size for size in _SIZES if size * _SHARE <= len(store)]
    efforts, rungs = store.efforts, []
    if sizes:
        exact, _ = store.closest(mu, max(sizes) + 1, None)
    for size in sizes:
        radius = _radius_of(exact, mu, size)
        asked = _counts(exact, mu, radius)

        def recall(effort: int, radius: np.ndarray = radius, asked: np.ndarray = asked) -> tuple[float, float]:
            """The mean share found and its standard error."""
            found = _counts(store.within(mu, radius, effort), mu, radius)
            # Less one: each query is an item, and finds itself.
            share = np.clip((found - 1) / np.maximum(asked - 1, 1), 0, 1)
            return float(share.mean()), float(share.std() / np.sqrt(len(share)))

        def enough(effort: int, recall: Callable = recall) -> bool:
            mean, error = recall(effort)
            return mean - error >= target

        efforts = efforts[bisect_left(efforts, True, key=enough) :]
        if efforts:
            rungs.append(Rung(size, efforts[0], round(recall(efforts[0])[0], 4)))
    return RecallReport(target, len(mu), tuple(rungs)).to_dict()


def _radius_of(candidates: Candidates, mu: np.ndarray, size: int) -> np.ndarray:
    """The cosine (Q,) of the size-th nearest item other than the query itself."""
    cosine = cosines(mu[candidates.query], candidates.mu)
    order = np.lexsort((-cosine, candidates.query))
    first = np.searchsorted(candidates.query, np.arange(len(mu)))
    return cosine[order][np.minimum(first + size, len(order) - 1)]


def _counts(candidates: Candidates, mu: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """How many candidates (Q,) lie within the radius."""
    reached = cosines(mu[candidates.query], candidates.mu) >= radius[candidates.query]
    return np.bincount(candidates.query[reached], minlength=len(mu))
