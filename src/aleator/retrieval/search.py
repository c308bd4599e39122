"""The steps of a search: from queries to ranked candidates with their scores, through any store.

`search_by_cosine` answers credible and nearest searches, `search_by_match` match searches. On an approximate store
both start with the effort that the recall report gives for a small answer. They search harder while the answer grows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from aleator.matching import MatchMaps, OrderedBy, ZonalKernel
from aleator.retrieval.filters import Predicate
from aleator.retrieval.items import decode_metadata
from aleator.retrieval.match_scoring import (
    CosineBound,
    least_log_r,
    likely_pairs,
    match_log_ratios,
    posteriors,
    probabilities,
)
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.scoring import cosines, slack
from aleator.retrieval.stores.base import Candidates, Finder, Store

SearchBy = Literal["credible", "match", "nearest"]

SPARE = 16  # extra neighbours per request, so that one request usually settles ties
SMALL_COLLECTION = 50_000  # up to here it is faster to score all items than to compute a bound


@dataclass(frozen=True)
class SearchRequest:
    """Q queries, and how to answer them."""

    mu: np.ndarray  # (Q, D) float32
    kappa: np.ndarray  # (Q,) float64
    radius: np.ndarray  # (Q,) least cosine that an item must have; -inf for any
    threshold: float  # least match probability, for `search_by_match`
    limit: int | None  # most hits for each query
    passes: Predicate | None  # the filter
    kernel: ZonalKernel
    prior: float
    maps: MatchMaps
    report: RecallReport | None  # None: search exactly

    def __len__(self) -> int:
        return len(self.mu)

    def with_limit(self, limit: int | None) -> "SearchRequest":
        """The same request for at most `limit` hits of each query."""
        return replace(self, limit=limit)

    def block(self, start: int, stop: int) -> "SearchRequest":
        """The same request for the queries from `start` to `stop`."""
        chosen = slice(start, stop)
        return replace(self, mu=self.mu[chosen], kappa=self.kappa[chosen], radius=self.radius[chosen])


@dataclass(frozen=True)
class ScoredCandidates:
    """n candidates with their cosine (n,), match probability (n,) and the query's mode (n,); None: it has one."""

    candidates: Candidates
    cosine: np.ndarray
    match_probability: np.ndarray
    mode: np.ndarray | None = None

    def take(self, choice: np.ndarray) -> "ScoredCandidates":
        """The candidates that a mask or an index array selects."""
        mode = None if self.mode is None else self.mode[choice]
        return ScoredCandidates(self.candidates.take(choice), self.cosine[choice], self.match_probability[choice], mode)


def search_by_cosine(store: Store, request: SearchRequest) -> ScoredCandidates:
    """Items within each query's radius, nearest first, at most `limit` for each query."""
    candidates, cosine = find_by_cosine(store, request)
    probability = score_matches(request, candidates, rank_of(candidates), len(store))
    return ScoredCandidates(candidates, cosine, probability)


def find_by_cosine(store: Store, request: SearchRequest) -> tuple[Candidates, np.ndarray]:
    """What `search_by_cosine` finds, with cosines, without match probabilities."""
    if request.limit is None:
        candidates, cosine = _accept(store, request, find_within(store, request))
    else:
        candidates, cosine = _find_closest(store, request, request.limit)
    order = rank_candidates(candidates, (cosine,), request.limit)
    return candidates.take(order), cosine[order]


def search_by_match(store: Store, request: SearchRequest) -> ScoredCandidates:
    """Items whose match probability reaches the threshold, likeliest first, at most `limit` for each query."""
    if request.threshold > 0 and len(store) > SMALL_COLLECTION:
        candidates, cosine, log_r = _find_above_bound(store, request)
    else:
        items = every_item(store, request)
        queries, own = posteriors(request.mu, request.kappa), posteriors(items.mu, items.kappa)
        least = least_log_r(request.threshold, request.prior, request.maps)
        query, item, log_r = likely_pairs(queries, own, request.kernel, request.prior, least, request.limit)
        candidates = replace(items.take(item), query=query)
        cosine = cosines(request.mu[query], candidates.mu)
    # Ranked by the probability without calibration, which never changes the order.
    order = rank_candidates(candidates, (probabilities(log_r, request.prior), cosine), request.limit)
    candidates, cosine = candidates.take(order), cosine[order]
    probability = calibrated(request, log_r[order], rank_of(candidates), len(store), "match")
    if request.maps.calibrated:
        probability = never_rising(candidates.query, probability)
    scored = ScoredCandidates(candidates, cosine, probability)
    return scored.take(probability >= np.float32(request.threshold))


