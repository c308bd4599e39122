"""Searches where queries or items have several modes.

Each component of a query asks the store, and each vector of the store is a component of an item. An item is at its main
directions, those of components with a tenth of the weight or more. It belongs to the credible set of a query if one of
them lies in the region of highest density, and appears once, with the direction where the query's density is highest.

Three bounds make the searches exact:

    credible   The caps of the components cover the region (`CredibleRegion.caps`).
    limited    A direction that no component's search returned has at most the density sum_k w_k vMF_k at the reaches.
    match      r(q, q') is a mean of r over pairs of components, so some pair reaches what the mean reaches.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from aleator.matching import ZonalKernel
from aleator.posteriors import CredibleRegion, PosteriorBatch, VMFMixture, VonMisesFisher
from aleator.retrieval.match_scoring import (
    CosineBound,
    least_log_r,
    likely_pairs,
    match_log_ratios,
    posteriors,
    probabilities,
)
from aleator.retrieval.scoring import TIE, cosines, slack
from aleator.retrieval.search import (
    SMALL_COLLECTION,
    Round,
    ScoredCandidates,
    SearchRequest,
    calibrated,
    every_item,
    find_in_rounds,
    find_within,
    limit_th_score,
    narrowed,
    never_rising,
    passing_rows,
    rank_candidates,
    rank_of,
)
from aleator.retrieval.stores.base import Candidates, Store

MAIN_WEIGHT = 0.1  # of a component whose direction counts as a place of its item
REGION_SAMPLES = 256  # of each component; the level of a region is then right to about 0.2 %
_ROUNDING = 1e-9  # nats of log density that are rounding


@dataclass(frozen=True)
class MixtureRequest:
    """Q queries of K modes, and how to answer them.

    Args:
        queries: The queries, batch shape (Q,), float64, with directions as they are stored.
        log_threshold: Least log density of a query at a main direction of an item, shape (Q,); -inf for any.
        components: The request of all Q K components. Its radius is that of caps that cover the region.
    """

    queries: VMFMixture
    log_threshold: np.ndarray
    components: SearchRequest

    @property
    def kernel(self) -> ZonalKernel:
        return self.components.kernel

    @property
    def kappa(self) -> np.ndarray:
        """One certainty (Q,) for each query: that of the closest vMF."""
        return self.queries.closest_vmf().kappa.numpy()

    def __len__(self) -> int:
        return len(self.log_threshold)

    def block(self, start: int, stop: int) -> "MixtureRequest":
        """The same request for the queries from `start` to `stop`."""
        modes = self.queries.modes
        components = self.components.block(start * modes, stop * modes)
        return MixtureRequest(self.queries[start:stop], self.log_threshold[start:stop], components)

    def with_limit(self, limit: int | None) -> "MixtureRequest":
        """The same request for at most `limit` hits of each query."""
        return replace(self, components=replace(self.components, limit=limit))

    def likeliest(self) -> tuple["MixtureRequest", np.ndarray]:
        """Queries of one component at the mode, where density falls with the angle, and whose mode it is (Q,)."""
        mode, count = self.queries.mode, len(self)
        number = _log_densities(self, np.arange(count), mode.numpy())[0].argmax(axis=1)
        one = VonMisesFisher(mode, torch.ones(count, dtype=torch.float64), validate_args=False)
        return mixture_request(one, np.full(count, -np.inf), self.components), number


def mixture_request(queries: PosteriorBatch, log_threshold: np.ndarray, plain: SearchRequest) -> MixtureRequest:
    """A request of queries (Q,) in float64. All but the queries and radii comes from `plain`."""
    mixture = VMFMixture(queries.log_weights, queries.components, validate_args=False)
    mu = mixture.components.mu.reshape(-1, mixture.dim).numpy().astype(np.float32)
    kappa = mixture.components.kappa.flatten().numpy()
    cap = CredibleRegion(mixture, torch.as_tensor(log_threshold)).caps().flatten().numpy() - TIE
    radius = np.where(cap > -1, cap, -np.inf)
    return MixtureRequest(mixture, log_threshold, replace(plain, mu=mu, kappa=kappa, radius=radius))


def region_thresholds(queries: PosteriorBatch, p: float | torch.Tensor) -> np.ndarray:
    """Log density (Q,) at the edge of each query's region of highest density, less what is rounding.

    Levels p broadcast with the queries.
    """
    return queries.region(p, REGION_SAMPLES).log_threshold.double().numpy() - _ROUNDING


def search_mixtures_by_density(store: Store, request: MixtureRequest) -> ScoredCandidates:
    """Items in each query's region, where its density is highest first, at most `limit` for each query."""
    candidates, _ = find_by_density(store, request)
    cosine, mode = place(request, candidates)
    return _scored(store, request, candidates, cosine, mode)


