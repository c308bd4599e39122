"""Match probabilities of candidates, and the least cosine at which an item can reach a threshold.

For given kappas, the density ratio r of two posteriors (docs/theory.md) grows with the cosine of their mus. So each
kappa of an item has a least cosine. Kappas in an interval from a to b are bounded together. With
r(kappa) = int vMF(z; mu', kappa) rho(z) dz for a function rho >= 0 of the query,

    d log r / d kappa = E[mu'.z] - A(kappa) <= 1 - A(kappa),
    log r(kappa) <= log r(a) + M(b) - M(a)    for a <= kappa <= b.

The expectation is under the density vMF times rho, A(kappa) is the mean cosine of a vMF distribution, and
M(kappa) = log vMF(mu'; mu', kappa) is its log density at the mode. This holds for every kernel. An item below the
bound cannot reach the threshold; the other items are scored exactly.
"""

import numpy as np
import torch

from aleator.matching import MatchMaps, ZonalKernel, log_positivity, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch, VonMisesFisher

_WIDTH = 4  # candidates of one query in a row of the table of pairs
_BLOCK = 8192  # rows of the table at a time
_TABLE = 2**21  # pairs of a query and an item whose log r is held at once
_INTERVALS = 192  # intervals of finite kappas
_STEPS = 12  # of the bisection in the cosine: to 5e-4, always from below
_ROUNDING = 1e-6  # nats added to the bound, for the rounding of log r


