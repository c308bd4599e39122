"""The von Mises-Fisher distribution: density, moments, samples, gradients, fitting, divergences, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Independent, MixtureSameFamily, kl_divergence

from aleator import VonMisesFisher
from aleator.posteriors.vmf import kappa_from_mean_resultant_length, log_sphere_area
from aleator.special.bessel import bessel_ratio, bessel_ratios
from tests import reference
from tests.reference import P_VALUE, STANDARD_ERRORS

DIMENSIONS = (2, 3, 4, 5, 7, 10, 16, 31, 64, 128, 512, 1024, 4096)
KAPPAS = (0.0, 1e-6, 1e-3, 0.1, 1.0, 5.0, 10.0, 50.0, 100.0, 1e3, 1e4, 1e6)
any_kappa = st.one_of(st.just(0.0), st.floats(-300, 300).map(lambda e: 10.0**e))


def axis(dim: int, index: int = 0, sign: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    mu = torch.zeros(dim, dtype=dtype)
    mu[index] = sign
    return mu


def random_directions(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(noise, dim=-1).to(dtype)


def vmf(dim: int, *kappas: float, dtype: torch.dtype = torch.float64, seed: int = 0) -> VonMisesFisher:
    return VonMisesFisher(
        random_directions(len(kappas), dim, seed=seed, dtype=dtype), torch.tensor(kappas, dtype=dtype)
    )


class TestLogNormaliser:
    @pytest.mark.parametrize("dim", DIMENSIONS)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
    def test_value_and_derivatives_against_mpmath(self, dim, dtype, tolerance):
        kappa = torch.tensor(KAPPAS, dtype=dtype).requires_grad_()
        value = VonMisesFisher(axis(dim, dtype=dtype), kappa).log_normaliser
        (slope,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), kappa)
        exact = kappa.double().tolist()  # the number that float32 holds
        order = dim / 2 - 1
        rows = [
            (value, [reference.log_normaliser(dim, k) for k in exact], tolerance),
            (slope, [-reference.ratio(order, k) for k in exact], tolerance),
            (curvature, [-reference.ratio_slope(order, k) for k in exact], 1e-8 if dtype == torch.float64 else 2e-6),
        ]
        for ours, expected, limit in rows:
            expected = torch.tensor(expected, dtype=torch.float64)
            error = (ours.detach().double() - expected).abs() / expected.abs().clamp_min(1)
            assert error.max() <= limit

    @pytest.mark.parametrize("dim", [2, 3, 10, 128, 4096])
    def test_derivatives_keep_their_relative_accuracy_too(self, dim):
        """Stronger than asked: kappa's gradient is right to 1e-12 even where it is 1e-9."""
        kappa = torch.tensor(KAPPAS[1:], dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(VonMisesFisher(axis(dim), kappa).log_normaliser.sum(), kappa)
        expected = torch.tensor([-reference.ratio(dim / 2 - 1, k) for k in KAPPAS[1:]], dtype=torch.float64)
        torch.testing.assert_close(slope, expected, rtol=1e-12, atol=0)

    @settings(max_examples=200, deadline=None)
    @given(st.integers(2, 5000), any_kappa, st.sampled_from([torch.float32, torch.float64]))
    def test_finite_everywhere(self, dim, kappa, dtype):
        kappa = torch.tensor(min(kappa, torch.finfo(dtype).max / 4), dtype=dtype).requires_grad_()
        value = VonMisesFisher(axis(dim, dtype=dtype), kappa).log_normaliser
        (slope,) = torch.autograd.grad(value, kappa, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, kappa)
        assert torch.isfinite(value)
        assert -1 <= slope <= 0
        assert torch.isfinite(curvature)
        assert curvature <= 0  # log C is concave

    def test_gradgradcheck(self):
        kappa = torch.tensor([0.5, 3.0, 20.0, 90.0], dtype=torch.float64).requires_grad_()
        for dim in (2, 3, 10, 64):
            assert gradgradcheck(lambda k, dim=dim: VonMisesFisher(axis(dim), k).log_normaliser, kappa)


class TestDensity:
    @pytest.mark.parametrize("kappa", [0.0, 0.7, 12.0, 300.0])
    def test_integrates_to_one_on_the_circle_and_the_sphere(self, kappa):
        angle = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)[:-1]
        points = torch.stack([angle.cos(), angle.sin()], -1)
        density = VonMisesFisher(axis(2), kappa).log_prob(points).exp()
        assert (density.mean() * 2 * math.pi).item() == pytest.approx(1, abs=1e-12)

        t, w = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(150))
        points = torch.stack([t, (1 - t**2).sqrt(), torch.zeros_like(t)], -1)
        density = VonMisesFisher(axis(3), kappa).log_prob(points).exp()
        assert (density * w).sum().item() * 2 * math.pi == pytest.approx(1, abs=1e-10)

    @pytest.mark.parametrize(("dim", "kappa"), [(2, 4.0), (3, 7.0), (10, 30.0)])
    def test_against_scipy(self, dim, kappa):
        z = random_directions(20, dim, seed=3)
        mu = random_directions(dim, seed=4)
        expected = stats.vonmises_fisher(mu.numpy(), kappa).logpdf(z.numpy())
        torch.testing.assert_close(VonMisesFisher(mu, kappa).log_prob(z), torch.as_tensor(expected), rtol=0, atol=1e-11)

    def test_large_kappa_costs_no_digits_in_float32(self):
        """kappa (mu.z - 1) by subtraction has an error of kappa * 6e-8; as a squared distance it has not."""
        kappa = 1e6
        mu = axis(3, dtype=torch.float32)
        z = torch.tensor([1.0, 1e-3, 0.0])
        exact = VonMisesFisher(mu.double(), kappa).log_prob(torch.tensor([1 - 5e-7, 1e-3, 0.0], dtype=torch.float64))
        ours = VonMisesFisher(mu, kappa).log_prob(z)
        assert ours.item() == pytest.approx(exact.item(), rel=1e-5)

    def test_uniform_and_point_mass(self):
        z = random_directions(5, 6)
        uniform = VonMisesFisher.uniform(6, dtype=torch.float64)
        torch.testing.assert_close(uniform.log_prob(z), torch.full((5,), -log_sphere_area(6), dtype=torch.float64))
        point = VonMisesFisher(z[0], math.inf)
        assert point.log_prob(z).tolist() == [math.inf, *[-math.inf] * 4]
        assert point.entropy().item() == -math.inf
        torch.testing.assert_close(point.mean, z[0])
        assert torch.equal(uniform.mean, torch.zeros(6, dtype=torch.float64))

    def test_gradients(self):
        mu, z = random_directions(3, 5), random_directions(3, 5, seed=1)
        kappa = torch.tensor([0.5, 4.0, 60.0], dtype=torch.float64)
        inputs = tuple(x.requires_grad_() for x in (mu, kappa, z))
        log_prob = lambda m, k, v: VonMisesFisher(m, k, validate_args=False).log_prob(v)  # noqa: E731
        assert gradcheck(log_prob, inputs)
        entropy = lambda k: VonMisesFisher(mu, k).entropy()  # noqa: E731
        assert gradcheck(entropy, (kappa,))
        assert gradgradcheck(entropy, (kappa,))

    @settings(max_examples=100, deadline=None)
    @given(st.integers(2, 5000), st.one_of(any_kappa, st.just(math.inf)))
    def test_gradients_are_never_nan(self, dim, kappa):
        kappa = torch.tensor(min(kappa, 1e30) if math.isfinite(kappa) else kappa, dtype=torch.float64).requires_grad_()
        mu = axis(dim).requires_grad_()
        q = VonMisesFisher(mu, kappa)
        other = VonMisesFisher(axis(dim, 1), 3.0)
        divergences = (kl_divergence(q, other), kl_divergence(other, q))
        for value in (*divergences, q.log_prob(axis(dim, 1)), q.log_prob(axis(dim)), q.entropy(), q.mean.sum()):
            assert not torch.isnan(value)
            for gradient in torch.autograd.grad(value, (mu, kappa), allow_unused=True, retain_graph=True):
                assert gradient is None or not torch.isnan(gradient).any()


