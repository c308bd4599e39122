"""Bootstrap intervals: how far would a metric vary over other samples of items?"""

import math
from collections.abc import Callable
from typing import Any

import torch

from aleator.foundation import require, require_count, require_probability


def interval(
    metric: Callable[..., float | None], *arrays: Any, resamples: int = 200, seed: int = 0, level: float = 0.95
) -> tuple[float, float] | None:
    """Bootstrap interval of a metric (Efron and Tibshirani 1993, percentile interval).

    Items are drawn with replacement, and the metric is computed on each draw. The same items are drawn from all arrays,
    so a metric may also be the difference of two scores on the same items.

    Args:
        metric: Function of the arrays that returns a number, or None or NaN where it is not defined.
        *arrays: Arrays of the same length N.
        resamples: Number of draws.
        seed: Seed of the draws. Metrics with equal N and seed are computed on the same draws.
        level: Probability of the interval.

    Returns:
        Its two ends. None if the metric is not defined on more than half of the draws.

    Raises:
        ValueError: If the arrays differ in length, or an argument is out of range.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import interval
        >>> low, high = interval(lambda hits: hits.mean().item(), torch.arange(100) % 2 / 1.0)
        >>> 0.35 < low < 0.45 < 0.55 < high < 0.65
        True
    """
    require_count("resamples", resamples, "pass 200, for example")
    require_probability("level", level, "pass 0.95, for example")
    require(bool(arrays), "arrays", 0, "there is nothing to draw from", "pass at least one array")
    values = [torch.as_tensor(array) for array in arrays]
    n = len(values[0])
    for value in values:
        require(len(value) == n > 0, "arrays", len(value), f"the first has {n} items", "pass arrays of one length")
    generator = torch.Generator().manual_seed(seed)
    found, refusal = [], None
    for _ in range(resamples):
        chosen = torch.randint(n, (n,), generator=generator)
        try:
            number = metric(*(value[chosen.to(value.device)] for value in values))
        except ValueError as error:  # such as a resample of one class
            refusal = error
            continue
        if number is not None and not math.isnan(number):
            found.append(number)
    if refusal is not None and not found:
        raise refusal
    if len(found) <= resamples / 2:
        return None
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(found, dtype=torch.float64).quantile(ends).tolist()
    return low, high
