"""Maps from log r to log odds: against interpolation by numpy, and how they combine with a prior."""

import json
import math

import numpy as np
import pytest
import torch

from aleator import VMFKernel, VonMisesFisher, log_positivity, match_probability
from aleator.matching import LEAST_SLOPE, LogOddsMap, MatchMaps

KNOTS, VALUES = (-3.0, -1.0, 0.5, 4.0), (-5.0, -2.5, 0.0, 0.5)
MAP = LogOddsMap(KNOTS, VALUES)


def test_between_knots_it_interpolates_and_beyond_them_it_keeps_rising():
    x = torch.linspace(-3, 4, 101, dtype=torch.float64)
    np.testing.assert_allclose(MAP(x).numpy(), np.interp(x.numpy(), KNOTS, VALUES), atol=1e-12)
    outside = MAP(torch.tensor([-5.0, 54.0, -math.inf, math.inf]))
    torch.testing.assert_close(outside, torch.tensor([-7.0, 0.5 + 50 * LEAST_SLOPE, -math.inf, math.inf]))


def test_it_increases_and_has_an_inverse():
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    y = MAP(x)
    assert (y.diff() > 0).all()
    assert [MAP.inverse(value) for value in y[::400].tolist()] == pytest.approx(x[::400].tolist())
    assert MAP.inverse(-math.inf) == -math.inf


def test_without_knots_it_is_the_identity():
    x = torch.randn(5)
    assert torch.equal(LogOddsMap()(x), x)
    assert LogOddsMap().inverse(0.25) == 0.25
    assert not MatchMaps().calibrated


def test_shape_dtype_and_gradient_are_kept():
    x = torch.tensor([[-2.0], [2.0]], requires_grad=True)
    y = MAP(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.25], [1 / 7]]))


def test_a_prior_multiplies_the_calibrated_odds():
    """Bayes' rule: with another prior, the odds change by the ratio of the prior odds, whatever the map."""
    q = VonMisesFisher(torch.nn.functional.normalize(torch.randn(30, 4, dtype=torch.float64), dim=-1), 20.0)
    kernel = VMFKernel(10.0)
    at = {prior: match_probability(q[:15], q[15:], kernel, prior, MAP) for prior in (0.5, 0.1, 0.02)}
    odds = {prior: p / (1 - p) for prior, p in at.items()}
    torch.testing.assert_close(odds[0.5].log(), MAP(log_positivity(q[:15], q[15:], kernel)))
    torch.testing.assert_close(odds[0.1] / odds[0.5], torch.full((15,), 1 / 9, dtype=torch.float64))
    torch.testing.assert_close(odds[0.02] / odds[0.1], torch.full((15,), 9 / 49, dtype=torch.float64))


def test_later_hits_are_more_and_more_like_any_pair():
    """Of 500 matches: the map of hits up to rank 10, half of each at the geometric mean, then that of pairs."""
    maps = MatchMaps(pair=LogOddsMap((0.0, 1.0), (1.0, 3.0)), hit=LogOddsMap((0.0, 1.0), (0.0, 1.0)))
    log_r = torch.tensor([0.25] * 6, dtype=torch.float64)
    rank = torch.tensor([1.0, 10.0, math.sqrt(10 * 500), 500.0, 501.0, 1e6])
    expected = torch.tensor([0.25, 0.25, (0.25 + 1.5) / 2, 1.5, 1.5, 1.5], dtype=torch.float64)
    torch.testing.assert_close(maps.hit_log_odds(log_r, rank, 500.0), expected, atol=1e-6, rtol=0)
    few = maps.hit_log_odds(log_r, rank, matches=2.0)  # beyond the matches, a hit is any pair
    torch.testing.assert_close(few, torch.tensor([0.25, 0.25, 1.5, 1.5, 1.5, 1.5], dtype=torch.float64))
    assert torch.equal(MatchMaps().hit_log_odds(log_r, rank, 500.0), log_r)