class TestEntropyAndDivergence:
    def test_closed_forms_on_the_sphere(self):
        """D = 3: C = kappa / 4 pi sinh kappa and A_1 = coth kappa - 1/kappa, all elementary."""
        q, p = vmf(3, 0.5, 2.0, 9.0, 40.0), vmf(3, 1.0, 7.0, 0.1, 25.0, seed=1)
        log_c = lambda k: torch.log(k / (4 * math.pi * torch.sinh(k)))  # noqa: E731
        mean = 1 / torch.tanh(q.kappa) - 1 / q.kappa
        torch.testing.assert_close(q.entropy(), -log_c(q.kappa) - q.kappa * mean)
        cosine = (q.mu * p.mu).sum(-1)
        expected = log_c(q.kappa) + q.kappa * mean - log_c(p.kappa) - p.kappa * mean * cosine
        torch.testing.assert_close(kl_divergence(q, p), expected)

    @pytest.mark.parametrize("dim", [2, 3, 10, 512])
    def test_kl_to_the_uniform_is_the_loss_of_entropy(self, dim):
        q = vmf(dim, 0.0, 1e-3, 1.0, 50.0, 1e4)
        uniform = VonMisesFisher.uniform(dim, dtype=torch.float64)
        gap = log_sphere_area(dim) - q.entropy()
        torch.testing.assert_close(kl_divergence(q, uniform), gap, rtol=1e-9, atol=1e-12)

    @settings(max_examples=150, deadline=None)
    @given(
        st.integers(2, 2000),
        st.floats(-6, 8).map(lambda e: 10.0**e),
        st.floats(-6, 8).map(lambda e: 10.0**e),
        st.sampled_from([torch.float32, torch.float64]),
    )
    def test_kl_is_not_negative_and_zero_for_equals(self, dim, kappa1, kappa2, dtype):
        q = VonMisesFisher(axis(dim, dtype=dtype), kappa1)
        p = VonMisesFisher(axis(dim, dtype=dtype), kappa2)
        rounding = 1e-14 * max(1.0, kappa1, kappa2)
        assert kl_divergence(q, p).item() >= -rounding
        assert abs(kl_divergence(q, q).item()) <= rounding

    def test_kl_against_monte_carlo(self):
        q, p = vmf(10, 16.0, 3.0), vmf(10, 5.0, 30.0, seed=1)
        z = q.sample((20000,), torch.Generator().manual_seed(1))
        gain = q.log_prob(z) - p.log_prob(z)
        error = gain.std(0) / math.sqrt(len(z))
        assert ((gain.mean(0) - kl_divergence(q, p)).abs() <= STANDARD_ERRORS * error).all()

    def test_kl_with_point_masses(self):
        q, point = vmf(4, 3.0), vmf(4, math.inf)
        assert kl_divergence(point, q).item() == math.inf
        assert kl_divergence(q, point).item() == math.inf

    def test_kl_gradcheck(self):
        kappas = [torch.tensor(k, dtype=torch.float64).requires_grad_() for k in ([0.5, 9.0], [4.0, 0.2])]
        mus = [random_directions(2, 6, seed=s).requires_grad_() for s in (0, 1)]

        def divergence(k1, k2, m1, m2):
            q, p = (VonMisesFisher(m, k, validate_args=False) for m, k in ((m1, k1), (m2, k2)))
            return kl_divergence(q, p)

        assert gradcheck(divergence, (*kappas, *mus))


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


