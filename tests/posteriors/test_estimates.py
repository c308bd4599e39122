"""Entropy and KL of mixtures: bounds and estimates against quadrature, gradients, exact cases."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

from aleator import VMFMixture, VonMisesFisher
from aleator.posteriors.estimates import entropy_bounds, entropy_estimate, kl_estimate
from tests import reference
from tests.posteriors.cases import vmf
from tests.posteriors.mixture_cases import brute_samples, grid, mixture


def true_entropy(q: VMFMixture) -> torch.Tensor:
    z, area = grid(q.dim)
    log_q = q.unsqueeze(-1).log_prob(z)
    return -(log_q.exp() * log_q).sum(-1) * area


class TestEntropy:
    @pytest.mark.parametrize("dim", [2, 3])
    @pytest.mark.parametrize("modes", [2, 8])
    def test_against_quadrature(self, dim, modes):
        q = mixture(5, modes=modes, dim=dim)
        value, error = entropy_estimate(q, 2000, torch.Generator().manual_seed(0))
        truth = true_entropy(q)
        assert ((value - truth).abs() <= reference.STANDARD_ERRORS * error + 1e-6).all()
        assert (error < 0.02).all()
        lower, upper = entropy_bounds(q)
        assert (lower <= truth + 1e-6).all()
        assert (truth <= upper + 1e-6).all()
        assert (upper - lower <= math.log(modes) + 1e-9).all()

    @pytest.mark.parametrize("dim", [10, 256])
    def test_against_samples_of_another_sampler(self, dim):
        q = mixture(modes=3, dim=dim, low=dim / 4, high=dim)
        value, error = entropy_estimate(q, 500, torch.Generator().manual_seed(0))
        log_q = q.log_prob(brute_samples(q, 20_000)).detach()
        assert abs(value + log_q.mean()) <= reference.STANDARD_ERRORS * (error + log_q.std() / math.sqrt(20_000))

    def test_components_that_do_not_overlap(self):
        parts = VonMisesFisher(torch.eye(16, dtype=torch.float64)[:4], 1e4)
        q = VMFMixture(torch.zeros(4, dtype=torch.float64), parts)
        expected = parts[0].entropy() + math.log(4)
        value, error = entropy_estimate(q, 8)
        assert error < 1e-12
        for ours in (value, *entropy_bounds(q)):
            torch.testing.assert_close(ours, expected)

    def test_a_component_of_weight_zero_does_not_count(self):
        parts = vmf(4, 5.0, 7.0)
        q = VMFMixture(torch.tensor([0.0, -math.inf], dtype=torch.float64), parts)
        for ours in (q.entropy(), *q.entropy_bounds()):
            torch.testing.assert_close(ours, parts[0].entropy())

    def test_gradients_against_quadrature(self):
        q = mixture(modes=2, dim=2, low=2.0, high=6.0)
        leaves = q.components.mu, q.components.kappa
        exact = torch.autograd.grad(true_entropy(q), leaves, retain_graph=True)
        ours = torch.autograd.grad(entropy_estimate(q, 40_000, torch.Generator().manual_seed(0))[0], leaves)
        torch.testing.assert_close(ours[1], exact[1], atol=3e-3, rtol=0.05)
        along = q.components.mu.detach()
        across = [g - (g * along).sum(-1, keepdim=True) * along for g in (ours[0], exact[0])]
        torch.testing.assert_close(*across, atol=1e-2, rtol=0.05)


class TestDivergence:
    @pytest.mark.parametrize("dim", [2, 3])
    def test_against_quadrature(self, dim):
        q, p = mixture(4, modes=3, dim=dim), mixture(4, modes=2, dim=dim, seed=1, high=5.0)
        z, area = grid(dim)
        log_q, log_p = (x.unsqueeze(-1).log_prob(z) for x in (q, p))
        truth = (log_q.exp() * (log_q - log_p)).sum(-1) * area
        value, error = kl_estimate(q, p, 4000, torch.Generator().manual_seed(0))
        assert ((value - truth).abs() <= reference.STANDARD_ERRORS * error + 1e-6).all()

    def test_with_a_single_vmf(self):
        q, p = mixture(4, modes=2, dim=3), vmf(3, 1.0, 2.0, 3.0, 4.0)
        z, area = grid(3)
        log_q, log_p = (x.unsqueeze(-1).log_prob(z) for x in (q, p))
        torch.manual_seed(0)
        torch.testing.assert_close(
            kl_divergence(q, p), (log_q.exp() * (log_q - log_p)).sum(-1) * area, atol=0.01, rtol=0.01
        )
        truth = (log_p.exp() * (log_p - log_q)).sum(-1) * area
        assert (kl_divergence(p, q) - truth).abs().max() <= 0.2 * truth.max()

    def test_of_a_mixture_with_itself(self):
        q = mixture(4, modes=3, dim=6)
        value, error = kl_estimate(q, q, 400, torch.Generator().manual_seed(1))
        assert (value.abs() <= reference.STANDARD_ERRORS * error + 1e-9).all()
        assert (error < 0.05).all()

    def test_errors(self):
        with pytest.raises(ValueError, match=r"p = 'dimension 4'.*dimension 3"):
            kl_divergence(mixture(2, dim=3), mixture(2, dim=4))
        with pytest.raises(ValueError, match="samples = 0"):
            mixture(2).entropy(samples=0)