def test_the_rank_adds_its_logarithm_up_to_rank_ten():
    ranked = LogOddsMap(KNOTS, VALUES, rank_slope=0.4)
    x, rank = torch.randn(6, dtype=torch.float64), torch.tensor([1, 2, 5, 10, 11, 10_000])
    expected = MAP(x) + 0.4 * torch.tensor([1, 2, 5, 10, 10, 10], dtype=torch.float64).log()
    torch.testing.assert_close(ranked(x, rank), expected)
    assert torch.equal(ranked(x), MAP(x))  # a pair without a rank is a first hit
    assert ranked(x.float(), rank).dtype == torch.float32
    # Beyond rank 10 the map of pairs takes over from what was reached there.
    maps = MatchMaps(MAP, ranked)
    torch.testing.assert_close(maps.hit_log_odds(x[:4], rank[:4], 100.0), expected[:4])
    halfway = maps.hit_log_odds(x[:1], torch.tensor([100.0]), 1000.0)
    torch.testing.assert_close(halfway, MAP(x[:1]) + 0.4 * math.log(10) / 2)


def test_each_order_of_hits_has_its_map():
    near, likely = LogOddsMap((0.0, 1.0), (0.0, 1.0)), LogOddsMap((0.0, 1.0), (-1.0, 0.5), -0.2)
    x, rank = torch.tensor([0.5, 0.5]), torch.tensor([1, 3])
    maps = MatchMaps(MAP, near, likely)
    torch.testing.assert_close(maps.hit_log_odds(x, rank, 50.0), near(x))
    torch.testing.assert_close(maps.hit_log_odds(x, rank, 50.0, "match"), likely(x, rank))
    older = MatchMaps(MAP, near)
    torch.testing.assert_close(older.hit_log_odds(x, rank, 50.0, "match"), near(x))


@pytest.mark.parametrize("slope", [-0.7, 0.0, 0.7])
def test_no_hit_below_the_least_log_r_reaches_the_log_odds(slope):
    maps = MatchMaps(LogOddsMap((0.0, 2.0), (-1.0, 3.0)), MAP, LogOddsMap(KNOTS, VALUES, slope))
    x = torch.linspace(-8, 8, 1601, dtype=torch.float64)[:, None]
    rank = torch.tensor([1, 2, 9, 10, 11, 40, 99, 100, 5000])
    for ordered_by in ("cosine", "match"):
        reached = maps.hit_log_odds(x.expand(-1, 9), rank.expand(1601, 9), 100.0, ordered_by)
        for log_odds in (-3.0, 0.0, 1.5):
            least = maps.least_log_r(log_odds, ordered_by)
            lowest = x[(reached >= log_odds).any(1)].min()
            assert least - 1e-9 <= lowest <= least + 0.02  # and it is no lower than it has to be


def test_maps_survive_json():
    for maps in (
        MatchMaps(MAP, LogOddsMap((0.1, 0.2), (0.3, 0.7))),
        MatchMaps(MAP, LogOddsMap((0.1, 0.2), (0.3, 0.7), 0.25), LogOddsMap((0.0, 1.0), (0.0, 0.1), -0.5)),
    ):
        assert MatchMaps.from_dict(json.loads(json.dumps(maps.to_dict()))) == maps
        assert maps.calibrated
    assert MatchMaps.from_dict(None) == MatchMaps()


def test_maps_of_earlier_releases_open():
    """They had one map for all hits, and none knew the rank."""
    stored = {"pair": {"knots": [0.0, 1.0], "values": [0.0, 2.0]}, "hit": {"knots": [0.0, 1.0], "values": [-1.0, 0.5]}}
    maps = MatchMaps.from_dict(stored)
    assert maps == MatchMaps(LogOddsMap((0.0, 1.0), (0.0, 2.0)), LogOddsMap((0.0, 1.0), (-1.0, 0.5)))
    assert maps.of_hits("match") == maps.hit
    # And what this release writes holds all that an earlier one reads.
    assert {name: {key: maps.to_dict()[name][key] for key in stored[name]} for name in stored} == stored


@pytest.mark.parametrize(
    ("knots", "values", "message"),
    [
        ((0.0, 1.0), (0.0,), "there are 2 knots"),
        ((0.0, 0.0), (0.0, 1.0), "knots = .*not finite and increasing"),
        ((0.0, 1.0), (1.0, 0.0), "values = .*not finite and increasing"),
        ((0.0, math.inf), (0.0, 1.0), "knots = .*not finite and increasing"),
    ],
)
def test_what_does_not_increase_is_refused(knots, values, message):
    with pytest.raises(ValueError, match=message):
        LogOddsMap(knots, values)


def test_a_slope_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="rank_slope = nan"):
        LogOddsMap(KNOTS, VALUES, math.nan)
