"""The published code's constants: how far they are from the right ones, and that settings choose them."""

from dataclasses import replace

import pytest
import torch

from aleator.experiments.controlled.published_constants import PUBLISHED_OFFSETS, FittedELK, ShiftedRule
from aleator.experiments.controlled.run import make_process, run_seed
from aleator.losses import ELK
from aleator.matching import AcceptanceKernel
from aleator.posteriors import VonMisesFisher
from tests.experiments.controlled.test_published import small


def test_the_published_rule_accepts_more_pairs_than_the_right_one():
    process = make_process(small(), 4, "cpu")
    assert isinstance(process.kernel, ShiftedRule)
    right = AcceptanceKernel(20.0)
    for dim, offset in PUBLISHED_OFFSETS.items():
        assert ShiftedRule(20.0, offset).log_mean(dim) > right.log_mean(dim)
    at = torch.tensor(0.1, dtype=torch.float64)
    assert ShiftedRule(20.0, PUBLISHED_OFFSETS[40]).log_values(40, at).exp() > 0.5  # most independent latents


def information(kernel, dim):
    """Share of independent pairs that a rule accepts, and what an accepted pair says about a known latent, in nats."""
    t = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    weight = (1 - t**2) ** ((dim - 3) / 2)
    weight /= weight.sum()
    accepted = kernel.log_values(dim, t).exp()
    share = (weight * accepted).sum()
    r = accepted / share
    return share.item(), (weight * torch.xlogy(r, r)).sum().item()


@pytest.mark.parametrize(
    ("dim", "published", "right"),
    [
        (10, (0.078, 1.97), (0.045, 2.38)),
        (16, (0.127, 1.48), (0.050, 2.14)),
        (32, (0.397, 0.52), (0.086, 1.49)),
        (40, (0.551, 0.29), (0.107, 1.26)),
        (64, (0.839, 0.05), (0.165, 0.85)),
    ],
)
def test_the_published_rule_says_little_in_many_dimensions(dim, published, right):
    """The table in docs/understanding-learning.md."""
    rules = (ShiftedRule(20.0, PUBLISHED_OFFSETS[dim]), AcceptanceKernel(20.0))
    for rule, expected in zip(rules, (published, right), strict=True):
        assert information(rule, dim) == pytest.approx(expected, abs=0.006)


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