def search_mixtures_nearest(store: Store, request: MixtureRequest) -> ScoredCandidates:
    """The items nearest to the likeliest direction of each query."""
    likeliest, number = request.likeliest()
    candidates, _ = find_by_density(store, likeliest)
    cosine, _ = place(likeliest, candidates)
    return _scored(store, request, candidates, cosine, number[candidates.query])


def highest_log_density(query: PosteriorBatch, items: PosteriorBatch) -> np.ndarray:
    """Log density of one query, batch shape (1,), at the main direction of each item where it is highest, (N,)."""
    mu = items.components.mu.double()  # (N, K, D)
    density = query.double().log_prob(mu.flatten(0, 1)).view(mu.shape[:2])
    main = items.log_weights.exp() >= min(MAIN_WEIGHT, (1 - 1e-6) / items.modes)
    return torch.where(main, density, -np.inf).amax(1).numpy()


def find_by_density(store: Store, request: MixtureRequest) -> tuple[Candidates, np.ndarray]:
    """Items in each query's region with their direction of highest density, ranked, and the log density there."""
    limit = request.components.limit
    if limit is None:
        plain = request.components
        asked = np.flatnonzero(plain.radius <= 1)
        found = find_within(store, replace(plain, mu=plain.mu[asked], radius=plain.radius[asked]))
        candidates, density = _accept(store, request, found.of_queries(asked))
    else:
        candidates, density = _find_densest(store, request, limit)
    order = rank_candidates(candidates, (density,), limit)
    return candidates.take(order), density[order]


def search_mixtures_by_match(store: Store, request: MixtureRequest) -> ScoredCandidates:
    """Items whose match probability reaches the threshold, likeliest first, at most `limit` for each query."""
    plain = request.components
    above_bound = plain.threshold > 0 and len(store) > SMALL_COLLECTION
    found = _find_above_bound(store, request) if above_bound else _find_likely(store, request)
    candidates, log_r = whole_log_ratios(store, request, found)
    cosine, mode = place(request, candidates)
    order = rank_candidates(candidates, (probabilities(log_r, plain.prior), cosine), plain.limit)
    candidates = candidates.take(order)
    probability = calibrated(plain, log_r[order], rank_of(candidates), len(store), "match")
    if plain.maps.calibrated:
        probability = never_rising(candidates.query, probability)
    scored = ScoredCandidates(candidates, cosine[order], probability, mode[order])
    return scored.take(probability >= np.float32(plain.threshold))


