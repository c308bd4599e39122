"""How hard an approximate index must search, measured on the index itself against exact search.

Items of the index serve as queries. For answers of 16, 128 and 1,024 items, `tune_recall` finds the least effort that
returns the target share of what exact search returns. A search starts with the effort for 16 items. When its answer is
larger than that, it goes on to the next effort, and after the last one it searches exactly.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aleator.retrieval.scoring import cosines
from aleator.retrieval.stores.base import Candidates, Store

_QUERIES, _FEWEST_QUERIES = 256, 64  # for the smallest and for large answers, which tell more each
_SIZES = (16, 128, 1024)
_LARGEST_SHARE = 64  # an answer of more than 1/64 of the collection is searched exactly


@dataclass(frozen=True)
class Rung:
    """One measurement: the least effort that reaches the target recall for answers of `size` items.

    Attributes:
        size: Number of items in an answer.
        effort: Least effort that reaches the target.
        recall: Mean share of the exact answer that was found with this effort.

    Examples:
        >>> from aleator.retrieval import Rung
        >>> Rung(size=16, effort=3, recall=0.994).effort
        3
    """

    size: int
    effort: int
    recall: float


@dataclass(frozen=True)
class RecallReport:
    """What an approximate index measured about its own search.

    Attributes:
        target: Share of the exact answer that a search should find. It holds for the measured recall less its standard
            error.
        queries: Number of items that served as queries.
        rungs: A `Rung` for each size of answer, in ascending order.

    Examples:
        >>> import torch, aleator as al
        >>> torch.manual_seed(0)
        <...>
        >>> mu = torch.nn.functional.normalize(torch.randn(2000, 4), dim=-1)
        >>> index = al.CredibleIndex.build(al.VonMisesFisher(mu, 50.0), exact_below=1000, recall=0.9)
        >>> index.recall_report.target, index.recall_report.rungs[0].size
        (0.9, 16)
    """

    target: float
    queries: int
    rungs: tuple[Rung, ...]

    def effort(self, size: int) -> int | None:
        """Effort for an answer of a given size.

        Args:
            size: Expected number of items in the answer.

        Returns:
            The effort; None means that the search should be exact.
        """
        return next((rung.effort for rung in self.rungs if size <= rung.size), None)

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict for JSON.

        Returns:
            A dict with the keys "target", "queries" and "rungs".
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, report: Mapping[str, Any]) -> "RecallReport":
        """The inverse of `to_dict`.

        Args:
            report: What `to_dict` returned.

        Returns:
            The report.
        """
        return cls(report["target"], report["queries"], tuple(Rung(**rung) for rung in report["rungs"]))


def tune_recall(store: Store, target: float) -> dict[str, Any]:
    """Find the least effort for each size of answer, by comparing approximate with exact search.

    Args:
        store: An approximate store.
        target: Share of the exact answer that a search should find.

    Returns:
        A `RecallReport` as a dict, for `store.config["report"]`.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.retrieval import tune_recall
        >>> torch.manual_seed(0)
        <...>
        >>> mu = torch.nn.functional.normalize(torch.randn(2000, 4), dim=-1)
        >>> index = al.CredibleIndex.build(al.VonMisesFisher(mu, 50.0), exact_below=1000)
        >>> tune_recall(index.store, target=0.9)["target"]
        0.9
    """
    mu = store.sample_directions(_QUERIES)
    sizes = [size for size in _SIZES if size * _LARGEST_SHARE <= len(store)]
    efforts, rungs = store.efforts, []
    if sizes:
        exact, _ = store.closest(mu, max(sizes) + 1, None)
    for size in sizes:
        asked = mu[: max(_FEWEST_QUERIES, _QUERIES * _SIZES[0] // size)]
        answers = exact.take(exact.query < len(asked))
        radius = _cosine_of_nth(answers, asked, size)
        exact_counts = _counts_within(answers, asked, radius)

        def recall(
            effort: int,
            asked: np.ndarray = asked,
            radius: np.ndarray = radius,
            exact_counts: np.ndarray = exact_counts,
        ) -> tuple[float, float]:
            """The mean recall and its standard error."""
            counts = _counts_within(store.within(asked, radius, effort), asked, radius)
            # Less one: each query is an item, and finds itself.
            share = np.clip((counts - 1) / np.maximum(exact_counts - 1, 1), 0, 1)
            return float(share.mean()), float(share.std() / np.sqrt(len(share)))

        def enough(effort: int, recall: Callable = recall) -> bool:
            mean, error = recall(effort)
            return mean - error >= target

        # A larger answer needs at least the effort of a smaller one.
        efforts = efforts[bisect_left(efforts, True, key=enough) :]
        if efforts:
            rungs.append(Rung(size, efforts[0], round(recall(efforts[0])[0], 4)))
    return RecallReport(target, len(mu), tuple(rungs)).to_dict()


def _cosine_of_nth(candidates: Candidates, mu: np.ndarray, size: int) -> np.ndarray:
    """The cosine (Q,) of each query's size-th nearest item, not counting the query itself."""
    cosine = cosines(mu[candidates.query], candidates.mu)
    order = np.lexsort((-cosine, candidates.query))
    first = np.searchsorted(candidates.query, np.arange(len(mu)))
    return cosine[order][np.minimum(first + size, len(order) - 1)]


def _counts_within(candidates: Candidates, mu: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The number (Q,) of candidates within each query's radius."""
    reached = cosines(mu[candidates.query], candidates.mu) >= radius[candidates.query]
    return np.bincount(candidates.query[reached], minlength=len(mu))
