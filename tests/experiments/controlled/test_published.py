"""The published settings and their corrections can be run, and do what their names say."""

from dataclasses import replace

import pytest
import torch

from aleator.experiments.controlled.published import CORRECTIONS, PUBLISHED_OFFSETS, published, walk
from aleator.experiments.controlled.run import FittedELK, ShiftedRule, make_process, run_seed
from aleator.losses import ELK
from aleator.matching import AcceptanceKernel
from aleator.posteriors import VonMisesFisher

SMALL = {"batch_size": 8, "group": 4, "negatives": 3, "samples": 4, "smoothing_steps": 40, "points": 60}


def small(**changes):
    start = published(steps=4)
    return replace(start, widths=(8, 8), kappa_widths=(5, 5), **{**SMALL, **changes})


@pytest.mark.parametrize("place", range(len(CORRECTIONS) + 1))
def test_every_step_of_the_walk_runs(place):
    name, setting = list(walk(small()))[place]
    assert name == ["published", *CORRECTIONS][place]
    metrics = run_seed(setting, 4).metrics
    assert -1 <= metrics["mu_rank"] <= 1
    assert metrics["kappa_median"] > 0


def test_the_published_rule_accepts_more_pairs_than_the_right_one():
    process = make_process(small(), 4, "cpu")
    assert isinstance(process.kernel, ShiftedRule)
    right = AcceptanceKernel(20.0)
    for dim, offset in PUBLISHED_OFFSETS.items():
        assert ShiftedRule(20.0, offset).log_mean(dim) > right.log_mean(dim)
    at = torch.tensor(0.1, dtype=torch.float64)
    assert ShiftedRule(20.0, PUBLISHED_OFFSETS[40]).log_values(40, at).exp() > 0.5  # most independent latents


def test_kappa_starts_alike_in_the_middle_of_its_range():
    (_, last) = list(walk(small(kappa_range=(64.0, 128.0))))[-1]
    assert last.kappa_start[0] < 90.5 < last.kappa_start[1] < 1.05 * last.kappa_start[0]


def similarities(loss, kappa, dim=10):
    """Of two posteriors with one kappa whose directions are 0, 60 and 120 degrees apart."""
    cosine = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
    mu = torch.zeros(2, 3, dim, dtype=torch.float64)
    mu[0, :, 0] = 1.0
    mu[1, :, 0], mu[1, :, 1] = cosine, (1 - cosine**2).sqrt()
    return loss.similarity(VonMisesFisher(mu[0], kappa), VonMisesFisher(mu[1], kappa))


def test_the_published_constant_of_elk_is_right_for_large_kappas_and_three_times_too_steep_for_small_ones():
    exact, fitted = ELK(kappa_pos=1.0), FittedELK(kappa_pos=1.0)
    for kappa in (15.0, 25.0):
        torch.testing.assert_close(similarities(fitted, kappa), similarities(exact, kappa), rtol=0, atol=0.5)
    steep, right = similarities(fitted, 0.9), similarities(exact, 0.9)
    assert 2.5 < (steep[1] - steep[2]) / (right[1] - right[2]) < 4.5
    with pytest.raises(ValueError, match="ten dimensions"):
        similarities(fitted, 20.0, dim=3)


def test_a_setting_chooses_the_published_constant_of_elk():
    elk = small(loss="elk", negatives=1, group=None, mu_phase_negatives=None)
    elk = replace(elk, recipe={**elk.recipe, "phases": "joint"})
    fitted = run_seed(replace(elk, fitted_constants=True), 4).metrics
    assert fitted["kappa_median"] != run_seed(elk, 4).metrics["kappa_median"]