def _find_above_bound(store: Store, request: MixtureRequest) -> Candidates:
    """Items of which a component can reach the threshold with a component of the query, each once."""
    plain = request.components
    dim, kappa_range = plain.mu.shape[1], store.kappa_range()
    bound = CosineBound(dim, plain.kappa, kappa_range, plain.kernel, plain.prior, plain.maps, plain.threshold)
    found = find_within(store, replace(plain, radius=bound.radius))
    cosine = cosines(plain.mu[found.query], found.mu)
    found = found.take(bound.admits(found.query, cosine, found.kappa))
    found = replace(found, query=found.query // request.queries.modes)
    found = found.take(_first_of_each_item(found, np.zeros(len(found))))
    return found.take(np.isin(found.row, passing_rows(store, plain, found.row)))


def _find_likely(store: Store, request: MixtureRequest) -> Candidates:
    """Items that may be in the answers, each once: log r of all pairs is computed."""
    plain, parts = request.components, every_item(store, request.components)
    parts = parts.take(np.lexsort((() if parts.weight is None else (-parts.weight,)) + (parts.row,)))
    rows, first, number = np.unique(parts.row, return_index=True, return_inverse=True)
    several = parts.weight is not None
    items = stored_mixtures(replace(parts, query=number), len(rows)) if several else posteriors(parts.mu, parts.kappa)
    least = least_log_r(plain.threshold, plain.prior, plain.maps)
    query, item, _ = likely_pairs(request.queries, items, request.kernel, plain.prior, least, plain.limit)
    return replace(parts.take(first[item]), query=query)


def whole_log_ratios(store: Store, request: MixtureRequest, candidates: Candidates) -> tuple[Candidates, np.ndarray]:
    """log r (n,) of candidates with their queries, from all components of both.

    Candidates come back with the main direction where the query's density is highest, without items that were removed
    while this runs.
    """
    candidates, log_r, parts, which = _ratios_and_items(store, request, candidates)
    return candidates if parts is None else _at_densest_direction(store, request, candidates, parts, which), log_r


def _ratios_and_items(
    store: Store, request: MixtureRequest, candidates: Candidates
) -> tuple[Candidates, np.ndarray, Candidates | None, np.ndarray]:
    """Candidates (n,) that are still there, their log r (n,), the components of their items, and which item each is.

    The components are None where every item has one.
    """
    if candidates.weight is None:
        one_mode = posteriors(candidates.mu, candidates.kappa)
        log_r = match_log_ratios(request.queries, one_mode, candidates.query, None, request.kernel)
        return candidates, log_r, None, np.arange(len(candidates))
    rows, which = np.unique(candidates.row, return_inverse=True)
    parts = store.components(rows)
    items = stored_mixtures(parts, len(rows))
    there = np.bincount(parts.query, minlength=len(rows)) > 0
    if not there.all():
        candidates, which = candidates.take(there[which]), which[there[which]]
    log_r = match_log_ratios(request.queries, items, candidates.query, which, request.kernel)
    return candidates, log_r, parts, which


def stored_mixtures(parts: Candidates, count: int) -> VMFMixture:
    """Items (count,) from their components, as `Store.components` returns them. Missing items are flat."""
    assert parts.weight is not None
    sizes = np.bincount(parts.query, minlength=count)
    slot = np.arange(len(parts)) - (np.cumsum(sizes) - sizes)[parts.query]
    modes, dim = max(1, int(sizes.max(initial=1))), parts.mu.shape[1]
    weight, kappa = np.zeros((count, modes), np.float32), np.zeros((count, modes), np.float32)
    mu = np.zeros((count, modes, dim), np.float32)
    mu[..., 0] = 1
    weight[:, 0] = sizes == 0
    weight[parts.query, slot], kappa[parts.query, slot], mu[parts.query, slot] = parts.weight, parts.kappa, parts.mu
    components = VonMisesFisher(torch.from_numpy(mu), torch.from_numpy(kappa), validate_args=False)
    return VMFMixture(torch.from_numpy(weight).log(), components, validate_args=False)


def _scored(
    store: Store, request: MixtureRequest, candidates: Candidates, cosine: np.ndarray, mode: np.ndarray
) -> ScoredCandidates:
    """Candidates in their final order with match probabilities."""
    known, log_r, _, _ = _ratios_and_items(store, request, candidates)
    if len(known) < len(candidates):  # removed while this search ran
        keep = np.isin(candidates.row, known.row)
        candidates, cosine, mode = candidates.take(keep), cosine[keep], mode[keep]
    probability = calibrated(request.components, log_r, rank_of(candidates), len(store), "cosine")
    return ScoredCandidates(candidates, cosine, probability, mode)


def _log_densities(request: MixtureRequest, query: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of weight times density of every component (n, K) at directions (n, D), and the cosines (n, K)."""
    queries, modes = request.queries, request.queries.modes
    own, kappa = request.components.mu.reshape(len(request), modes, -1), queries.components.kappa.numpy()
    height = _heights(queries)
    cosine = np.column_stack([cosines(own[query, k], mu) for k in range(modes)])
    return _below_height(height[query], kappa[query], cosine), cosine


def _heights(queries: VMFMixture) -> np.ndarray:
    """Log of weight times density of each component at its own direction, (Q, K)."""
    height = queries.components.log_prob(queries.components.mu)
    return torch.where(queries.log_weights > -np.inf, queries.log_weights + height, -np.inf).numpy()


def _below_height(height: np.ndarray, kappa: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """Log of weight times density at a cosine, from its height at the cosine 1; all have one shape."""
    point = np.isinf(kappa)
    finite = height + np.where(point, 0.0, kappa) * (cosine - 1)
    return np.where(point & (cosine < 1 - TIE), -np.inf, finite)


def place(request: MixtureRequest, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """The number (n,) of the query's component that a candidate's direction belongs to, and the cosine (n,) with it."""
    log_density, cosine = _log_densities(request, candidates.query, candidates.mu)
    mode = log_density.argmax(axis=1) if len(candidates) else np.empty(0, np.int64)
    return cosine[np.arange(len(candidates)), mode], mode


def _accept(store: Store, request: MixtureRequest, found: Candidates) -> tuple[Candidates, np.ndarray]:
    """The items that belong to the answer, each once, with the log density at their direction.

    `found` has the numbers of components as queries.
    """
    found = replace(found, query=found.query // request.queries.modes)
    if found.weight is not None:
        found = found.take(found.weight >= _main_weight(store))
    density = np.logaddexp.reduce(_log_densities(request, found.query, found.mu)[0], axis=1)
    inside = density >= request.log_threshold[found.query]
    found, density = found.take(inside), density[inside]
    first = _first_of_each_item(found, density)
    found, density = found.take(first), density[first]
    if request.components.passes is not None:
        passing = np.isin(found.row, passing_rows(store, request.components, found.row))
        found, density = found.take(passing), density[passing]
    return found, density


def _find_densest(store: Store, request: MixtureRequest, limit: int) -> tuple[Candidates, np.ndarray]:
    """The items of highest density, `limit` of each query or more, if there are, with their log density.

    Directions that no component's neighbours returned cannot matter if the density there is lower, at most.
    """
    queries, modes = request.queries, request.queries.modes
    height, kappa = _heights(queries), queries.components.kappa.numpy()

    def ask(pending: np.ndarray, count: int, effort: int | None) -> Round:
        asked = (pending[:, None] * modes + np.arange(modes)).flatten()
        source = narrowed(store, request.components, effort)
        neighbours, reach = source.closest(request.components.mu[asked], count, effort)
        accepted, density = _accept(store, request, neighbours.of_queries(asked))
        enough = np.maximum(request.log_threshold[pending], limit_th_score(accepted, density, pending, limit))
        farthest = np.minimum(reach.reshape(-1, modes) + slack(queries.dim), 1.0)
        all_seen = np.isneginf(farthest).any(axis=1)
        farthest = np.maximum(farthest, -1.0)
        left_out = np.logaddexp.reduce(_below_height(height[pending], kappa[pending], farthest), axis=1)
        return Round(accepted, density, left_out + _ROUNDING < enough, np.asarray(all_seen))

    return find_in_rounds(len(request), limit, request.components.report, ask)


def _at_densest_direction(
    store: Store, request: MixtureRequest, candidates: Candidates, parts: Candidates, which: np.ndarray
) -> Candidates:
    """Candidates (n,) of the items number `which` (n,) of `parts`, each at its main direction of highest density."""
    assert parts.weight is not None
    main = parts.take(parts.weight >= _main_weight(store))
    sizes = np.bincount(main.query, minlength=int(which.max(initial=-1)) + 1)
    number = np.repeat(np.arange(len(which)), sizes[which])
    start = (np.cumsum(sizes) - sizes)[which]
    position = start[number] + np.arange(len(number)) - np.searchsorted(number, number)
    places = replace(main.take(position), query=candidates.query[number])
    density = np.logaddexp.reduce(_log_densities(request, places.query, places.mu)[0], axis=1)
    best = np.lexsort((-density, number))[np.searchsorted(number, np.arange(len(which)))]
    return places.take(best)


def _main_weight(store: Store) -> float:
    """Least weight of a main direction. The heaviest component of an item always reaches it."""
    return min(MAIN_WEIGHT, (1 - 1e-6) / store.config.get("modes", 1))


def _first_of_each_item(found: Candidates, score: np.ndarray) -> np.ndarray:
    """Positions of the candidate with the highest score, of each pair of query and item, in order of the query."""
    order = np.lexsort((-score, found.row, found.query))
    query, row = found.query[order], found.row[order]
    new = np.append(True, (query[1:] != query[:-1]) | (row[1:] != row[:-1]))[: len(order)]
    return order[new]
