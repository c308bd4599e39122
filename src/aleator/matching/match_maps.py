"""Calibrated match probabilities: increasing maps from log r to log odds, which a prior then completes.

A learned r is not exact, so its logarithm is mapped to what held-out pairs say: the log odds ratio g(log r), by which
the log odds of a match exceed those of the prior,

    logit P(match) = g(log r) + logit(prior).

g increases, so it never changes an order of r. The hits of a search are a selection, and the first hit is the one that
gained most by chance. Their log odds ratio therefore depends on the rank, too: g(log r) + s log(rank).
`aleator.evaluation.fit_log_odds_map` and `fit_hit_map` fit them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from aleator.foundation import require

# Left of the first knot the map falls like log r itself: an r that is smaller than any that was seen is still evidence.
_LEFT_SLOPE = 1.0
# Right of the last knot it hardly rises: nothing is surer than what was seen. It rises all the same, to keep the order.
LEAST_SLOPE = 0.02
FIRST_HITS = 10  # the maps of hits belong to this many first hits of a search
# What a search orders its hits by: the cosine (nearest and credible searches), or the match probability.
OrderedBy = Literal["cosine", "match"]


@dataclass(frozen=True)
class LogOddsMap:
    """An increasing, piecewise linear map from log r to a calibrated log odds ratio. Without knots it is the identity.

    Args:
        knots: Values of log r, increasing.
        values: What the map makes of them, increasing; for a map of hits, at rank 1.
        rank_slope: What is added for each unit of log(rank), up to rank 10.

    Examples:
        >>> import torch
        >>> from aleator.matching import LogOddsMap
        >>> calibrated = LogOddsMap((0.0, 2.0), (-1.0, 3.0))
        >>> calibrated(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
        tensor([-2., -1.,  1.,  3.])
        >>> calibrated.inverse(1.0)
        1.0
        >>> LogOddsMap((0.0, 2.0), (-1.0, 3.0), rank_slope=0.5)(torch.tensor([1.0, 1.0]), torch.tensor([1, 2]))
        tensor([1.0000, 1.3466])
        >>> LogOddsMap()(torch.tensor([0.5]))
        tensor([0.5000])
    """

    knots: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    rank_slope: float = 0.0

    def __post_init__(self) -> None:
        same = len(self.knots) == len(self.values)
        require(same, "values", len(self.values), f"there are {len(self.knots)} knots", "give one value for each knot")
        for name in ("knots", "values"):
            numbers = getattr(self, name)
            increasing = all(a < b for a, b in pairwise(numbers)) and all(map(math.isfinite, numbers))
            require(increasing, name, numbers, "are not finite and increasing", "give each knot a larger number")
        require(math.isfinite(self.rank_slope), "rank_slope", self.rank_slope, "is not finite", "0 ignores the rank")

    def __call__(self, log_r: Tensor, rank: Tensor | None = None) -> Tensor:
        """Map values of log r.

        Args:
            log_r: Values of log r, any shape.
            rank: Ranks from 1, in a shape that broadcasts to that of log_r. Default: 1.

        Returns:
            Log odds ratios, in the shape and dtype of log_r.
        """
        mapped = _interpolate(log_r, self.knots, self.values, _LEFT_SLOPE, LEAST_SLOPE)
        if rank is None or self.rank_slope == 0:
            return mapped
        return mapped + (self.rank_slope * log_rank(rank)).to(mapped.dtype)

    def inverse(self, log_odds: float) -> float:
        """The log r that is mapped to a log odds ratio at rank 1.

        Args:
            log_odds: A log odds ratio.

        Returns:
            The log r.
        """
        asked = torch.tensor(log_odds, dtype=torch.float64)
        return _interpolate(asked, self.values, self.knots, 1 / _LEFT_SLOPE, 1 / LEAST_SLOPE).item()

    def least_log_r(self, log_odds: float) -> float:
        """The smallest log r that reaches a log odds ratio at some rank.

        Args:
            log_odds: A log odds ratio.

        Returns:
            The log r.
        """
        return self.inverse(log_odds - max(0.0, self.rank_slope * math.log(FIRST_HITS)))


@dataclass(frozen=True)
class MatchMaps:
    """The maps of calibrated match probabilities: one for any two items, two for the hits of a search.

    Hits need maps of their own. They are the pairs whose r came out largest, partly by chance. Among pairs of the same
    r, the first hits therefore match less often, above all if the search orders by r itself. Later hits are more and
    more like any pair, see `hit_log_odds`.

    Args:
        pair: Map for any two items.
        hit: Map for the first ten items that a search by cosine finds: a nearest or a credible one.
        likeliest: Map for the first ten items that a search by match finds. Default: `hit`, as in earlier releases.

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
    likeliest: LogOddsMap | None = None

    @property
    def calibrated(self) -> bool:
        """Whether a map was fitted. If not, all are the identity."""
        return bool(self.pair.knots or self.hit.knots)

    def of_hits(self, ordered_by: OrderedBy) -> LogOddsMap:
        """The map of the first ten hits of a search.

        Args:
            ordered_by: What the search orders its hits by: "cosine" or "match".

        Returns:
            The map.
        """
        return self.hit if ordered_by == "cosine" or self.likeliest is None else self.likeliest

    def least_log_r(self, log_odds: float, ordered_by: OrderedBy) -> float:
        """The smallest log r with which a hit reaches a log odds ratio at some rank.

        Args:
            log_odds: A log odds ratio.
            ordered_by: What the search orders its hits by: "cosine" or "match".

        Returns:
            The log r.
        """
        # Whatever its rank, the log odds ratio of a hit lies between the two maps.
        return min(each.least_log_r(log_odds) for each in (self.of_hits(ordered_by), self.pair))

    def hit_log_odds(self, log_r: Tensor, rank: Tensor, matches: float, ordered_by: OrderedBy = "cosine") -> Tensor:
        """Log odds ratio of hits by their rank in an answer.

        The first ten hits have the map of hits. From there the map of pairs takes over in proportion to the logarithm
        of the rank, until the rank is as large as the number of matches that a query has.

        Args:
            log_r: log r of the hits, shape (...).
            rank: Their ranks from 1, shape (...).
            matches: Number of items that match a query: the prior times the number of items.
            ordered_by: What the search orders its hits by: "cosine" or "match".

        Returns:
            Log odds ratios, shape (...), in the dtype of log_r.
        """
        depth = (rank.double() / FIRST_HITS).log() / max(math.log(max(matches, 1.0) / FIRST_HITS), 1e-6)
        of_pairs = depth.clamp(0.0, 1.0)
        hit, pair = self.of_hits(ordered_by)(log_r, rank).double(), self.pair(log_r).double()
        mixed = torch.where(of_pairs == 0, hit, torch.where(of_pairs == 1, pair, torch.lerp(hit, pair, of_pairs)))
        return mixed.to(log_r.dtype)

    def to_dict(self) -> dict[str, Any]:
        """The maps as JSON can hold them.

        Returns:
            Knots, values and the slope of the rank of each map.
        """
        return {
            name: {"knots": list(each.knots), "values": list(each.values), "rank_slope": each.rank_slope}
            for name, each in vars(self).items()
            if each is not None
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any] | None) -> "MatchMaps":
        """The maps that `to_dict` described.

        Args:
            stored: What `to_dict` returned, in this or an earlier release. None, as in files of older versions, gives
                identities.

        Returns:
            The maps.

        Raises:
            ValueError: If a map does not increase.
        """
        if stored is None:
            return cls()
        maps = {
            name: LogOddsMap(
                tuple(stored[name]["knots"]), tuple(stored[name]["values"]), stored[name].get("rank_slope", 0.0)
            )
            for name in ("pair", "hit", "likeliest")
            if name in stored or name != "likeliest"  # earlier releases had one map for all hits
        }
        return cls(**maps)


def log_rank(rank: Tensor) -> Tensor:
    """The logarithm of ranks from 1, as far as maps of hits distinguish them: up to rank 10; float64."""
    return rank.double().clamp_max(FIRST_HITS).log()


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
