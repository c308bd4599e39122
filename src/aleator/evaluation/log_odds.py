"""Fit the maps that calibrate match probabilities; `aleator.matching.match_maps` has the maps."""

import math
from typing import Any

import numpy as np
import torch

from aleator.evaluation.agreement import as_vectors
from aleator.foundation import require, require_probability
from aleator.matching import LEAST_SLOPE, LogOddsMap, log_rank

_PIECES = 10
_OUTER = 0.002  # share of the pairs beyond the first and beyond the last knot
_NARROWEST = 1e-3  # nats between knots
# How far the fitted map is expected to lie from the map that it starts from, in nats (standard deviations): its middle,
# and the rise of each piece. A few hundred observations outweigh this; with few, the map stays where it starts.
_MIDDLE_SPREAD, _RISE_SPREAD = 2.0, 1.0
# The same for a map of hits, which is expected to be nearly a line: its slope, the bend of each piece, and the slope of
# log(rank). A few hundred questions are enough for a line. Each of ten free rises would be fitted to their chance.
_LINE_SPREAD, _BEND_SPREAD, _RANK_SPREAD = 1.0, 0.3, 1.0


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
    x, outcome, weights, count = _checked(log_r, match, prior, weight, observations)
    start = LogOddsMap() if start is None else start
    knots = _knots(x)
    start_values = _apply(start, knots)
    mean = np.concatenate([[_middle(start_values)], np.diff(start_values)])
    spread = np.concatenate([[_MIDDLE_SPREAD], np.full(len(knots) - 1, _RISE_SPREAD)])
    found = _fit(_design(x, knots), outcome, weights, count, prior, mean, np.diag(spread**2), _least(knots))
    return _as_map(knots, found)


def fit_hit_map(
    log_r: Any,
    rank: Any,
    match: Any,
    prior: float,
    *,
    observations: float | None = None,
    start: LogOddsMap | None = None,
) -> LogOddsMap:
    """Fit the map of the first hits of a search, g(log r) + s log(rank), so that hits match as often as said.

    The first hit is the largest of many noisy numbers, so it gained most by chance; s makes up for that. g is
    increasing and piecewise linear. It has a normal prior around a line, and the line has one around the line that is
    nearest to `start`.

    Args:
        log_r: log r of held-out hits, shape (P,).
        rank: Their ranks from 1, shape (P,).
        match: Whether each hit matches, shape (P,): 1, 0, or a probability between them.
        prior: Share of matches among all pairs of the collection.
        observations: How many independent observations the hits amount to: the number of questions, because the hits of
            a question are right or wrong together. Default: the number of hits.
        start: The map of pairs. Default: the identity.

    Returns:
        The map.

    Raises:
        ValueError: If vectors differ in length or are empty, a log r is not finite, a rank is below 1, or the prior is
            not inside (0, 1).

    Examples:
        First hits whose log r is 2 too large, second hits with the right one:

        >>> import torch
        >>> from aleator.evaluation import fit_hit_map
        >>> truth = 2 * torch.randn(2000, generator=torch.Generator().manual_seed(0))
        >>> match = torch.rand(2000, generator=torch.Generator().manual_seed(1)) < torch.sigmoid(truth)
        >>> rank = 1 + torch.arange(2000) % 2
        >>> g = fit_hit_map(truth + 2.0 * (rank == 1), rank, match, prior=0.5)
        >>> bool((g(torch.tensor([2.0, 0.0]), torch.tensor([1, 2]))).abs().max() < 0.4)
        True
    """
    x, outcome, weights, count = _checked(log_r, match, prior, None, observations)
    _, ranks = as_vectors(log_r=log_r, rank=rank)
    require(ranks >= 1, "rank", ranks, "is below 1", "count ranks from 1")
    at_rank = log_rank(ranks).cpu().numpy()
    usual = at_rank.mean()
    knots = _knots(x)
    widths = np.diff(knots)
    level, slope = _nearest_line(x, _apply(LogOddsMap() if start is None else start, x))
    mean = np.concatenate([[level + slope * (_middle(knots) - x.mean())], slope * widths, [0.0]])
    # The rise of a piece is its width times the slope of the line, and a bend: all rises vary together with the slope.
    covariance = np.zeros((len(mean), len(mean)))
    covariance[0, 0], covariance[-1, -1] = _MIDDLE_SPREAD**2, _RANK_SPREAD**2
    covariance[1:-1, 1:-1] = _LINE_SPREAD**2 * np.outer(widths, widths) + _BEND_SPREAD**2 * np.eye(len(widths))
    design = np.concatenate([_design(x, knots), (at_rank - usual)[:, None]], 1)
    found = _fit(design, outcome, weights, count, prior, mean, covariance, np.append(_least(knots), -np.inf))
    found[0] -= found[-1] * usual  # the map is written down at rank 1
    return _as_map(knots, found[:-1], found[-1].item())


