"""Entropy and KL of mixtures: bounds and estimates against quadrature, gradients, exact cases."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

from aleator import VMFMixture, VonMisesFisher
from aleator.posteriors.mixture_entropy import entropy_bounds, entropy_estimate, kl_estimate
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


class TestPointMasses:
    """A point mass has the entropy -inf, and is infinitely far from all that is not at the same point."""

    AXES = torch.eye(3, dtype=torch.float64)

    def mixed(self, weights, *kappas) -> VMFMixture:
        kappa = torch.tensor(kappas, dtype=torch.float64)
        return VMFMixture(torch.tensor(weights, dtype=torch.float64).log(), VonMisesFisher(self.AXES, kappa))

    def test_two_point_masses(self):
        points = VonMisesFisher(self.AXES, math.inf)
        assert torch.equal(kl_divergence(points[:, None], points), torch.where(self.AXES > 0, 0.0, math.inf))
        for kappa in (0.0, 5.0):
            wide = VonMisesFisher(self.AXES, kappa)
            assert torch.isposinf(kl_divergence(points, wide)).all()
            assert torch.isposinf(kl_divergence(wide, points)).all()

    @pytest.mark.parametrize("kappas", [(math.inf, 5.0, 7.0), (5.0, math.inf, math.inf), (math.inf,) * 3])
    @pytest.mark.parametrize("samples", [1, 16])
    def test_the_entropy_of_a_mixture_with_a_point_mass(self, kappas, samples):
        q = self.mixed([0.5, 0.3, 0.2], *kappas)
        value, error = q.entropy_estimate(samples)
        for entropy in (value, *q.entropy_bounds()):
            assert torch.isneginf(entropy)
        assert error == 0

    def test_divergences_of_mixtures_with_point_masses(self):
        q, uniform = self.mixed([0.5, 0.3, 0.2], math.inf, 5.0, 7.0), VonMisesFisher.uniform(3, dtype=torch.float64)
        for samples in (1, 16):
            value, error = kl_estimate(q, uniform, samples)
            assert torch.isposinf(value)
            assert error == 0
            assert kl_estimate(q, q, samples)[0] == 0
        assert torch.isposinf(kl_divergence(q, VonMisesFisher(self.AXES[0], math.inf)))
        assert torch.isposinf(kl_divergence(VonMisesFisher(self.AXES[1], math.inf), q))
        # On the point mass of q alone, all that q has elsewhere does not matter.
        at_point = kl_divergence(VonMisesFisher(self.AXES[0], math.inf), q)
        torch.testing.assert_close(at_point, torch.tensor(math.log(2), dtype=torch.float64))
        # A set without area has no mass under the uniform distribution. What is left of q holds the share 0.5.
        rest = self.mixed([0.0, 0.6, 0.4], math.inf, 5.0, 7.0)
        generator = torch.Generator().manual_seed(0)
        value, error = kl_estimate(uniform, q, 4000, generator)
        alone, other_error = kl_estimate(uniform, rest, 4000, generator)
        assert abs(value - alone - math.log(2)) <= reference.STANDARD_ERRORS * (error + other_error)

    def test_mixtures_of_point_masses_are_discrete_distributions(self):
        first, second = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
        q, p = self.mixed(first, *(math.inf,) * 3), self.mixed(second, *(math.inf,) * 3)
        expected = sum(a * math.log(a / b) for a, b in zip(first, second, strict=True))
        torch.testing.assert_close(kl_divergence(q, p), torch.tensor(expected, dtype=torch.float64))
        twice = VMFMixture(torch.zeros(2, dtype=torch.float64), VonMisesFisher(self.AXES[[0, 0]], math.inf))
        assert kl_divergence(twice, VonMisesFisher(self.AXES[0], math.inf)).abs() < 1e-12

    def test_a_point_mass_of_weight_zero_does_not_count(self):
        q = self.mixed([0.5, 0.5, 0.0], 3.0, 5.0, math.inf)
        for ours, expected in zip(q.entropy_bounds(), q.prune().entropy_bounds(), strict=True):
            torch.testing.assert_close(ours, expected)
        assert q.entropy().isfinite()
        assert kl_divergence(q, VonMisesFisher.uniform(3, dtype=torch.float64)).isfinite()
        assert torch.isposinf(kl_divergence(VonMisesFisher(self.AXES[2], math.inf), q))