class TestFit:
    @pytest.mark.parametrize(("dim", "kappa"), [(2, 5.0), (3, 0.5), (10, 20.0), (128, 300.0)])
    def test_recovers(self, dim, kappa):
        truth = vmf(dim, kappa)[0]
        count = 20000
        fitted = VonMisesFisher.fit(truth.sample((count,), torch.Generator().manual_seed(3)))
        # the Fisher information of kappa is A_1'
        error = 1 / math.sqrt(count * reference.ratio_slope(dim / 2 - 1, kappa))
        assert abs(fitted.kappa.item() - kappa) <= STANDARD_ERRORS * error
        A1 = reference.ratio(dim / 2 - 1, kappa)
        chi2 = count * kappa * A1 * (fitted.mu - truth.mu).square().sum().item()  # and kappa A_1 that of mu
        assert stats.chi2.sf(chi2, dim - 1) > P_VALUE

    @pytest.mark.parametrize("dim", [2, 3, 10, 128, 4096])
    def test_kappa_is_the_root(self, dim):
        length = torch.tensor([1e-8, 1e-3, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-9], dtype=torch.float64)
        kappa = kappa_from_mean_resultant_length(length, dim)
        torch.testing.assert_close(bessel_ratio(dim / 2 - 1, kappa), length, rtol=1e-14, atol=0)

    def test_maximises_the_likelihood(self):
        z = vmf(5, 6.0)[0].sample((300,), torch.Generator().manual_seed(1))
        best = VonMisesFisher.fit(z)
        likelihood = best.log_prob(z).sum()
        for change in (0.9, 1.1):
            assert VonMisesFisher(best.mu, best.kappa * change).log_prob(z).sum() < likelihood
        for direction in random_directions(10, 5):
            turned = torch.nn.functional.normalize(best.mu + 0.05 * direction, dim=0)
            assert VonMisesFisher(turned, best.kappa).log_prob(z).sum() < likelihood

    def test_weights_count_as_repetitions(self):
        z = vmf(4, 3.0)[0].sample((6,), torch.Generator().manual_seed(1))
        weights = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 1.0], dtype=torch.float64)
        repeated = VonMisesFisher.fit(z.repeat_interleave(weights.long(), 0))
        weighted = VonMisesFisher.fit(z, weights)
        torch.testing.assert_close(weighted.mu, repeated.mu)
        torch.testing.assert_close(weighted.kappa, repeated.kappa)

    def test_edge_cases(self):
        mu = random_directions(5)
        assert VonMisesFisher.fit(mu[None]).kappa.item() == math.inf  # a single sample is a point mass
        opposite = VonMisesFisher.fit(torch.stack([mu, -mu]))
        assert opposite.kappa.item() == 0
        assert opposite.mu.norm().item() == pytest.approx(1)
        batch = VonMisesFisher.fit(random_directions(3, 7, 5).float())
        assert batch.batch_shape == (3,)
        assert batch.mu.dtype == torch.float32


