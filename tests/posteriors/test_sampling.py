"""Samples: their distribution, their gradients against closed forms, injected noise, extreme kappas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck

from aleator import VonMisesFisher
from aleator.special.bessel import bessel_ratios
from tests import reference
from tests.posteriors.cases import DIMENSIONS, KAPPAS, any_kappa, axis, random_directions, vmf
from tests.reference import P_VALUE, STANDARD_ERRORS


class TestSamples:
    @pytest.mark.parametrize("dim", DIMENSIONS)
    def test_mean_cosine_over_the_grid(self, dim):
        """Within four standard errors of A_1; the variance of the cosine is A_1'."""
        q = vmf(dim, *KAPPAS)
        count = min(20000, 2**21 // dim)
        z = q.sample((count,), torch.Generator().manual_seed(dim))
        cosine = torch.linalg.vecdot(z, q.mu)
        order = dim / 2 - 1
        for i, kappa in enumerate(KAPPAS):
            error = math.sqrt(reference.ratio_slope(order, kappa) / count)
            assert abs(cosine[:, i].mean().item() - reference.ratio(order, kappa)) <= STANDARD_ERRORS * error, kappa
        torch.testing.assert_close(
            z.norm(dim=-1), torch.ones(count, len(KAPPAS), dtype=torch.float64), rtol=0, atol=1e-14
        )

    @pytest.mark.parametrize(
        ("dim", "kappa"),
        [
            (2, 0.0),
            (2, 1.0),
            (2, 50.0),
            (3, 0.3),
            (3, 1e3),
            (5, 2.0),
            (10, 16.0),
            (64, 16.0),
            (512, 64.0),
            (4096, 10.0),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_distribution_of_the_cosine(self, dim, kappa, dtype):
        """Kolmogorov-Smirnov of mu.z against cap_probability."""
        q = vmf(dim, kappa, dtype=dtype)[0]
        z = q.sample((min(20000, 2**23 // dim),), torch.Generator().manual_seed(5)).double()
        exact = VonMisesFisher(q.mu.double(), kappa, validate_args=False)
        mass = exact.cap_probability((z @ q.mu.double()).clamp(-1, 1))
        assert stats.kstest(mass.numpy(), "uniform").pvalue > P_VALUE

    @pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 0.0), (3, 8.0), (6, 2.0), (20, 40.0)])
    @pytest.mark.parametrize("place", ["axis", "opposite", "anywhere"])
    def test_the_part_orthogonal_to_mu_is_uniform(self, dim, kappa, place):
        """Rayleigh's test of its mean, Bingham's of its covariance, and no correlation with the cosine."""
        mu = {"axis": axis(dim), "opposite": axis(dim, dim - 1, -1.0), "anywhere": random_directions(dim, seed=7)}[
            place
        ]
        count, p = 20000, dim - 1
        z = VonMisesFisher(mu, kappa).sample((count,), torch.Generator().manual_seed(11))
        cosine = z @ mu
        part = torch.nn.functional.normalize(z - cosine[:, None] * mu, dim=-1)
        rayleigh = count * p * part.mean(0).square().sum().item()
        assert stats.chi2.sf(rayleigh, p) > P_VALUE
        covariance = part.T @ part / count
        bingham = count * p * (p + 2) / 2 * (covariance.square().sum().item() - 1 / p)
        if p > 1:
            assert stats.chi2.sf(bingham, (p - 1) * (p + 2) / 2) > P_VALUE
        standard = (cosine - cosine.mean()) / cosine.std()
        together = count * p * (standard[:, None] * part).mean(0).square().sum().item()
        assert stats.chi2.sf(together, p) > P_VALUE

    @pytest.mark.parametrize("dim", [2, 3, 100])
    def test_point_mass_and_uniform(self, dim):
        mu = random_directions(dim)
        exactly = VonMisesFisher(mu, math.inf).sample((7,))
        torch.testing.assert_close(exactly, mu.expand(7, dim), rtol=0, atol=1e-15)
        z = VonMisesFisher(mu, 0.0).sample((20000,), torch.Generator().manual_seed(2))
        mean = 20000 * dim * z.mean(0).square().sum().item()
        assert stats.chi2.sf(mean, dim) > P_VALUE

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from([2, 3, 5, 64, 300]), st.one_of(any_kappa, st.just(math.inf)), st.booleans())
    def test_samples_and_gradients_are_finite_everywhere(self, dim, kappa, single):
        dtype = torch.float32 if single else torch.float64
        kappa = torch.tensor(min(kappa, 1e30) if math.isfinite(kappa) else kappa, dtype=dtype).requires_grad_()
        mu = axis(dim, dtype=dtype).requires_grad_()
        z = VonMisesFisher(mu, kappa).rsample((50,), torch.Generator().manual_seed(0))
        grads = torch.autograd.grad(z[:, 0].sum() + z[:, 1].sum(), (mu, kappa))
        assert torch.isfinite(z).all()
        assert all(torch.isfinite(g).all() for g in grads)
        assert ((z.norm(dim=-1) - 1).abs() < (1e-5 if single else 1e-13)).all()

    def test_repeatable_with_a_generator(self):
        q = vmf(8, 1.0, 30.0)
        draw = lambda seed: q.rsample((4,), torch.Generator().manual_seed(seed))  # noqa: E731
        assert torch.equal(draw(3), draw(3))
        assert not torch.equal(draw(3), draw(4))

    def test_shapes(self):
        q = VonMisesFisher(random_directions(3, 1, 5), torch.rand(4, dtype=torch.float64))
        assert q.batch_shape == (3, 4)
        assert q.event_shape == (5,)
        assert q.rsample().shape == (3, 4, 5)
        assert q.sample((2, 6)).shape == (2, 6, 3, 4, 5)
        assert q.sample((0,)).shape == (0, 3, 4, 5)
        assert q.log_prob(q.sample((2,))).shape == (2, 3, 4)
        assert not q.sample().requires_grad

    def test_injected_noise_makes_sampling_a_function(self):
        noise = torch.randn(6, 4, 10, dtype=torch.float64)
        q = vmf(10, 0.1, 2.0, 16.0, 400.0, seed=1)
        before = noise.clone()
        z = q.rsample((6,), noise=noise)
        assert torch.equal(noise, before)
        assert torch.equal(z, q.rsample((6,), noise=noise))
        # the direction is that of the noise orthogonal to mu, and a longer noise lies further from mu
        part = noise - torch.linalg.vecdot(noise, q.mu)[..., None] * q.mu
        rest = z - torch.linalg.vecdot(z, q.mu)[..., None] * q.mu
        cosine = torch.nn.functional.cosine_similarity(part, rest, dim=-1)
        torch.testing.assert_close(cosine, torch.ones_like(cosine))
        further = q.rsample((6,), noise=1.01 * noise)
        assert (torch.linalg.vecdot(further, q.mu) < torch.linalg.vecdot(z, q.mu)).all()

    def test_gradcheck_in_kappa_at_fixed_noise(self):
        for dim in (2, 3, 10, 64):
            noise = torch.randn(5, 4, dim, dtype=torch.float64)
            mu = random_directions(4, dim, seed=1)
            kappa = torch.tensor([0.3, 2.0, 16.0, 150.0], dtype=torch.float64).requires_grad_()
            sample = lambda k, mu=mu, noise=noise: VonMisesFisher(mu, k).rsample((5,), noise=noise)  # noqa: E731
            assert gradcheck(sample, kappa)

    def test_the_switched_envelope_of_public_samplers_fails_where_ours_is_right(self):
        """Rejection sampling (Ulrich 1984, Wood 1994) with b = (D-1)/(4 kappa) beyond kappa = 10: not the same law."""
        dim, kappa, count = 64, 16.0, 20000
        rng = np.random.default_rng(0)
        expected = reference.ratio(dim / 2 - 1, kappa)

        def mean_cosine(b: float) -> float:
            x0 = (1 - b) / (1 + b)
            c = kappa * x0 + (dim - 1) * math.log(1 - x0**2)
            beta = rng.beta((dim - 1) / 2, (dim - 1) / 2, 20 * count)
            w = (1 - (1 + b) * beta) / (1 - (1 - b) * beta)
            accepted = kappa * w + (dim - 1) * np.log(1 - x0 * w) - c >= np.log(rng.random(len(w)))
            return float(w[accepted][:count].mean())

        error = math.sqrt(reference.ratio_slope(dim / 2 - 1, kappa) / count)
        stable = (dim - 1) / (2 * kappa + math.sqrt(4 * kappa**2 + (dim - 1) ** 2))
        assert abs(mean_cosine(stable) - expected) < STANDARD_ERRORS * error
        assert abs(mean_cosine((dim - 1) / (4 * kappa)) - expected) > 100 * error
        q = vmf(dim, kappa)
        ours = torch.linalg.vecdot(q.sample((count,), torch.Generator().manual_seed(0)), q.mu).mean().item()
        assert abs(ours - expected) < STANDARD_ERRORS * error


class TestPathwiseGradients:
    """The Monte-Carlo gradient of E f(z) is that of the closed form, for f linear and quadratic.

    E a.z = A_1 a.mu, and from E P_2(a.z) = A_2 P_2(a.mu):  E (a.z)^2 = (1 + A_2 (D (a.mu)^2 - 1)) / D.
    """

    SETTINGS = ((3, 1.0), (5, 2.0), (10, 5.0), (64, 16.0))
    ALONG, ACROSS = 0.8, 0.6  # of a: a.mu, and the length of the rest

    def gradients(self, dim: int, kappa: float, f):
        """mu, a, and a hundred independent estimates of the gradient of E f(a.z) in mu and kappa."""
        mu = random_directions(dim, seed=dim)
        away = random_directions(dim, seed=dim + 1)
        away = torch.nn.functional.normalize(away - (away @ mu) * mu, dim=0)
        a = self.ALONG * mu + self.ACROSS * away
        kappas = torch.full((100,), kappa, dtype=torch.float64).requires_grad_()
        mus = mu.repeat(100, 1).requires_grad_()
        count = 4000 if dim < 64 else 1500
        z = VonMisesFisher(mus, kappas, validate_args=False).rsample((count,), torch.Generator().manual_seed(17))
        grad_mu, grad_kappa = torch.autograd.grad(f(z @ a).mean(0).sum(), (mus, kappas))
        grad_mu = grad_mu - (grad_mu @ mu)[:, None] * mu  # mu moves on the sphere
        return mu, a, grad_mu, grad_kappa

    def agree(self, estimates: torch.Tensor, expected) -> None:
        """Within four standard errors everywhere."""
        error = estimates.std(0) / math.sqrt(len(estimates))
        assert ((estimates.mean(0) - expected).abs() <= STANDARD_ERRORS * error + 1e-15).all()

    @pytest.mark.parametrize(("dim", "kappa"), SETTINGS)
    def test_of_a_linear_function(self, dim, kappa):
        mu, a, grad_mu, grad_kappa = self.gradients(dim, kappa, lambda t: t)
        order = dim / 2 - 1
        A1, slope = reference.ratio(order, kappa), reference.ratio_slope(order, kappa)
        assert grad_kappa.mean().item() == pytest.approx(slope * self.ALONG, rel=0.01)
        self.agree(grad_kappa, slope * self.ALONG)
        tangent = a - self.ALONG * mu
        assert (grad_mu.mean(0) @ tangent / tangent.square().sum()).item() == pytest.approx(A1, rel=0.01)
        self.agree(grad_mu, A1 * tangent)

    @pytest.mark.parametrize(("dim", "kappa"), SETTINGS)
    def test_of_a_quadratic_function(self, dim, kappa):
        mu, a, grad_mu, grad_kappa = self.gradients(dim, kappa, torch.square)
        k = torch.tensor(kappa, dtype=torch.float64).requires_grad_()
        A2 = bessel_ratios(dim / 2 - 1, k, 3)[2]
        (slope,) = torch.autograd.grad(A2, k)
        expected = slope.item() * (dim * self.ALONG**2 - 1) / dim
        assert grad_kappa.mean().item() == pytest.approx(expected, rel=0.03)
        self.agree(grad_kappa, expected)
        tangent = a - self.ALONG * mu
        along = (grad_mu @ tangent) / tangent.square().sum()
        assert along.mean().item() == pytest.approx(2 * A2.item() * self.ALONG, rel=0.03)
        self.agree(grad_mu, 2 * A2.item() * self.ALONG * tangent)

    def test_many_posteriors_with_one_sample_each(self):
        """More posteriors than the table holds rows for at once: the pieces join without a seam."""
        count = 2**14 + 500
        noise = torch.randn(1, count, 3, dtype=torch.float64)
        mu = random_directions(count, 3, seed=1)
        kappa = torch.logspace(-2, 4, count, dtype=torch.float64).requires_grad_()
        z = VonMisesFisher(mu, kappa).rsample((1,), noise=noise)
        (grad,) = torch.autograd.grad(z.sum(), kappa)
        tail = kappa[-1000:].detach().requires_grad_()
        z_tail = VonMisesFisher(mu[-1000:], tail).rsample((1,), noise=noise[:, -1000:])
        (grad_tail,) = torch.autograd.grad(z_tail.sum(), tail)
        torch.testing.assert_close(z[:, -1000:], z_tail, rtol=0, atol=1e-14)
        torch.testing.assert_close(grad[-1000:], grad_tail, rtol=1e-9, atol=1e-14)