def _checked(
    log_r: Any, match: Any, prior: float, weight: Any, observations: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """log r, matches and weights of P pairs, (P,) each, and how many observations they are. The weights sum to 1."""
    require_probability("prior", prior, "pass the share of matches among all pairs")
    log_r, match = as_vectors(log_r=log_r, match=match)
    _, weight = as_vectors(log_r=log_r, weight=np.ones(len(log_r)) if weight is None else weight)
    require(torch.isfinite(log_r), "log_r", log_r, "is not finite", "leave out posteriors with an infinite kappa")
    x, outcome, weights = (vector.cpu().numpy() for vector in (log_r, match, weight))
    return x, outcome, weights / weights.sum(), float(len(x) if observations is None else observations)


def _fit(
    design: np.ndarray,
    outcome: np.ndarray,
    weights: np.ndarray,
    count: float,
    prior: float,
    mean: np.ndarray,
    covariance: np.ndarray,
    least: np.ndarray,
) -> np.ndarray:
    """Logistic regression with a normal prior and lower bounds of the K parameters.

    The design is (P, K); outcome and weights are (P,); mean and least are (K,); the covariance is (K, K).
    """
    from scipy.optimize import minimize

    logit_prior = math.log(prior / (1 - prior))
    precision = np.linalg.inv(covariance)

    def cost(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        log_odds = design @ parameters + logit_prior
        loss = np.logaddexp(0, log_odds) - outcome * log_odds
        off = parameters - mean
        gradient = count * (design.T @ (weights * (_sigmoid(log_odds) - outcome))) + precision @ off
        return count * float(weights @ loss) + off @ precision @ off / 2, gradient

    bounds = list(zip(least, np.full(len(least), np.inf), strict=True))
    first = np.maximum(mean, least)
    return minimize(cost, first, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 500}).x


def _knots(x: np.ndarray) -> np.ndarray:
    """Knots at quantiles of x (P,), ascending; two or more."""
    candidates = np.quantile(x, np.linspace(_OUTER, 1 - _OUTER, _PIECES + 1))
    knots = [candidates[0]]
    for candidate in candidates[1:]:
        if candidate - knots[-1] >= _NARROWEST:
            knots.append(candidate)
    return np.array(knots if len(knots) > 1 else [knots[0], knots[0] + 1.0])


def _middle(at_knots: np.ndarray) -> float:
    """Of numbers that belong to the knots, the one in the middle."""
    return at_knots[len(at_knots) // 2].item()


def _design(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """How the map at each x (P,) depends on its value at the middle knot and on its rises; (P, pieces + 1)."""
    part = np.clip((x[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    part[:, : len(knots) // 2] -= 1
    return np.concatenate([np.ones((len(x), 1)), part], 1)


def _least(knots: np.ndarray) -> np.ndarray:
    """The least value at the middle knot, and the least rises, (pieces + 1,)."""
    return np.concatenate([[-np.inf], LEAST_SLOPE * np.diff(knots)])


def _as_map(knots: np.ndarray, parameters: np.ndarray, rank_slope: float = 0.0) -> LogOddsMap:
    """The map with this value at the middle knot and these rises, (pieces + 1,)."""
    heights = np.concatenate([[0.0], np.cumsum(parameters[1:])])
    values = parameters[0] + heights - _middle(heights)
    return LogOddsMap(tuple(knots.tolist()), tuple(values.tolist()), rank_slope)


def _nearest_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The line through y (P,) over x (P,) by least squares: its value at the mean of x, and its slope, which rises."""
    off = x - x.mean()
    slope = (off @ y) / max(off @ off, _NARROWEST**2)
    return y.mean().item(), max(float(slope), LEAST_SLOPE)


def _apply(start: LogOddsMap, x: np.ndarray) -> np.ndarray:
    return start(torch.from_numpy(x)).numpy()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))
