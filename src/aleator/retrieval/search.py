"""From a query's radius to the items it accepts, through whatever store holds them.

`climb` finds all items within a radius, `walk` the best few. Both search an approximate store only as hard
as its recall report says the size of the answer needs, and harder while the answer grows.
"""

from collections.abc import Callable

import numpy as np

from aleator.retrieval.items import Metadata, decode_metadata
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.scoring import cosines, slack
from aleator.retrieval.stores.base import Candidates, Store

Judge = Callable[[Candidates], tuple[Candidates, np.ndarray]]

_SPARE = 16  # more neighbours than asked for, so that one pass usually settles ties


def judge(store: Store, mu: np.ndarray, radius: np.ndarray, passes: Callable[[Metadata], bool] | None) -> Judge:
    """The decision on candidates: exact cosine within the query's radius, and metadata that passes the
    filter."""

    def decide(found: Candidates) -> tuple[Candidates, np.ndarray]:
        cosine = cosines(mu[found.query], found.mu)
        accepted = cosine >= radius[found.query]
        if passes is not None:
            described = store.describe(found.row[accepted])
            passing = [row for row, (_, note) in described.items() if passes(decode_metadata(note))]
            accepted &= np.isin(found.row, passing)
        return found.take(accepted), cosine[accepted]

    return decide


def climb(store: Store, report: RecallReport | None, mu: np.ndarray, radius: np.ndarray) -> Candidates:
    """Candidates within radius (Q,) of mu (Q, D)."""
    parts: list[Candidates] = []
    pending = np.arange(len(mu))
    for rung in report.rungs if report else ():
        found = store.within(mu[pending], radius[pending], rung.effort)
        large = np.bincount(found.query, minlength=len(pending)) > rung.size
        parts.append(found.take(~large[found.query]).of(pending))
        pending = pending[large]
        if len(pending) == 0:
            break
    if len(pending) or not parts:
        parts.append(store.within(mu[pending], radius[pending], None).of(pending))
    return Candidates.concatenate(parts)


def walk(
    store: Store, report: RecallReport | None, mu: np.ndarray, radius: np.ndarray, limit: int, decide: Judge
) -> tuple[Candidates, np.ndarray]:
    """The accepted items nearest to mu (Q, D), at least `limit` of them where there are so many, and their
    cosines.

    Neighbours are fetched, four times as many in each round, until whatever was left out is too far away to
    matter: further than the radius, or than the limit-th accepted item.
    """
    parts: list[Candidates] = []
    scores: list[np.ndarray] = []
    pending, wanted = np.arange(len(mu)), limit
    while len(pending):
        effort = report.effort(wanted) if report else None
        found, reach = store.closest(mu[pending], wanted + _SPARE, effort)
        accepted, cosine = decide(found.of(pending))
        enough = np.maximum(radius[pending], _worst_needed(accepted, cosine, pending, limit)) - slack(mu.shape[1])
        # Lists that were not probed may hold more, so an approximate search that ran dry goes on.
        done = np.where(np.isneginf(reach), effort is None, reach < enough)
        settled = np.isin(accepted.query, pending[done])
        parts.append(accepted.take(settled))
        scores.append(cosine[settled])
        pending = pending[~done]
        wanted *= 4
    order = np.argsort(np.concatenate([part.query for part in parts]), kind="stable")
    return Candidates.concatenate(parts), np.concatenate(scores)[order]


def best(found: Candidates, keys: tuple[np.ndarray, ...], limit: int | None) -> np.ndarray:
    """Which candidates to keep, in order: by query, then each key from its largest, then row."""
    order = np.lexsort((found.row, *(-key for key in reversed(keys)), found.query))
    if limit is None:
        return order
    query = found.query[order]
    rank = np.arange(len(order)) - np.searchsorted(query, query)
    return order[rank < limit]


def _worst_needed(found: Candidates, cosine: np.ndarray, queries: np.ndarray, limit: int) -> np.ndarray:
    """The cosine of each query's limit-th best item, -inf where it has fewer."""
    chosen = best(found, (cosine,), limit)
    query, cosine = found.query[chosen], cosine[chosen]
    last = np.searchsorted(query, queries, side="right") - 1
    full = np.searchsorted(query, queries) + limit - 1 == last
    return np.where(full, cosine[np.maximum(last, 0)] if len(cosine) else -np.inf, -np.inf)