class TestBatches:
    def test_indexing(self):
        q = VonMisesFisher(random_directions(4, 3, 6), torch.rand(4, 3, dtype=torch.float64))
        for index in (1, (1, 2), slice(1, 3), (slice(None), None), (Ellipsis, 0), (Ellipsis, None), q.kappa > 0.5):
            part = q[index]
            assert torch.equal(part.kappa, q.kappa[index])
            assert part.mu.shape == (*part.batch_shape, 6)
        assert torch.equal(q[..., 0].mu, q.mu[:, 0])
        assert torch.equal(q[1, 2].mu, q.mu[1, 2])
        assert len(q) == 4

    def test_expand(self):
        q = vmf(3, 1.0, 2.0).expand((5, 2))
        assert q.batch_shape == (5, 2)
        assert q.sample().shape == (5, 2, 3)

    def test_works_inside_torch_distributions(self):
        q = vmf(3, 1.0, 20.0)
        assert Independent(q, 1).log_prob(q.mu).shape == ()
        mixture = MixtureSameFamily(torch.distributions.Categorical(torch.tensor([0.3, 0.7]).double()), q)
        z = mixture.sample((9,))
        expected = torch.logsumexp(q.log_prob(z[:, None]) + torch.tensor([0.3, 0.7]).double().log(), -1)
        torch.testing.assert_close(mixture.log_prob(z), expected)

    def test_float32_agrees_with_float64(self):
        exact, single = vmf(16, *KAPPAS[:-2]), vmf(16, *KAPPAS[:-2], dtype=torch.float32)
        for name in ("log_normaliser", "mean_resultant_length"):
            torch.testing.assert_close(getattr(single, name).double(), getattr(exact, name), rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(single.entropy().double(), exact.entropy(), rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(single.cap(0.9).double(), exact.cap(0.9), rtol=1e-6, atol=1e-6)


UNIT = axis(3)
BAD_INPUT = {
    "mu of length 2": (lambda: VonMisesFisher(2 * UNIT, 1.0), ("mu = 2.0", "normalize")),
    "mu with NaN": (lambda: VonMisesFisher(UNIT * math.nan, 1.0), ("mu = nan",)),
    "mu of integers": (lambda: VonMisesFisher(UNIT.long(), 1.0), ("mu = torch.int64", "float")),
    "D = 1": (lambda: VonMisesFisher(torch.ones(1), 1.0), (r"mu = \(1,\)", "D >= 2")),
    "mu without dimensions": (lambda: VonMisesFisher(torch.tensor(1.0), 1.0), ("mu", "D >= 2")),
    "negative kappa": (lambda: VonMisesFisher(UNIT, -0.5), ("kappa = -0.5", "negative or NaN")),
    "the first bad kappa": (
        lambda: VonMisesFisher(UNIT, torch.tensor([1.0, -3.0]).double()),
        ("kappa = -3.0", "softplus"),
    ),
    "NaN kappa": (lambda: VonMisesFisher(UNIT, math.nan), ("kappa = nan",)),
    "kappa of another dtype": (lambda: VonMisesFisher(UNIT, torch.tensor(1.0)), ("kappa = torch.float32", "cast")),
    "kappa with a trailing 1": (
        lambda: VonMisesFisher(random_directions(4, 3), torch.ones(4, 1).double()),
        (r"kappa = \(4, 1\)", r"squeeze\(-1\)"),
    ),
    "shapes that do not broadcast": (
        lambda: VonMisesFisher(random_directions(4, 3), torch.ones(5).double()),
        (r"kappa = \(5,\)", "broadcast"),
    ),
    "p = 0": (lambda: VonMisesFisher(UNIT, 1.0).cap(0.0), ("p = 0.0", "0.95")),
    "p = 1": (lambda: VonMisesFisher(UNIT, 1.0).cap_angle(1.0), ("p = 1.0",)),
    "p = NaN": (lambda: VonMisesFisher(UNIT, 1.0).cap(math.nan), ("p = nan",)),
    "t = 2": (lambda: VonMisesFisher(UNIT, 1.0).cap_probability(2.0), ("t = 2.0", "cosine")),
    "value of length 3": (lambda: VonMisesFisher(UNIT, 1.0).log_prob(3 * UNIT), ("value = 3.0", "normalize")),
    "value of another dimension": (lambda: VonMisesFisher(UNIT, 1.0).log_prob(axis(4)), (r"value = \(4,\)", "3")),
    "noise of another shape": (
        lambda: VonMisesFisher(UNIT, 1.0).rsample((2,), noise=torch.ones(3)),
        (r"noise = \(3,\)", r"\(2, 3\)"),
    ),
    "samples not unit": (lambda: VonMisesFisher.fit(torch.ones(4, 3)), ("samples", "length")),
    "samples of one dimension": (lambda: VonMisesFisher.fit(UNIT), (r"samples = \(3,\)",)),
    "no samples": (lambda: VonMisesFisher.fit(torch.ones(0, 3)), (r"samples = \(0, 3\)", "no samples")),
    "negative weights": (
        lambda: VonMisesFisher.fit(random_directions(2, 3), torch.tensor([1.0, -1.0]).double()),
        ("weights = -1.0",),
    ),
    "weights of zero": (
        lambda: VonMisesFisher.fit(random_directions(2, 3), torch.zeros(2).double()),
        ("weights = 0.0", "positive"),
    ),
    "KL between dimensions": (lambda: kl_divergence(vmf(3, 1.0), vmf(4, 1.0)), ("dimension 4", "dimension 3")),
    "the length of no batch": (lambda: len(VonMisesFisher(UNIT, 1.0)), ("posterior",)),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        caught.match(word)


def test_validation_can_be_turned_off():
    q = VonMisesFisher(2 * UNIT, torch.tensor(-1.0).double(), validate_args=False)
    q.log_prob(3 * UNIT)
    q.cap_probability(3.0)
    assert q.batch_shape == ()
