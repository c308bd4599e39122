"""Match probability under both posteriors, and a cosine below which no item can reach a threshold.

The density ratio r(x, x') of exact-positivity.md grows with the cosine of the two mus, for each pair of
kappas: so every kappa of an item has a cutoff cosine. Kappas between two values a < b are bounded together.
With r(kappa) = int vMF(z; mu', kappa) rho(z) dz for a function rho >= 0 of the query,

    d log r / d kappa = E[mu'.z] - A_1(kappa) <= 1 - A_1(kappa),      the expectation under vMF times rho, so
    log r(kappa) <= log r(a) + M(b) - M(a),      M(kappa) = log vMF(mu'; mu', kappa), the density at the mode,

whatever the kernel. An item that this bound rejects is rejected soundly, and the rest are judged exactly.
"""

import numpy as np
import torch

from aleator.matching import ZonalKernel, log_positivity, match_probability
from aleator.posteriors import VonMisesFisher
from aleator.retrieval.stores.base import Candidates

_WIDTH = 4  # candidates of one query in a line of the table of pairs
_BLOCK = 8192  # lines at a time
_BUCKETS = 192  # intervals of kappa, besides the point at infinity
_STEPS = 12  # of bisection in the cosine: to 5e-4, always from below
_SAFETY = 1e-6  # nats, for the rounding of log r


def match_probabilities(
    mu: np.ndarray, kappa: np.ndarray, found: Candidates, kernel: ZonalKernel, prior: float
) -> np.ndarray:
    """P(same latent) of n candidates with their queries, whose mu is (Q, D) and kappa (Q,) -> (n,) float32.

    Rounding to float32 hides the last digits, which depend on how pairs are batched: equal items tie.
    """
    if len(found) == 0:
        return np.empty(0, np.float32)
    # A table: each line holds a query and up to _WIDTH of its candidates, which share the query's side of the series.
    counts = np.bincount(found.query, minlength=len(mu))
    lines = -(-counts // _WIDTH)
    rank = np.arange(len(found)) - (np.cumsum(counts) - counts)[found.query]
    line, column = (np.cumsum(lines) - lines)[found.query] + rank // _WIDTH, rank % _WIDTH
    owner = np.repeat(np.arange(len(mu)), lines)
    table = np.zeros((len(owner), _WIDTH), np.int64)  # where a line is not full, the first candidate of all
    table[line, column] = np.arange(len(found))
    out = np.empty(table.shape, np.float32)
    for start in range(0, len(out), _BLOCK):
        own, items = owner[start : start + _BLOCK], table[start : start + _BLOCK]
        left = _posteriors(mu[own][:, None], kappa[own][:, None])
        right = _posteriors(found.mu[items], found.kappa[items])
        out[start : start + _BLOCK] = match_probability(left, right, kernel, prior=prior).numpy()
    return out[line, column]


class MatchBound:
    """For each of Q queries, the least cosine at which an item of given kappa may reach the threshold."""

    def __init__(
        self,
        dim: int,
        kappa: np.ndarray,
        kappa_range: tuple[float, float],
        kernel: ZonalKernel,
        prior: float,
        threshold: float,
    ):
        """kappa (Q,) of the queries, kappa_range of the items held: smallest and largest finite one."""
        needed = -np.inf if threshold <= 0 else np.log(threshold / (1 - threshold)) - np.log(prior / (1 - prior))
        edges = _edges(dim, *kappa_range)
        rise = np.diff(_mode_density(dim, edges)) + _SAFETY
        # The point at infinity is a bucket of its own.
        self._lowest = np.append(edges[:-1], np.inf)  # (G,)
        need = needed - np.append(rise, _SAFETY)  # (G,)
        self._cutoff = _least_cosine(dim, kappa, self._lowest, need, kernel)  # (Q, G)

    @property
    def radius(self) -> np.ndarray:
        """The least cosine (Q,) for any kappa that the index holds."""
        return self._cutoff.min(axis=1)

    def admits(self, query: np.ndarray, cosine: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """Whether each of n candidates may reach the threshold; (n,) each."""
        bucket = np.searchsorted(self._lowest, kappa, side="right") - 1
        return cosine >= self._cutoff[query, bucket]


def _edges(dim: int, low: float, high: float) -> np.ndarray:
    """Interval ends from low to high (both included), equally spaced in the density at the mode."""
    if low == high:
        return np.array([low, high])
    grid = np.unique(np.append(np.geomspace(max(low, 1e-3), max(high, 1e-3), 1024), [low, high]))
    grid = grid[(grid >= low) & (grid <= high)]
    density = _mode_density(dim, grid)
    edges = np.interp(np.linspace(density[0], density[-1], _BUCKETS + 1), density, grid)
    edges[0], edges[-1] = low, high
    return np.maximum.accumulate(edges)


def _mode_density(dim: int, kappa: np.ndarray) -> np.ndarray:
    mode = torch.eye(1, dim, dtype=torch.float64)
    return VonMisesFisher(mode, torch.as_tensor(kappa)).log_prob(mode).numpy()


def _least_cosine(
    dim: int, kappa: np.ndarray, item_kappa: np.ndarray, need: np.ndarray, kernel: ZonalKernel
) -> np.ndarray:
    """A cosine (Q, G) just below where log r reaches need (G,): -inf if it always does, inf if never."""
    left = VonMisesFisher(torch.eye(1, dim, dtype=torch.float64), torch.as_tensor(kappa)[:, None], validate_args=False)

    def reaches(cosine: np.ndarray) -> np.ndarray:
        mu = torch.zeros(*cosine.shape, dim, dtype=torch.float64)
        mu[..., 0] = torch.as_tensor(cosine)
        mu[..., 1] = torch.sqrt(1 - mu[..., 0].square())
        right = VonMisesFisher(mu, torch.as_tensor(item_kappa), validate_args=False)
        return log_positivity(left, right, kernel).numpy() >= need

    shape = (len(kappa), len(item_kappa))
    below, above = np.full(shape, -1.0), np.full(shape, 1.0)
    always, never = reaches(below), ~reaches(above)
    for _ in range(_STEPS):
        middle = (below + above) / 2
        reached = reaches(middle)
        below, above = np.where(reached, below, middle), np.where(reached, middle, above)
    return np.where(always, -np.inf, np.where(never, np.inf, below))


def _posteriors(mu: np.ndarray, kappa: np.ndarray) -> VonMisesFisher:
    return VonMisesFisher(
        torch.as_tensor(mu.astype(np.float64)), torch.as_tensor(kappa.astype(np.float64)), validate_args=False
    )
