"""Calibrated match probabilities: increasing maps from log r to log odds, which a prior then completes.

A learned r is not exact, so its logarithm is mapped to what held-out pairs say: the log odds ratio g(log r), by which
the log odds of a match exceed those of the prior,

    logit P(match) = g(log r) + logit(prior).

g increases, so it never changes an order. `aleator.evaluation.fit_log_odds_map` fits it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import require

# Left of the first knot the map falls like log r itself: an r that is smaller than any that was seen is still evidence.
_LEFT_SLOPE = 1.0
# Right of the last knot it hardly rises: nothing is surer than what was seen. It rises all the same, to keep the order.
LEAST_SLOPE = 0.02
FIRST_HITS = 10  # the map of hits belongs to this many first hits of a search


@dataclass(frozen=True)
class LogOddsMap:
    """An increasing, piecewise linear map from log r to a calibrated log odds ratio. Without knots it is the identity.

    Args:
        knots: Values of log r, increasing.
        values: What the map makes of them, increasing.

    Examples:
        >>> import torch
        >>> from aleator.matching import LogOddsMap
        >>> calibrated = LogOddsMap((0.0, 2.0), (-1.0, 3.0))
        >>> calibrated(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
        tensor([-2., -1.,  1.,  3.])
        >>> calibrated.inverse(1.0)
        1.0
        >>> LogOddsMap()(torch.tensor([0.5]))
        tensor([0.5000])
    """

    knots: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        same = len(self.knots) == len(self.values)
        require(same, "values", len(self.values), f"there are {len(self.knots)} knots", "give one value for each knot")
        for name in ("knots", "values"):
            numbers = getattr(self, name)
            increasing = all(a < b for a, b in pairwise(numbers)) and all(map(math.isfinite, numbers))
            require(increasing, name, numbers, "are not finite and increasing", "give each knot a larger number")

    def __call__(self, log_r: Tensor) -> Tensor:
        """Map values of log r.

        Args:
            log_r: Values of log r, any shape.

        Returns:
            Log odds ratios, in the same shape and dtype.
        """
        return _interpolate(log_r, self.knots, self.values, _LEFT_SLOPE, LEAST_SLOPE)

    def inverse(self, log_odds: float) -> float:
        """The log r that is mapped to a log odds ratio.

        Args:
            log_odds: A log odds ratio.

        Returns:
            The log r.
        """
        asked = torch.tensor(log_odds, dtype=torch.float64)
        return _interpolate(asked, self.values, self.knots, 1 / _LEFT_SLOPE, 1 / LEAST_SLOPE).item()


@dataclass(frozen=True)
class MatchMaps:
    """The maps of calibrated match probabilities: one for any two items, one for the hits of a search.

    Hits need a map of their own. They are the pairs whose r came out largest, partly by chance. Among pairs of the same
    r, the first hits therefore match less often. Later hits are more and more like any pair, see `hit_log_odds`.

    Args:
        pair: Map for any two items.
        hit: Map for the first ten items that a search finds.

    Examples:
        >>> import torch
        >>> from aleator.matching import LogOddsMap, MatchMaps
        >>> maps = MatchMaps(pair=LogOddsMap((0.0, 1.0), (0.0, 2.0)), hit=LogOddsMap((0.0, 1.0), (-1.0, 0.5)))
        >>> MatchMaps.from_dict(maps.to_dict()) == maps
        True
        >>> MatchMaps().calibrated
        False
    """

    pair: LogOddsMap = field(default_factory=LogOddsMap)
    hit: LogOddsMap = field(default_factory=LogOddsMap)

    @property
    def calibrated(self) -> bool:
        """Whether a map was fitted. If not, both are the identity."""
        return bool(self.pair.knots or self.hit.knots)

    def hit_log_odds(self, log_r: Tensor, rank: Tensor, matches: float) -> Tensor:
        """Log odds ratio of hits by their rank in an answer.

        The first ten hits have the map of hits. From there the map of pairs takes over in proportion to the logarithm
        of the rank, until the rank is as large as the number of matches that a query has.

        Args:
            log_r: log r of the hits, shape (...).
            rank: Their ranks from 1, shape (...).
            matches: Number of items that match a query: the prior times the number of items.

        Returns:
            Log odds ratios, shape (...), in the dtype of log_r.
        """
        depth = (rank.double() / FIRST_HITS).log() / max(math.log(max(matches, 1.0) / FIRST_HITS), 1e-6)
        of_pairs = depth.clamp(0.0, 1.0)
        hit, pair = self.hit(log_r).double(), self.pair(log_r).double()
        mixed = torch.where(of_pairs == 0, hit, torch.where(of_pairs == 1, pair, torch.lerp(hit, pair, of_pairs)))
        return mixed.to(log_r.dtype)

    def to_dict(self) -> dict[str, Any]:
        """The maps as JSON can hold them.

        Returns:
            Knots and values of each map.
        """
        return {
            name: {"knots": list(each.knots), "values": list(each.values)}
            for name, each in (("pair", self.pair), ("hit", self.hit))
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any] | None) -> "MatchMaps":
        """The maps that `to_dict` described.

        Args:
            stored: What `to_dict` returned. None, as in files of older versions, gives identities.

        Returns:
            The maps.

        Raises:
            ValueError: If a map does not increase.
        """
        if stored is None:
            return cls()
        maps = (LogOddsMap(tuple(stored[name]["knots"]), tuple(stored[name]["values"])) for name in ("pair", "hit"))
        return cls(*maps)


def _interpolate(
    x: Tensor, at: tuple[float, ...], values: tuple[float, ...], left_slope: float, right_slope: float
) -> Tensor:
    """Piecewise linear interpolation, with given slopes beyond the first and the last point; x if there is no point."""
    if not at:
        return x
    points, heights = (torch.tensor(numbers, dtype=torch.float64, device=x.device) for numbers in (at, values))
    ends = torch.tensor([left_slope, right_slope], dtype=torch.float64, device=x.device)
    slopes = torch.cat([ends[:1], heights.diff() / points.diff(), ends[1:]])
    asked = x.detach().double().contiguous()
    piece = torch.searchsorted(points, asked)  # 0 is left of the first point
    start = (piece - 1).clamp_min(0)
    return (heights[start] + slopes[piece] * (x.double() - points[start])).to(x.dtype)