def _find_above_bound(store: Store, request: SearchRequest) -> tuple[Candidates, np.ndarray, np.ndarray]:
    """Candidates that can reach the threshold, with their cosines and log r."""
    dim, kappa_range = request.mu.shape[1], store.kappa_range()
    bound = CosineBound(dim, request.kappa, kappa_range, request.kernel, request.prior, request.maps, request.threshold)
    request = replace(request, radius=bound.radius)
    candidates, cosine = _accept(store, request, find_within(store, request))
    possible = bound.admits(candidates.query, cosine, candidates.kappa)
    candidates = candidates.take(possible)
    return candidates, cosine[possible], log_ratios(request, candidates)


def every_item(store: Store, request: SearchRequest) -> Candidates:
    """All items that pass the filter, once; `query` is 0."""
    anywhere = np.eye(1, request.mu.shape[1], dtype=np.float32)
    found = narrowed(store, request, None).within(anywhere, np.array([-np.inf]), None)
    if request.passes is None:
        return found
    return found.take(np.isin(found.row, passing_rows(store, request, np.unique(found.row))))


def score_matches(request: SearchRequest, candidates: Candidates, rank: np.ndarray, items: int) -> np.ndarray:
    """Match probabilities (n,) of n candidates with their queries, given their ranks (n,) by cosine."""
    log_r = log_ratios(request, candidates)
    return calibrated(request, log_r, rank, items, "cosine")


def log_ratios(request: SearchRequest, candidates: Candidates) -> np.ndarray:
    """log r (n,) of n candidates with their queries."""
    queries, items = posteriors(request.mu, request.kappa), posteriors(candidates.mu, candidates.kappa)
    return match_log_ratios(queries, items, candidates.query, None, request.kernel)


def calibrated(
    request: SearchRequest, log_r: np.ndarray, rank: np.ndarray, items: int, ordered_by: OrderedBy
) -> np.ndarray:
    """Match probabilities (n,) from log r (n,) and ranks (n,) in an answer out of `items` items."""
    matches = request.prior * items
    log_odds_ratio = request.maps.hit_log_odds(torch.as_tensor(log_r), torch.as_tensor(rank), matches, ordered_by)
    return probabilities(log_odds_ratio.numpy(), request.prior)


def rank_of(candidates: Candidates) -> np.ndarray:
    """The rank (n,) from 1 of each candidate in the answer to its query; candidates are in their final order."""
    return np.arange(len(candidates)) - np.searchsorted(candidates.query, candidates.query) + 1


