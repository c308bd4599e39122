"""Maps from log r to log odds: against interpolation by numpy, and how they combine with a prior."""

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


def test_maps_survive_json():
    maps = MatchMaps(MAP, LogOddsMap((0.1, 0.2), (0.3, 0.7)))
    assert MatchMaps.from_dict(maps.to_dict()) == maps
    assert MatchMaps.from_dict(None) == MatchMaps()
    assert maps.calibrated


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
