"""Calibration of match probabilities: against known truths and by hand."""

import math

import pytest
import torch

import aleator as al
from aleator.evaluation import (
    MatchCalibration,
    MatchPairs,
    calibrate_matches,
    expected_calibration_error,
    match_log_likelihood,
    reliability_diagram,
)

SEEDED = torch.Generator().manual_seed
KERNEL = al.VMFKernel(16.0)


def some_posteriors(n: int = 400, seed: int = 5) -> al.VonMisesFisher:
    """Posteriors around ten centres."""
    label = torch.randint(10, (n,), generator=SEEDED(seed))
    centres = torch.randn(10, 8, generator=SEEDED(seed + 1), dtype=torch.float64)
    mu = torch.nn.functional.normalize(centres[label] + 0.3 * torch.randn(n, 8, generator=SEEDED(7)), dim=-1)
    return al.VonMisesFisher(mu, 5 + 30 * torch.rand(n, generator=SEEDED(8), dtype=torch.float64))


def drawn_pairs(q: al.VonMisesFisher, truth: MatchCalibration, count: int = 8000) -> MatchPairs:
    """Random pairs whose matches are drawn from the true probabilities."""
    first, second = torch.randint(len(q), (count, 2), generator=SEEDED(1)).T
    probability = truth.probability(q, MatchPairs(first, second, torch.zeros(0)))
    return MatchPairs(first, second, torch.rand(count, generator=SEEDED(2)) < probability)


def test_calibration_finds_scale_and_factor():
    """Pairs whose matches were drawn from known probabilities give them back, and then are calibrated."""
    q = some_posteriors()
    pairs = drawn_pairs(q, MatchCalibration(KERNEL, kappa_scale=0.4, factor=5.0))
    calibration = calibrate_matches(q, pairs, KERNEL)
    assert calibration.kappa_scale == pytest.approx(0.4, rel=0.1)
    assert calibration.factor == pytest.approx(5.0, rel=0.15)
    diagram = reliability_diagram(calibration.probability(q, pairs), pairs.match)
    assert diagram.count.sum() == len(pairs) == 8000
    assert ((diagram.predicted - diagram.observed).abs() * diagram.count).sum() / 8000 < 0.03


def test_calibration_finds_the_kernel():
    q = some_posteriors()
    pairs = drawn_pairs(q, MatchCalibration(al.VMFKernel(40.0), factor=2.0))
    bounds = ((-3.0, 0.0), (-6.0, 6.0))
    calibration = calibrate_matches(q, pairs, KERNEL, fit_kernel=True, bounds=bounds)
    assert calibration.kappa_pos > 20.0
    assert isinstance(calibration.kernel, al.VMFKernel)
    assert calibration.kappa_scale <= 1
    ours, before = (
        expected_calibration_error(each.probability(q, pairs), pairs.match)
        for each in (calibration, MatchCalibration(KERNEL))
    )
    assert ours < 0.03 < before
    with pytest.raises(ValueError, match="not a VMFKernel"):
        calibrate_matches(q, pairs, al.AcceptanceKernel(16.0), fit_kernel=True)


def test_the_prior_divides_r_by_the_factor():
    q, first, second = some_posteriors(), torch.arange(50), torch.arange(50, 100)
    calibration = MatchCalibration(KERNEL, factor=3.0)
    r = al.log_positivity(q[first], q[second], KERNEL).exp()
    expected = r / 3 / (r / 3 + 1)
    pairs = MatchPairs(first, second, torch.ones(50))
    torch.testing.assert_close(calibration.probability(q, pairs), expected)
    torch.testing.assert_close(al.match_probability(q[first], q[second], KERNEL, calibration.prior), expected)


def test_log_likelihood():
    log_odds, match = torch.tensor([1.0, -2.0, 30.0]), torch.tensor([True, True, False])
    p = torch.sigmoid(log_odds.double())
    expected = (p[0].log() + p[1].log() - 30) / 3
    assert match_log_likelihood(log_odds, match) == pytest.approx(expected.item())
    limited = match_log_likelihood(log_odds, match, limit=2.0)
    assert limited == pytest.approx((p[0].log() + p[1].log() + math.log(1 - 1 / (1 + math.exp(-2)))).item() / 3)


def test_reliability_bins():
    diagram = reliability_diagram(torch.tensor([0.05, 0.07, 0.95, 1.0]), torch.tensor([0.0, 1.0, 1.0, 1.0]), bins=10)
    assert diagram.predicted.tolist() == pytest.approx([0.06, 0.975])
    assert diagram.observed.tolist() == [0.5, 1.0]
    assert diagram.count.tolist() == [2.0, 2.0]


def test_calibration_error():
    # Two bins: [0, 1/2) holds 0.2, 0.4 with frequency 0; [1/2, 1] holds 0.6, 1.0 with frequency 1/2.
    assert expected_calibration_error([0.2, 0.4, 0.6, 1.0], [0, 0, 1, 0], bins=2) == pytest.approx(
        0.5 * 0.3 + 0.5 * 0.3
    )
    probability = torch.rand(200_000)
    outcome = torch.rand(200_000) < probability
    assert expected_calibration_error(probability, outcome) < 0.01
    assert expected_calibration_error(probability, torch.rand(200_000) < probability**2) > 0.1


def test_the_calibration_error_is_the_gap_of_the_diagram():
    probability = torch.rand(1000, generator=SEEDED(3))
    outcome = torch.rand(1000, generator=SEEDED(4)) < probability**2
    diagram = reliability_diagram(probability, outcome)
    gap = ((diagram.predicted - diagram.observed).abs() * diagram.count).sum() / 1000
    assert expected_calibration_error(probability, outcome) == pytest.approx(gap.item())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_calibration_error([1.5], [1]), "probability = 1.5"),
        (lambda: expected_calibration_error([0.5], [1], bins=0), "bins = 0"),
        (lambda: reliability_diagram([-0.5], [1]), "probability = -0.5"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