def match_log_ratios(
    queries: PosteriorBatch, items: PosteriorBatch, query: np.ndarray, item: np.ndarray | None, kernel: ZonalKernel
) -> np.ndarray:
    """log r (n,) float64 of n pairs: of query (n,), ascending, among the queries, and item (n,) among the items.

    None for `item` pairs the n items in their order.
    """
    if len(query) == 0:
        return np.empty(0)
    # Pairs as a table: a row holds one query and up to _WIDTH of its items. They share the query's part of the series.
    # Rows that are not full are filled up with the item of pair 0, whose result is not used.
    counts = np.bincount(query, minlength=len(queries))
    rows_per_query = -(-counts // _WIDTH)
    rank = np.arange(len(query)) - (np.cumsum(counts) - counts)[query]
    row, column = (np.cumsum(rows_per_query) - rows_per_query)[query] + rank // _WIDTH, rank % _WIDTH
    query_of_row = torch.as_tensor(np.repeat(np.arange(len(queries)), rows_per_query))
    table = np.full((len(query_of_row), _WIDTH), 0 if item is None else item[0], np.int64)
    table[row, column] = np.arange(len(query)) if item is None else item
    out = np.empty(table.shape)
    for start in range(0, len(out), _BLOCK):
        block = slice(start, start + _BLOCK)
        left, right = queries[query_of_row[block]], items[torch.as_tensor(table[block])]
        out[block] = log_positivity(left.unsqueeze(1).double(), right.double(), kernel).numpy()
    return out[row, column]


def likely_pairs(
    queries: PosteriorBatch, items: PosteriorBatch, kernel: ZonalKernel, prior: float, least: float, limit: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs that may be in the answers: queries (n,), ascending, items (n,), and their log r (n,) float64.

    They are all with a log r of at least `least` that may be among the `limit` likeliest of their query. The table of
    all pairs is computed, because it sums the series of each posterior once, and of each pair hardly anything is left.
    """
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    step = max(1, _TABLE // max(1, queries.modes * items.modes * len(items)))
    for start in range(0, len(queries), step):
        log_r = pairwise_log_positivity(queries[start : start + step].double(), items.double(), kernel).numpy()
        floor = np.full(len(log_r), least)
        if limit is not None and limit < len(items):
            # Answers are ranked by probabilities in float32. Where they tie, the cosine decides.
            last = probabilities(np.partition(log_r, -limit, axis=1)[:, -limit], prior)
            floor = np.maximum(floor, _log_odds(np.nextafter(last, np.float32(0))) - _log_odds(prior))
        query, item = np.nonzero(log_r >= floor[:, None] - _ROUNDING)
        found.append((query + start, item, log_r[query, item]))
    all_queries, all_items, all_ratios = zip(*found, strict=True)
    return np.concatenate(all_queries), np.concatenate(all_items), np.concatenate(all_ratios)


def least_log_r(threshold: float, prior: float, maps: MatchMaps) -> float:
    """The least log r at which the match probability reaches the threshold, by maps that do not rank."""
    if threshold <= 0:
        return -np.inf
    return maps.least_log_r(float(_log_odds(threshold) - _log_odds(prior)) - _ROUNDING, "match")


def _log_odds(probability: float | np.ndarray) -> np.ndarray:
    share = np.asarray(probability, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(share / (1 - share))


def probabilities(log_odds_ratio: np.ndarray, prior: float) -> np.ndarray:
    """Match probabilities (n,) float32 from log odds ratios (n,).

    The last digits of log r depend on how pairs are batched. Rounding to float32 hides them, so that equal items tie.
    """
    log_odds = torch.as_tensor(log_odds_ratio) + torch.logit(torch.tensor(prior, dtype=torch.float64))
    return torch.sigmoid(log_odds).float().numpy()


class CosineBound:
    """The least cosine at which an item can reach the threshold, for each of Q queries and each kappa of an item.

    It is made for searches by match.

    Args:
        dim: D.
        kappa: Certainties of the queries, shape (Q,).
        kappa_range: Smallest and largest finite kappa of the items.
        kernel: Kernel of the match probability.
        prior: Prior of the match probability.
        maps: Maps of the match probability.
        threshold: Least match probability.
    """

    def __init__(
        self,
        dim: int,
        kappa: np.ndarray,
        kappa_range: tuple[float, float],
        kernel: ZonalKernel,
        prior: float,
        maps: MatchMaps,
        threshold: float,
    ):
        needed = least_log_r(threshold, prior, maps)
        edges = _interval_edges(dim, *kappa_range)
        rise = np.diff(_log_density_at_mode(dim, edges)) + _ROUNDING
        # An infinite kappa is an interval of its own, of one point.
        self._lower_edges = np.append(edges[:-1], np.inf)  # (G,)
        needed_at_edge = needed - np.append(rise, _ROUNDING)  # (G,)
        self._least_cosine = _least_cosine(dim, kappa, self._lower_edges, needed_at_edge, kernel)  # (Q, G)

    @property
    def radius(self) -> np.ndarray:
        """The least cosine (Q,) for any kappa in the range."""
        return self._least_cosine.min(axis=1)

    def admits(self, query: np.ndarray, cosine: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """Whether each of n candidates can reach the threshold, (n,); all arguments have shape (n,)."""
        interval = np.searchsorted(self._lower_edges, kappa, side="right") - 1
        return cosine >= self._least_cosine[query, interval]


def _interval_edges(dim: int, low: float, high: float) -> np.ndarray:
    """Edges of intervals from low to high, equally spaced in the log density at the mode."""
    if low == high:
        return np.array([low, high])
    grid = np.unique(np.append(np.geomspace(max(low, 1e-3), max(high, 1e-3), 1024), [low, high]))
    grid = grid[(grid >= low) & (grid <= high)]
    density = _log_density_at_mode(dim, grid)
    edges = np.interp(np.linspace(density[0], density[-1], _INTERVALS + 1), density, grid)
    edges[0], edges[-1] = low, high
    return np.maximum.accumulate(edges)


def _log_density_at_mode(dim: int, kappa: np.ndarray) -> np.ndarray:
    """Log density of a vMF distribution at its mode, for kappa (n,)."""
    mode = torch.eye(1, dim, dtype=torch.float64)
    return VonMisesFisher(mode, torch.as_tensor(kappa)).log_prob(mode).numpy()


def _least_cosine(
    dim: int, kappa: np.ndarray, item_kappa: np.ndarray, needed: np.ndarray, kernel: ZonalKernel
) -> np.ndarray:
    """A cosine (Q, G) just below the one where log r reaches `needed` (G,): -inf if it always does, inf if never."""
    left = VonMisesFisher(torch.eye(1, dim, dtype=torch.float64), torch.as_tensor(kappa)[:, None], validate_args=False)

    def reaches(cosine: np.ndarray) -> np.ndarray:
        mu = torch.zeros(*cosine.shape, dim, dtype=torch.float64)
        mu[..., 0] = torch.as_tensor(cosine)
        mu[..., 1] = torch.sqrt(1 - mu[..., 0].square())
        right = VonMisesFisher(mu, torch.as_tensor(item_kappa), validate_args=False)
        return log_positivity(left, right, kernel).numpy() >= needed

    shape = (len(kappa), len(item_kappa))
    below, above = np.full(shape, -1.0), np.full(shape, 1.0)
    always, never = reaches(below), ~reaches(above)
    for _ in range(_STEPS):
        middle = (below + above) / 2
        reached = reaches(middle)
        below, above = np.where(reached, below, middle), np.where(reached, middle, above)
    return np.where(always, -np.inf, np.where(never, np.inf, below))


def posteriors(mu: np.ndarray, kappa: np.ndarray) -> VonMisesFisher:
    """Posteriors of one mode, in the precision of each array."""
    return VonMisesFisher(torch.as_tensor(mu), torch.as_tensor(kappa), validate_args=False)
