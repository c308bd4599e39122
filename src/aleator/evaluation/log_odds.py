"""Fit the maps of calibrated match probabilities; see `aleator.matching.match_maps`."""

import math
from typing import Any

import numpy as np
import torch

from aleator.evaluation.agreement import as_vectors
from aleator.foundation import require, require_probability
from aleator.matching import LEAST_SLOPE, LogOddsMap

_PIECES = 10
_OUTER = 0.002  # share of the pairs beyond the first and beyond the last knot
_NARROWEST = 1e-3  # nats between knots
# How far the fitted map is expected to lie from the map that it starts from, in nats (standard deviations): its middle,
# and the rise of each piece. A few hundred observations outweigh this; with few, the map stays where it starts.
_MIDDLE_SPREAD, _RISE_SPREAD = 2.0, 1.0


def fit_log_odds_map(
    log_r: Any,
    match: Any,
    prior: float,
    *,
    weight: Any = None,
    observations: float | None = None,
    start: LogOddsMap | None = None,
) -> LogOddsMap:
    """Fit an increasing map from log r to a log odds ratio, so that pairs match as often as they are said to.

    The likelihood of the pairs under logit P = g(log r) + logit(prior) is maximised over increasing, piecewise linear
    g, with a normal prior around `start`.

    Args:
        log_r: log r of held-out pairs, shape (P,).
        match: Whether each pair matches, shape (P,): 1, 0, or a probability between them.
        prior: Share of matches among all pairs of the collection.
        weight: Weights of the pairs, shape (P,). Default: equal.
        observations: How many independent observations the pairs amount to. The hits of a question are right or wrong
            together, so they count as one. Default: the number of pairs.
        start: The map that is kept if there is nothing to learn from. Default: the identity.

    Returns:
        The map.

    Raises:
        ValueError: If vectors differ in length or are empty, a log r is not finite, or the prior is not inside (0, 1).

    Examples:
        Pairs whose r is twice as far from 1, in logarithms, as it should be:

        >>> import torch
        >>> from aleator.evaluation import fit_log_odds_map
        >>> log_r = 4 * torch.randn(5000, generator=torch.Generator().manual_seed(0))
        >>> match = torch.rand(5000, generator=torch.Generator().manual_seed(1)) < torch.sigmoid(log_r / 2)
        >>> g = fit_log_odds_map(log_r, match, prior=0.5)
        >>> bool((g(torch.tensor([-4.0, 0.0, 4.0])) - torch.tensor([-2.0, 0.0, 2.0])).abs().max() < 0.4)
        True
    """
    from scipy.optimize import minimize

    require_probability("prior", prior, "pass the share of matches among all pairs")
    log_r, match = as_vectors(log_r=log_r, match=match)
    _, weight = as_vectors(log_r=log_r, weight=np.ones(len(log_r)) if weight is None else weight)
    x, outcome, weights = (vector.cpu().numpy() for vector in (log_r, match, weight))
    finite = torch.isfinite(log_r)
    require(finite, "log_r", log_r, "is not finite", "leave out posteriors with an infinite kappa")
    weights = weights / weights.sum()
    count = float(len(x) if observations is None else observations)
    start = LogOddsMap() if start is None else start
    knots = _knots(x)
    widths = np.diff(knots)
    start_values = _apply(start, knots)
    start_rises = np.maximum(np.diff(start_values), LEAST_SLOPE * widths)
    middle = len(knots) // 2

    # Parameters: the value at the first knot, and the rise of each piece. `basis` gives their share in each pair.
    basis = _basis(x, knots)
    logit_prior = math.log(prior / (1 - prior))

    def cost(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        log_odds = basis @ parameters + logit_prior
        loss = np.logaddexp(0, log_odds) - outcome * log_odds
        slope = weights * (_sigmoid(log_odds) - outcome)
        off_middle = parameters[0] + parameters[1 : middle + 1].sum() - start_values[middle]
        off_rises = (parameters[1:] - start_rises) / _RISE_SPREAD**2
        penalty = off_middle**2 / _MIDDLE_SPREAD**2 + ((parameters[1:] - start_rises) * off_rises).sum()
        gradient = count * (basis.T @ slope)
        gradient[: middle + 1] += off_middle / _MIDDLE_SPREAD**2
        gradient[1:] += off_rises
        return count * float(weights @ loss) + penalty / 2, gradient

    first = np.concatenate([start_values[:1], start_rises])
    bounds = [(None, None), *((LEAST_SLOPE * width, None) for width in widths)]
    found = minimize(cost, first, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 500}).x
    return LogOddsMap(tuple(knots.tolist()), tuple(np.cumsum(found).tolist()))


def _knots(x: np.ndarray) -> np.ndarray:
    """Knots at quantiles of x (P,), ascending; two or more."""
    candidates = np.quantile(x, np.linspace(_OUTER, 1 - _OUTER, _PIECES + 1))
    knots = [candidates[0]]
    for candidate in candidates[1:]:
        if candidate - knots[-1] >= _NARROWEST:
            knots.append(candidate)
    return np.array(knots if len(knots) > 1 else [knots[0], knots[0] + 1.0])


def _basis(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """How the map at each x (P,) depends on the value at the first knot and on the rises; (P, pieces + 1)."""
    part = np.clip((x[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    return np.concatenate([np.ones((len(x), 1)), part], 1)


def _apply(start: LogOddsMap, x: np.ndarray) -> np.ndarray:
    return start(torch.from_numpy(x)).numpy()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))
