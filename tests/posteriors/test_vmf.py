"""The von Mises-Fisher distribution: density, entropy, divergence, fitting, bad input."""

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
from aleator.posteriors.moments import kappa_from_mean_resultant_length
from aleator.special import bessel_ratio, log_sphere_area
from tests import reference
from tests.posteriors.cases import DIMENSIONS, KAPPAS, any_kappa, axis, random_directions, vmf
from tests.reference import P_VALUE, STANDARD_ERRORS


@pytest.mark.parametrize(
    ("mu", "message"),
    [
        (np.eye(3), r"mu = 'ndarray': a NumPy array, not a tensor; pass torch.as_tensor\(mu\)"),
        (torch.eye(3, device="meta"), r"mu = device\(type='meta'\): a tensor there has no numbers"),
    ],
)
def test_what_is_no_tensor_of_numbers_is_named(mu, message):
    with pytest.raises(ValueError, match=message):
        VonMisesFisher(mu, 10.0)


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


class TestSharpPosteriors:
    """kappas at which the terms of the textbook formulas are large and cancel."""

    @pytest.mark.parametrize("dim", [2, 3, 10, 512])
    def test_against_mpmath(self, dim):
        kappas = (1e3, 1e8, 1e12, 1e15, 1e20, 1e30)
        q = VonMisesFisher(axis(dim), torch.tensor(kappas, dtype=torch.float64))
        p = q.scale_kappa(1.5)
        found = torch.stack([q.log_prob(q.mu), q.entropy(), kl_divergence(q, p), kl_divergence(p, q), q.certainty], 1)
        expected = [reference.sharp_posterior(dim, k) for k in kappas]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=2e-12)

    def test_gradients_in_log_kappa_keep_their_digits(self):
        """Far out, density and certainty at the mode grow like (D-1)/2 log kappa, and entropy falls like that."""
        log_kappa = torch.tensor([20.0, 40.0, 60.0], dtype=torch.float64, requires_grad=True)
        q = VonMisesFisher(axis(7), log_kappa.exp())
        for value, slope in ((q.log_prob(q.mu), 3.0), (q.entropy(), -3.0), (q.certainty, 3.0)):
            (found,) = torch.autograd.grad(value.sum(), log_kappa, retain_graph=True)
            torch.testing.assert_close(found, torch.full_like(found, slope), rtol=1e-7, atol=0)


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

    @pytest.mark.parametrize("angle", [1e-2, 1e-5, 1e-8, 1e-12])
    def test_samples_that_are_nearly_equal(self, angle):
        """In three dimensions A_1 = 1 - 1/kappa, but for small kappa. Of two vectors the mean has length cos(angle)."""
        samples = torch.tensor([[1.0, angle, 0.0], [1.0, -angle, 0.0]], dtype=torch.float64)
        fitted = VonMisesFisher.fit(torch.nn.functional.normalize(samples, dim=-1), torch.tensor([0.3, 0.3]))
        assert fitted.kappa.item() == pytest.approx(1 / (2 * math.sin(math.atan(angle) / 2) ** 2), rel=1e-12)

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

    @pytest.mark.parametrize("shape", [(6, 1), (1,), (), (1, 6)])
    def test_weights_of_another_shape_are_refused(self, shape):
        z = vmf(4, 3.0)[0].sample((6,))
        with pytest.raises(ValueError, match=r"weights = .*expected shape \(6,\); pass one for each sample"):
            VonMisesFisher.fit(z, torch.ones(shape))

    def test_in_inference_mode(self):
        z = vmf(4, 3.0)[0].sample((20,))
        with torch.inference_mode():
            assert VonMisesFisher.fit(z).kappa == VonMisesFisher.fit(z.clone()).kappa > 0

    def test_edge_cases(self):
        mu = random_directions(5)
        assert VonMisesFisher.fit(mu[None]).kappa.item() == math.inf  # a single sample is a point mass
        for seed in range(20):
            equal = random_directions(100, seed=seed).float().expand(7, 100)
            for weights in (None, torch.rand(7)):
                assert VonMisesFisher.fit(equal, weights).kappa.item() == math.inf
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
    "noise of another dtype": (
        lambda: VonMisesFisher(UNIT, 1.0).rsample((2,), noise=torch.ones(2, 3)),
        ("noise = torch.float32", "mu has dtype torch.float64", "cast"),
    ),
    "a negative angle": (lambda: VonMisesFisher(UNIT, 1.0).cap_angle_probability(-0.1), ("angle = -0.1", "0 to pi")),
    "degrees": (lambda: VonMisesFisher(UNIT, 1.0).cap_angle_probability(90.0), (r"angle = 90\.0", "radians")),
    "angle = NaN": (lambda: VonMisesFisher(UNIT, 1.0).cap_angle_probability(math.nan), ("angle = nan",)),
    "a factor of NaN": (lambda: vmf(3, 1.0, 2.0).scale_kappa(math.nan), ("factor = nan", "negative or NaN")),
    "inf times 0": (lambda: vmf(3, 1.0, 0.0).scale_kappa(math.inf), ("factor = inf", "0 times inf", "finite")),
    "0 times inf": (lambda: vmf(3, 1.0, math.inf).scale_kappa(0.0), (r"factor = 0\.0", "0 times inf")),
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