def never_rising(query: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """The smallest probability (n,) up to each candidate, among those of its query; `query` (n,) ascends."""
    falling = probability.copy()
    for hits in np.split(falling, np.flatnonzero(np.diff(query)) + 1):
        np.minimum.accumulate(hits, out=hits)
    return falling


def _accept(store: Store, request: SearchRequest, candidates: Candidates) -> tuple[Candidates, np.ndarray]:
    """The candidates that belong to the answer, and their exact cosines.

    An item belongs if its cosine reaches the query's radius and its metadata pass the filter.
    """
    cosine = cosines(request.mu[candidates.query], candidates.mu)
    accepted = cosine >= request.radius[candidates.query]
    if request.passes is not None:
        accepted &= np.isin(candidates.row, passing_rows(store, request, candidates.row[accepted]))
    return candidates.take(accepted), cosine[accepted]


def passing_rows(store: Store, request: SearchRequest, rows: np.ndarray) -> np.ndarray:
    """Those of the rows whose metadata pass the filter."""
    if request.passes is None:
        return rows
    described = store.describe(rows).items()
    return np.array([row for row, (_, metadata) in described if request.passes(decode_metadata(metadata))], np.int64)


def narrowed(store: Store, request: SearchRequest, effort: int | None) -> Finder:
    """Where to search: among the items that may pass the filter, if the search is exact.

    The effort of an approximate search was measured among all items. Among fewer it would find a smaller share.
    """
    return store if request.passes is None or effort is not None else store.narrowed(request.passes.texts)


def find_within(store: Store, request: SearchRequest) -> Candidates:
    """Candidates within each query's radius.

    Queries whose answer is larger than the effort was measured for are asked again with more effort.
    """
    mu, radius = request.mu, request.radius
    parts: list[Candidates] = []
    pending = np.arange(len(mu))  # queries without an answer yet
    for rung in request.report.rungs if request.report else ():
        candidates = store.within(mu[pending], radius[pending], rung.effort)
        too_large = np.bincount(candidates.query, minlength=len(pending)) > rung.size
        parts.append(candidates.take(~too_large[candidates.query]).of_queries(pending))
        pending = pending[too_large]
        if len(pending) == 0:
            break
    if len(pending) or not parts:
        found = narrowed(store, request, None).within(mu[pending], radius[pending], None)
        parts.append(found.of_queries(pending))
    return Candidates.concatenate(parts)


def _find_closest(store: Store, request: SearchRequest, limit: int) -> tuple[Candidates, np.ndarray]:
    """The nearest items that belong to the answer, and their cosines: `limit` of each query or more, if there are.

    Items that a round left out cannot matter when they lie outside the radius, or farther away than the limit-th
    accepted item.
    """
    mu, radius = request.mu, request.radius

    def ask(pending: np.ndarray, count: int, effort: int | None) -> Round:
        neighbours, reach = narrowed(store, request, effort).closest(mu[pending], count, effort)
        accepted, cosine = _accept(store, request, neighbours.of_queries(pending))
        worst_needed = limit_th_score(accepted, cosine, pending, limit)
        enough = np.maximum(radius[pending], worst_needed) - slack(mu.shape[1])
        return Round(accepted, cosine, reach < enough, np.isneginf(reach))

    return find_in_rounds(len(mu), limit, request.report, ask)


class Round(NamedTuple):
    """What one round found for the queries (P,) that it asked: n accepted candidates, and which queries are done."""

    accepted: Candidates
    score: np.ndarray  # (n,)
    settled: np.ndarray  # (P,) whether what was left out cannot matter
    all_seen: np.ndarray  # (P,) whether the search returned everything that it saw


def find_in_rounds(
    queries: int, limit: int, report: RecallReport | None, ask: Callable[[np.ndarray, int, int | None], Round]
) -> tuple[Candidates, np.ndarray]:
    """Candidates of all queries in order of the query, with their scores.

    Each round asks, for the queries that are not done, for four times as many neighbours. `ask` gets the numbers of the
    queries, the number of neighbours and the effort.
    """
    parts: list[Candidates] = []
    scores: list[np.ndarray] = []
    pending, count = np.arange(queries), limit  # queries without an answer yet
    while len(pending):
        effort = report.effort(count) if report else None
        found = ask(pending, count + SPARE, effort)
        # An approximate search that returned everything it saw may have missed items: go on.
        done = np.where(found.all_seen, effort is None, found.settled)
        kept = np.isin(found.accepted.query, pending[done])
        parts.append(found.accepted.take(kept))
        scores.append(found.score[kept])
        pending = pending[~done]
        count *= 4
    order = np.argsort(np.concatenate([part.query for part in parts]), kind="stable")
    return Candidates.concatenate(parts), np.concatenate(scores)[order]


def rank_candidates(candidates: Candidates, scores: tuple[np.ndarray, ...], limit: int | None) -> np.ndarray:
    """Positions of the candidates to keep: by query, then by each score from the largest, then by row."""
    order = np.lexsort((candidates.row, *(-score for score in reversed(scores)), candidates.query))
    if limit is None:
        return order
    query = candidates.query[order]
    rank = np.arange(len(order)) - np.searchsorted(query, query)
    return order[rank < limit]


def limit_th_score(candidates: Candidates, score: np.ndarray, queries: np.ndarray, limit: int) -> np.ndarray:
    """The score of each query's limit-th best item; -inf for a query with fewer items."""
    order = rank_candidates(candidates, (score,), limit)
    query, score = candidates.query[order], score[order]
    last = np.searchsorted(query, queries, side="right") - 1
    full = np.searchsorted(query, queries) + limit - 1 == last
    return np.where(full, score[np.maximum(last, 0)] if len(score) else -np.inf, -np.inf)
