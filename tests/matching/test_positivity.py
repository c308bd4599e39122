"""Expected positivity against quadrature and Monte Carlo, at its limits, far out, and its gradients."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import Categorical, MixtureSameFamily, Normal

from aleator import (
    AcceptanceKernel,
    VMFKernel,
    VonMisesFisher,
    ZonalKernel,
    log_positivity,
    match_probability,
    pairwise_log_positivity,
)
from aleator.matching import series
from aleator.special.bessel import bessel_ratios, log_growth
from aleator.special.polynomials import gegenbauer, harmonic_dimension
from tests import reference

INF = math.inf
# (kappa, kappa'): both ends, both equal, and far apart
PAIRS = (
    (0.0, 5.0),
    (1e-3, 1e4),
    (0.5, 0.5),
    (5.0, 30.0),
    (30.0, 30.0),
    (200.0, 1e3),
    (1e4, 1e4),
    (10.0, INF),
    (1e3, INF),
    (INF, INF),
)
# exact in float32, so that both dtypes are held to the same reference
COSINES = (-1.0, -0.625, -0.125, 0.25, 0.5, 0.75, 0.9375, 0.9990234375, 1.0)


def at_cosines(dim: int, cosine, kappa1: float, kappa2: float, dtype: torch.dtype = torch.float64):
    """Pairs of posteriors whose directions have exactly these cosines."""
    cosine = torch.as_tensor(cosine, dtype=dtype)
    mu1 = torch.zeros(*cosine.shape, dim, dtype=dtype)
    mu2 = mu1.clone()
    mu1[..., 0], mu2[..., 0] = 1, cosine
    mu2[..., 1] = ((1 - cosine.double()) * (1 + cosine.double())).sqrt().to(dtype)
    return (VonMisesFisher(mu, torch.full(cosine.shape, k, dtype=dtype)) for mu, k in ((mu1, kappa1), (mu2, kappa2)))


def some_posteriors(count: int, dim: int, low: float = 1.0, high: float = 60.0, seed: int = 0) -> VonMisesFisher:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    kappa = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    return VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), kappa)


class TestAccuracy:
    @pytest.mark.parametrize("dim", [2, 3, 10, 64, 1024])
    @pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
    def test_against_independent_quadrature(self, dim, kappa_pos):
        for kappa1, kappa2 in PAIRS:
            expected = np.array([reference.log_positivity(dim, c, kappa1, kappa2, kappa_pos) for c in COSINES])
            below_peak = np.exp(expected - expected[-1])
            for dtype in (torch.float64, torch.float32):
                ours = log_positivity(*at_cosines(dim, COSINES, kappa1, kappa2, dtype), VMFKernel(kappa_pos))
                error = np.abs(np.expm1(ours.double().numpy() - expected))
                near, far = below_peak >= 1e-2, below_peak >= 1e-5
                assert error[near].max() <= (1e-4 if dtype == torch.float32 else 1e-9), (kappa1, kappa2, dtype)
                assert error[far].max() <= (1e-2 if dtype == torch.float32 else 1e-9), (kappa1, kappa2, dtype)
                assert torch.isfinite(ours).all()

    @pytest.mark.parametrize(("dim", "kappas"), [(2, (8.0, 3.0)), (3, (16.0, 40.0)), (10, (20.0, 25.0))])
    @pytest.mark.parametrize("kind", [VMFKernel, AcceptanceKernel])
    def test_against_monte_carlo(self, dim, kappas, kind):
        """r = E g(z.z') / E g over uniform latents, with latents drawn by brute force."""
        rng, kernel = np.random.default_rng(dim), kind(10.0)
        for cosine in (0.3, 0.9):
            q1, q2 = at_cosines(dim, cosine, *kappas)
            z1, z2 = (reference.sample_vmf(rng, q.mu.numpy(), q.kappa.item(), 100_000) for q in (q1, q2))
            g = kernel.log_values(dim, torch.as_tensor((z1 * z2).sum(1))).exp()
            t = torch.as_tensor(np.cos((np.arange(4000) + 0.5) * math.pi / 4000))
            weight = (1 - t**2) ** ((dim - 2) / 2)
            uniform = (kernel.log_values(dim, t).exp() * weight).sum() / weight.sum()
            estimate, error = g.mean() / uniform, g.std() / uniform / math.sqrt(len(g))
            assert abs(log_positivity(q1, q2, kernel).exp() - estimate) <= reference.STANDARD_ERRORS * error

    @pytest.mark.parametrize(("dim", "kappa_pos"), [(2, 5.0), (3, 20.0), (10, 20.0), (16, 8.0)])
    def test_the_acceptance_kernel_against_quadrature(self, dim, kappa_pos):
        offset = log_growth(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64)).item()
        log_g = lambda t: -np.logaddexp(0, offset - kappa_pos * t)  # noqa: E731
        for kappa in (0.5, 16.0, 32.0):
            expected = [reference.log_kernel_positivity(dim, c, kappa, log_g) for c in COSINES]
            ours = log_positivity(*at_cosines(dim, COSINES, INF, kappa), AcceptanceKernel(kappa_pos))
            expected = torch.tensor(expected, dtype=torch.float64)
            near = expected > expected[-1] + math.log(1e-5)
            torch.testing.assert_close(ours[near], expected[near], rtol=0, atol=1e-8)

    def test_unit_vectors_of_float32(self):
        """Directions that are normalised in float32 have lengths off by 1e-7, which kappa_pos multiplies."""
        q1, q2 = some_posteriors(50, 10), some_posteriors(50, 10, seed=1)
        exact = log_positivity(q1, q2, VMFKernel(200.0))
        single = (VonMisesFisher(q.mu.float(), q.kappa.float()) for q in (q1, q2))
        close = log_positivity(*single, VMFKernel(200.0))
        assert close.dtype == torch.float32
        assert (close.double() - exact).abs().max() < 1e-4


class TestLaws:
    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(INF)])
    def test_symmetric(self, kernel):
        q1, q2 = some_posteriors(6, 8), some_posteriors(7, 8, seed=1)
        r = pairwise_log_positivity(q1, q2, kernel)
        torch.testing.assert_close(r, pairwise_log_positivity(q2, q1, kernel).T, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("kernel", [VMFKernel(15.0), AcceptanceKernel(15.0)])
    @pytest.mark.parametrize("dim", [2, 3, 10, 50])
    def test_integrates_to_one_over_the_sphere(self, dim, kernel):
        """Over mu', and so in the cosine with weight w: r is a density ratio."""
        x, w = np.polynomial.legendre.leggauss(200)
        angle = math.pi / 2 * (1 + x)
        weight = torch.as_tensor(w * np.sin(angle) ** (dim - 2))
        for kappas in ((3.0, 20.0), (30.0, 30.0)):
            r = log_positivity(*at_cosines(dim, np.cos(angle), *kappas), kernel).exp()
            assert (r * weight).sum().item() / weight.sum().item() == pytest.approx(1, abs=1e-8)

    @pytest.mark.parametrize("dim", [2, 3, 16, 128])
    def test_point_masses_give_the_infonce_similarity(self, dim):
        """log r - kappa_pos c is one constant for ALL cosines, to the far side of the sphere."""
        c = torch.linspace(-1, 1, 101, dtype=torch.float64)
        for kappa_pos in (1.0, 20.0, 200.0):
            log_r = log_positivity(*at_cosines(dim, c, INF, INF), VMFKernel(kappa_pos))
            rest = log_r - kappa_pos * c
            constant = -log_growth(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64))
            assert (rest - constant).abs().max() < 1e-6

    def test_large_kappa_approaches_a_point_mass(self):
        c = torch.linspace(0, 1, 11, dtype=torch.float64)
        limit = log_positivity(*at_cosines(10, c, INF, INF), VMFKernel(20.0))
        gaps = [
            (log_positivity(*at_cosines(10, c, k, k), VMFKernel(20.0)) - limit).abs().max().item()
            for k in (1e3, 1e4, 1e5)
        ]
        assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.2)  # first order in 1/kappa
        assert gaps[2] == pytest.approx(gaps[1] / 10, rel=0.1)

    @pytest.mark.parametrize("dim", [2, 3, 10, 64])
    def test_large_kappa_pos_approaches_the_expected_likelihood_kernel(self, dim):
        """The other end of the family: the closed form S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|)."""
        q1, q2 = some_posteriors(20, dim, high=15.0), some_posteriors(20, dim, high=15.0, seed=1)
        limit = log_positivity(q1, q2, VMFKernel(INF))
        gaps = [(log_positivity(q1, q2, VMFKernel(k)) - limit).abs().max().item() for k in (1e3, 1e4)]
        assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.2)
        log_c = lambda k: reference.log_normaliser(dim, k)  # noqa: E731
        for i in range(3):
            k1, k2 = q1.kappa[i].item(), q2.kappa[i].item()
            both = (q1.kappa[i] * q1.mu[i] + q2.kappa[i] * q2.mu[i]).norm().item()
            assert limit[i].item() == pytest.approx(log_c(k1) + log_c(k2) - log_c(both) - log_c(0.0), abs=1e-11)

    def test_expected_likelihood_kernel_with_point_masses(self):
        q1, q2 = at_cosines(5, [0.2, 1.0], 7.0, INF)
        expected = q1.log_prob(q2.mu) - reference.log_normaliser(5, 0.0)
        torch.testing.assert_close(log_positivity(q1, q2, VMFKernel(INF)), expected)
        both = log_positivity(*at_cosines(5, [0.2, 1.0], INF, INF), VMFKernel(INF))
        assert both.tolist() == [-INF, INF]

    @pytest.mark.parametrize(
        ("shape1", "shape2"), [((6, 1), (1, 7)), ((5,), (5,)), ((6, 1), (6, 3)), ((2, 4, 1), (2, 1, 3)), ((), (4,))]
    )
    @pytest.mark.parametrize("masses", [False, True])
    def test_expected_likelihood_kernel_of_every_pair_alone(self, shape1, shape2, masses):
        """A table against the closed form written out for each pair by itself, in values and in gradients."""
        dim, order = 6, 2.0
        generator = torch.Generator().manual_seed(0)

        def draw(shape: tuple[int, ...]) -> list[torch.Tensor]:
            raw = torch.randn(*shape, dim, generator=generator, dtype=torch.float64)
            kappa = torch.rand(shape, generator=generator, dtype=torch.float64) * 50
            if masses:
                kappa.view(-1)[-1], kappa.view(-1)[0] = 0.0, INF
            return [raw.requires_grad_(), kappa.requires_grad_()]

        def literal(mu1, kappa1, mu2, kappa2):
            if torch.isinf(kappa1) and torch.isinf(kappa2):
                return torch.where(mu1 @ mu2 >= 1, INF, -INF)
            if torch.isinf(kappa1):
                return kappa2 * (mu1 @ mu2) - log_growth(order, kappa2)
            if torch.isinf(kappa2):
                return kappa1 * (mu1 @ mu2) - log_growth(order, kappa1)
            both = (kappa1 * mu1 + kappa2 * mu2).norm()
            return log_growth(order, both) - log_growth(order, kappa1) - log_growth(order, kappa2)

        leaves = [*draw(shape1), *draw(shape2)]
        mu1, mu2 = (torch.nn.functional.normalize(raw, dim=-1) for raw in leaves[::2])
        kappa1, kappa2 = leaves[1::2]
        ours = log_positivity(VonMisesFisher(mu1, kappa1), VonMisesFisher(mu2, kappa2), VMFKernel(INF))
        shape = torch.broadcast_shapes(shape1, shape2)
        mus = [mu.expand(*shape, dim).reshape(-1, dim) for mu in (mu1, mu2)]
        kappas = [kappa.expand(shape).reshape(-1) for kappa in (kappa1, kappa2)]
        pairs = zip(mus[0], kappas[0], mus[1], kappas[1], strict=True)
        theirs = torch.stack([literal(*pair) for pair in pairs]).view(shape)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        grads = [
            torch.autograd.grad((weight * x)[x.isfinite()].sum(), leaves, retain_graph=True, materialize_grads=True)
            for x in (ours, theirs)
        ]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(INF)])
    def test_the_uniform_posterior_matches_everything_alike(self, kernel):
        r = log_positivity(*at_cosines(10, COSINES, 0.0, 50.0), kernel)
        torch.testing.assert_close(r, torch.zeros_like(r), rtol=0, atol=1e-12)

    def test_the_product_with_the_kernel_is_associative(self):
        """A posterior blurred by the kernel: r(q, q'; kernel) with lambda_n = A_n is r of any two of the three."""
        q1, q2 = at_cosines(6, COSINES, 9.0, 30.0)
        swapped = log_positivity(*at_cosines(6, COSINES, 9.0, 20.0), VMFKernel(30.0))
        torch.testing.assert_close(log_positivity(q1, q2, VMFKernel(20.0)), swapped, rtol=0, atol=1e-9)

    def test_a_zonal_kernel_of_exp_is_the_vmf_kernel(self):
        """Down to 1e-5 of the maximum; an arbitrary function has no line to go on beyond."""
        c = torch.linspace(-1, 1, 60, dtype=torch.float64)
        for kappas in ((2.0, 9.0), (30.0, 30.0), (100.0, 40.0)):
            ours = log_positivity(*at_cosines(10, c, *kappas), ZonalKernel(lambda t: torch.exp(20 * t)))
            exact = log_positivity(*at_cosines(10, c, *kappas), VMFKernel(20.0))
            near = exact > exact[-1] + math.log(1e-5)
            torch.testing.assert_close(ours[near], exact[near], rtol=0, atol=1e-8)


class TestFarAway:
    """Below 1e-5 of its maximum r must stay positive, finite and increasing, with a gradient of the right sign."""

    grid = torch.linspace(-1, 1, 801, dtype=torch.float64)

    @pytest.mark.parametrize("dim", [2, 3, 10, 128, 1024])
    @pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_the_vmf_kernel(self, dim, kappa_pos, dtype):
        for kappas in ((1e-3, 1e3), (5.0, 30.0), (1e4, 1e4), (10.0, INF), (INF, INF)):
            self.check(dim, kappas, VMFKernel(kappa_pos), dtype, slack=0.0 if dtype == torch.float64 else 1e-12)

    @pytest.mark.parametrize(("dim", "kappa_pos"), [(2, 20.0), (3, 64.0), (10, 20.0), (10, 200.0), (16, 20.0)])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_the_acceptance_kernel(self, dim, kappa_pos, dtype):
        """It saturates: where r is flat to rounding, so may the increase be."""
        for kappas in ((0.1, 5.0), (5.0, 30.0), (32.0, 32.0), (128.0, 128.0)):
            self.check(dim, kappas, AcceptanceKernel(kappa_pos), dtype, slack=1e-12)

    def check(self, dim, kappas, kernel, dtype, slack):
        q1, q2 = at_cosines(dim, self.grid, *kappas, dtype)
        turn = q2.mu.clone().requires_grad_()
        log_r = log_positivity(q1, VonMisesFisher(turn, q2.kappa), kernel)
        assert torch.isfinite(log_r).all()
        assert (log_r.diff() >= -slack).all()
        (gradient,) = torch.autograd.grad(log_r.sum(), turn)
        assert torch.isfinite(gradient).all()
        assert (gradient[:, 0] >= -slack).all()  # d log r / d cosine, times mu_1 = 1
        if slack == 0:
            assert (log_r.diff() > 0).all()
            assert (gradient[:, 0] > 0).all()

    def test_a_plain_logarithm_of_the_series_fails_here(self):
        """The series has an absolute error of 1e-16 of its maximum: far away it is noise, and at times negative."""
        dim, kappa_pos, terms = 10, 64.0, 120
        c = torch.linspace(-1, 0, 200, dtype=torch.float64)
        lam = bessel_ratios(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64), terms)
        dims = torch.tensor([float(harmonic_dimension(dim, n)) for n in range(terms)], dtype=torch.float64)
        naive = ((dims * lam)[:, None] * gegenbauer(dim, terms, c)).sum(0)
        assert (naive <= 0).any()
        ours = log_positivity(*at_cosines(dim, c, INF, INF), VMFKernel(kappa_pos))
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours.diff(), kappa_pos * c.diff(), rtol=1e-3, atol=0)

    def test_gradients_beyond_the_series_match_differences(self):
        """Where log r goes on as a line, differences with a large step see what backward gives."""
        dim, c = 10, -0.7
        inputs = [torch.tensor(x, dtype=torch.float64) for x in (c, 40.0, 90.0, math.log(60.0))]

        def log_r(c, kappa1, kappa2, log_kappa_pos):
            mu1, mu2 = torch.zeros(2, dim, dtype=torch.float64).unbind()
            mu1 = mu1.index_fill(0, torch.tensor(0), 1.0)
            mu2 = torch.stack([c, (1 - c**2).sqrt(), *mu2[2:]])
            kernel = VMFKernel(1.0, requires_grad=True)
            del kernel.log_kappa_pos
            kernel.log_kappa_pos = log_kappa_pos
            return log_positivity(VonMisesFisher(mu1, kappa1), VonMisesFisher(mu2, kappa2), kernel)

        leaves = [x.clone().requires_grad_() for x in inputs]
        gradients = torch.autograd.grad(log_r(*leaves), leaves)
        for i, (gradient, step) in enumerate(zip(gradients, (1e-3, 1e-2, 1e-2, 1e-4), strict=True)):
            moved = [[x + (s * step if j == i else 0) for j, x in enumerate(inputs)] for s in (1, -1)]
            difference = (log_r(*moved[0]) - log_r(*moved[1])) / (2 * step)
            assert gradient.item() == pytest.approx(difference.item(), rel=2e-3)


SHARP_KERNELS = {
    "vmf": lambda: VMFKernel(20.0),
    "acceptance": lambda: AcceptanceKernel(20.0),
    "learned acceptance": lambda: AcceptanceKernel(20.0, requires_grad=True),
    "exp": lambda: ZonalKernel(lambda t: torch.exp(20 * t)),
    "sigmoid": lambda: ZonalKernel(lambda t: torch.sigmoid(4 * t - 1)),
}


class TestSharpPosteriors:
    """In high dimensions dim_n multiplies every error of lambda_n, and terms far larger than their sum cancel."""

    @staticmethod
    def log_mean(kernel, dim: int) -> torch.Tensor:
        angle, log_weight = (torch.as_tensor(x) for x in reference._panels(dim))
        return torch.logsumexp(kernel.log_values(dim, angle.cos()) + log_weight, 0)

    @pytest.mark.parametrize(("dim", "kappa"), [(32, 1e3), (64, 500.0), (128, 300.0)])
    def test_against_monte_carlo(self, dim, kappa):
        rng, kernel = np.random.default_rng(dim), AcceptanceKernel(20.0)
        assert kappa <= kernel.reach(dim)
        for cosine in (-0.2, 0.1, 0.3, 1.0):
            q1, q2 = at_cosines(dim, cosine, kappa, kappa)
            z1, z2 = (reference.sample_vmf(rng, q.mu.numpy(), q.kappa.item(), 20_000) for q in (q1, q2))
            g = (kernel.log_values(dim, torch.as_tensor((z1 * z2).sum(1))) - self.log_mean(kernel, dim)).exp()
            error = g.std() / math.sqrt(len(g)) + 1e-6
            assert abs(log_positivity(q1, q2, kernel).exp() - g.mean()) <= reference.STANDARD_ERRORS * error

    @pytest.mark.parametrize(("dim", "kappas"), [(16, (100.0, 1e3, 1e5)), (32, (100.0, 1e3))])
    def test_against_quadrature(self, dim, kappas):
        """Where the reach is infinite, with a point mass."""
        kernel = AcceptanceKernel(16.0)
        assert kernel.reach(dim) == INF
        log_g = lambda t: kernel.log_values(dim, torch.as_tensor(t)).numpy()  # noqa: E731
        for kappa in kappas:
            expected = np.array([reference.log_kernel_positivity(dim, c, kappa, log_g) for c in COSINES])
            ours = log_positivity(*at_cosines(dim, COSINES, INF, kappa), kernel).numpy()
            assert np.abs(np.exp(ours - expected[-1]) - np.exp(expected - expected[-1])).max() <= 1e-6

    @pytest.mark.parametrize("dim", [2, 3, 10, 16, 32])
    def test_point_masses_give_the_kernel(self, dim):
        """r = g(c) / mean g, to the accuracy that cancellation leaves: 1e-6 of the maximum at worst."""
        kernel, c = AcceptanceKernel(16.0), torch.linspace(-1, 1, 81, dtype=torch.float64)
        expected = (kernel.log_values(dim, c) - self.log_mean(kernel, dim)).exp()
        ours = log_positivity(*at_cosines(dim, c, INF, INF), kernel).exp()
        assert (ours - expected).abs().max() <= (1e-9 if dim <= 10 else 1e-6) * expected[-1]

    @pytest.mark.parametrize("dim", [2, 3, 10, 16, 64, 128, 256])
    @pytest.mark.parametrize("name", SHARP_KERNELS)
    def test_finite_and_increasing_for_every_kappa(self, dim, name):
        kernel, c = SHARP_KERNELS[name](), torch.linspace(-1, 1, 41, dtype=torch.float64)
        kappas = torch.tensor([0.0, 1e-3, 1.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e6, 1e12, INF], dtype=torch.float64)
        first, second = (x.clone().requires_grad_() for x in (kappas, kappas))
        q1, q2 = at_cosines(dim, c, 1.0, 1.0)
        mu = q2.mu.clone().requires_grad_()
        log_r = log_positivity(
            VonMisesFisher(q1.mu[0], first[:, None, None]), VonMisesFisher(mu, second[None, :, None]), kernel
        )
        assert torch.isfinite(log_r).all()
        for slope in torch.autograd.grad(log_r.sum(), (mu, first, second)):
            assert torch.isfinite(slope).all()
        r = (log_r - log_r[..., -1:]).exp()
        slack = 1e-6 if name in ("vmf", "acceptance") else 1e-4
        assert (r.diff(dim=-1) >= -slack).all()

    def test_beyond_the_reach(self):
        """A sharper posterior is treated as one at the reach; on the plateau of the kernel that hardly matters."""
        c = torch.linspace(-1, 1, 41, dtype=torch.float64)
        for dim in (64, 128, 256):
            kernel = AcceptanceKernel(20.0)
            reach = kernel.reach(dim)
            at_reach = log_positivity(*at_cosines(dim, c, reach, reach), kernel)
            for kappa in (1.01 * reach, 1e6, INF):
                assert torch.equal(log_positivity(*at_cosines(dim, c, kappa, kappa), kernel), at_reach)
            point = kernel.log_values(dim, c) - self.log_mean(kernel, dim)
            assert (at_reach - point)[c > 0.49].abs().max() < 0.02
            assert (at_reach - point)[c > 0].abs().max() < 0.5
            assert (at_reach - point)[-1].abs() < 1e-3


class TestGradients:
    @staticmethod
    def function(kernel):
        def log_r(mu1, kappa1, mu2, kappa2):
            q1, q2 = (VonMisesFisher(m, k, validate_args=False) for m, k in ((mu1, kappa1), (mu2, kappa2)))
            return pairwise_log_positivity(q1, q2, kernel)

        return log_r

    @pytest.mark.parametrize("dim", [2, 3, 10, 40])
    @pytest.mark.parametrize("kernel", [VMFKernel(5.0), AcceptanceKernel(5.0), VMFKernel(INF)])
    def test_gradcheck(self, dim, kernel):
        """At posteriors wide enough that r is within 1e-5 of its maximum everywhere: below, differences see noise."""
        q1, q2 = some_posteriors(2, dim, 0.5, 6.0), some_posteriors(1, dim, 0.5, 6.0, seed=1)
        inputs = tuple(x.clone().requires_grad_() for x in (q1.mu, q1.kappa, q2.mu, q2.kappa))
        assert gradcheck(self.function(kernel), inputs)

    def test_gradcheck_of_sharp_posteriors_close_together(self):
        basis = torch.eye(10, dtype=torch.float64)
        mu1, mu2 = (
            torch.nn.functional.normalize(basis[0] + 0.1 * basis[part], dim=-1) for part in ([1, 2, 3], [4, 5, 6])
        )
        kappa = torch.tensor([20.0, 80.0, 1e3], dtype=torch.float64)
        inputs = tuple(x.clone().requires_grad_() for x in (mu1, kappa, mu2, kappa))
        assert gradcheck(self.function(VMFKernel(20.0)), inputs, rtol=1e-4)

    @pytest.mark.parametrize("kind", [VMFKernel, AcceptanceKernel])
    def test_learnable_kappa_pos(self, kind):
        q1, q2 = some_posteriors(8, 6, high=20.0), some_posteriors(8, 6, high=20.0, seed=1)
        kernel = kind(9.0, requires_grad=True)
        weight = torch.linspace(0.5, 1.5, 64, dtype=torch.float64).view(8, 8)
        (slope,) = torch.autograd.grad((weight * pairwise_log_positivity(q1, q2, kernel)).sum(), kernel.log_kappa_pos)
        up, down = (
            (weight * pairwise_log_positivity(q1, q2, kind(9.0 * math.exp(step)))).sum() for step in (1e-4, -1e-4)
        )
        assert slope.item() == pytest.approx((up - down).item() / 2e-4, rel=1e-5)

    def test_kappa_at_its_ends(self):
        for kappa in (0.0, 1e-12, 1e12, INF):
            leaf = torch.tensor([kappa], dtype=torch.float64).requires_grad_()
            q1, q2 = at_cosines(10, [0.4], 1.0, 20.0)
            log_r = log_positivity(VonMisesFisher(q1.mu, leaf), q2, VMFKernel(20.0))
            (slope,) = torch.autograd.grad(log_r.sum(), leaf)
            assert torch.isfinite(log_r).all()
            assert torch.isfinite(slope).all()
        # the slope at kappa = 0 is D lambda_1 A_1(kappa') c / D, since A_1 ~ kappa/D
        leaf = torch.zeros(1, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(log_positivity(VonMisesFisher(q1.mu, leaf), q2, VMFKernel(20.0)).sum(), leaf)
        A1 = reference.ratio(4.0, 20.0)
        assert slope.item() == pytest.approx(A1 * A1 * 0.4, rel=1e-9)


class TestHowItIsSummed:
    def test_adaptive_terms_equal_the_full_series(self):
        """Posteriors that are wide need few terms; asking for many more changes nothing."""
        for low, high in ((0.1, 2.0), (10.0, 40.0), (500.0, 1e4)):
            q1, q2 = some_posteriors(9, 12, low, high), some_posteriors(9, 12, low, high, seed=1)
            adaptive = pairwise_log_positivity(q1, q2, VMFKernel(30.0))
            full = pairwise_log_positivity(q1, q2, VMFKernel(30.0), terms=400)
            torch.testing.assert_close(adaptive, full, rtol=0, atol=1e-9)

    def test_blocks_equal_the_whole(self, monkeypatch):
        q1, q2 = some_posteriors(40, 10), some_posteriors(30, 10, seed=1)

        def value_and_gradient():
            leaves = [x.clone().requires_grad_() for x in (q1.mu, q1.kappa, q2.mu, q2.kappa)]
            posteriors = VonMisesFisher(*leaves[:2]), VonMisesFisher(*leaves[2:])
            log_r = pairwise_log_positivity(*posteriors, VMFKernel(20.0))
            return [log_r.detach(), *torch.autograd.grad(log_r.logsumexp(1).sum(), leaves)]

        whole = value_and_gradient()
        monkeypatch.setattr(series, "_BLOCK", 100)
        for one, other in zip(whole, value_and_gradient(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)

    def test_pairs_broadcast_like_the_table(self):
        q1, q2 = some_posteriors(5, 7), some_posteriors(4, 7, seed=1)
        table = pairwise_log_positivity(q1, q2, VMFKernel(20.0))
        torch.testing.assert_close(log_positivity(q1[:, None], q2[None], VMFKernel(20.0)), table)
        single = torch.stack(
            [torch.stack([log_positivity(q1[i], q2[j], VMFKernel(20.0)) for j in range(4)]) for i in range(5)]
        )
        torch.testing.assert_close(single, table, rtol=0, atol=1e-9)
        assert log_positivity(q1[:, None, None], q2[:, None], VMFKernel(20.0)).shape == (5, 4, 1)
        assert log_positivity(q1[:0], q2[:0], VMFKernel(20.0)).shape == (0,)

    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
    def test_groups_are_tables_of_their_own(self, kernel, monkeypatch):
        q1, q2 = some_posteriors(15, 7), some_posteriors(12, 7, seed=1)
        leaves = [x.clone().requires_grad_() for x in (q1.mu, q1.kappa, q2.mu, q2.kappa)]
        first, second = VonMisesFisher(*leaves[:2]), VonMisesFisher(*leaves[2:])
        tables = [
            pairwise_log_positivity(first[5 * g : 5 * g + 5], second[4 * g : 4 * g + 4], kernel, 30) for g in range(3)
        ]
        expected = torch.stack(tables)
        weight = torch.randn_like(expected)
        slopes = torch.autograd.grad((expected * weight).sum(), leaves)
        for block in (2**15, 30):
            monkeypatch.setattr(series, "_BLOCK", block)
            grouped = VonMisesFisher(leaves[0].view(3, 5, 7), leaves[1].view(3, 5))
            others = VonMisesFisher(leaves[2].view(3, 4, 7), leaves[3].view(3, 4))
            found = log_positivity(grouped[:, :, None], others[:, None, :], kernel, 30)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            for ours, theirs in zip(torch.autograd.grad((found * weight).sum(), leaves), slopes, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)

    def test_memory_does_not_grow_with_the_terms(self):
        """What backward keeps is a few numbers per pair, however many terms were summed."""
        q1, q2 = some_posteriors(200, 10), some_posteriors(200, 10, seed=1)
        sizes = []
        for terms in (20, 80):
            kept: list[int] = []
            keep = lambda t, kept=kept: kept.append(t.numel()) or t  # noqa: E731
            leaf = q1.kappa.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                pairwise_log_positivity(VonMisesFisher(q1.mu, leaf), q2, VMFKernel(20.0), terms=terms)
            sizes.append(sum(kept))
        assert sizes[0] == sizes[1]
        assert sizes[0] < 8 * 200 * 200


class TestMixtures:
    @staticmethod
    def mixture(count: int, parts: int, dim: int, seed: int) -> MixtureSameFamily:
        flat = some_posteriors(count * parts, dim, seed=seed)
        components = VonMisesFisher(flat.mu.view(count, parts, dim), flat.kappa.view(count, parts))
        logits = torch.randn(count, parts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return MixtureSameFamily(Categorical(logits=logits), components)

    def test_equal_the_weighted_sum(self):
        """(3) is bilinear: r of two mixtures is the weighted sum over the pairs of components."""
        m1, m2, kernel = self.mixture(4, 3, 8, 0), self.mixture(5, 2, 8, 1), VMFKernel(20.0)
        table = pairwise_log_positivity(m1, m2, kernel).exp()
        w1, w2 = m1.mixture_distribution.probs, m2.mixture_distribution.probs
        for i in range(4):
            for j in range(5):
                parts = pairwise_log_positivity(m1.component_distribution[i], m2.component_distribution[j], kernel)
                torch.testing.assert_close(table[i, j], w1[i] @ parts.exp() @ w2[j])

    def test_with_a_single_posterior_and_in_pairs(self):
        m, q, kernel = self.mixture(4, 3, 8, 0), some_posteriors(4, 8, seed=2), VMFKernel(20.0)
        table = pairwise_log_positivity(m, q, kernel)
        assert table.shape == (4, 4)
        torch.testing.assert_close(log_positivity(m, q, kernel), table.diagonal())
        torch.testing.assert_close(log_positivity(q, m, kernel), table.diagonal())
        one = MixtureSameFamily(Categorical(torch.ones(4, 1).double()), q[:, None])
        torch.testing.assert_close(pairwise_log_positivity(one, q, kernel), pairwise_log_positivity(q, q, kernel))


class TestMatchProbability:
    def test_bayes(self):
        q1, q2 = some_posteriors(6, 5), some_posteriors(6, 5, seed=1)
        r = log_positivity(q1, q2, VMFKernel(10.0)).exp()
        for prior in (0.5, 0.01, 0.9):
            expected = prior * r / (prior * r + 1 - prior)
            torch.testing.assert_close(match_probability(q1, q2, VMFKernel(10.0), prior), expected)
        priors = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
        torch.testing.assert_close(
            match_probability(q1, q2, VMFKernel(10.0), priors), priors * r / (priors * r + 1 - priors)
        )

    def test_a_uniform_posterior_leaves_the_prior(self):
        q1, q2 = at_cosines(10, [0.9], 0.0, 30.0)
        assert match_probability(q1, q2, VMFKernel(10.0), 0.3).item() == pytest.approx(0.3)


Q = some_posteriors(3, 4)
BAD_INPUT = {
    "another dimension": (lambda: log_positivity(Q, some_posteriors(3, 5), VMFKernel()), "q2 = .*5.*4"),
    "another dtype": (
        lambda: log_positivity(Q, VonMisesFisher(Q.mu.float(), Q.kappa.float()), VMFKernel()),
        "q2 = torch.float32.*cast",
    ),
    "no posterior": (lambda: log_positivity(Normal(0.0, 1.0), Q, VMFKernel()), "q1 = 'Normal'.*VonMisesFisher"),
    "a mixture of normals": (
        lambda: log_positivity(
            Q, MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.zeros(2), 1.0)), VMFKernel()
        ),
        "q2 = 'MixtureSameFamily'",
    ),
    "no kernel": (lambda: log_positivity(Q, Q, 20.0), "kernel = 20.0.*VMFKernel"),
    "two batch dimensions": (lambda: pairwise_log_positivity(Q[:, None], Q, VMFKernel()), r"q1 = \(3, 1\).*flatten"),
    "one term": (lambda: log_positivity(Q, Q, VMFKernel(), terms=1), "terms = 1"),
    "prior = 0": (lambda: match_probability(Q, Q, VMFKernel(), 0.0), "prior = 0.0"),
    "prior = 1": (lambda: match_probability(Q, Q, VMFKernel(), torch.ones(3)), "prior = 1.0"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(math.inf)], ids=repr)
def test_nan_stays_with_its_pairs(kernel):
    mu = torch.nn.functional.normalize(torch.randn(4, 1, 10, dtype=torch.float64), dim=-1)
    kappa = torch.tensor([0.5, 20.0, 30.0, 40.0], dtype=torch.float64)[:, None]
    clean = log_positivity(VonMisesFisher(mu, kappa), VonMisesFisher(mu.view(1, 4, 10), kappa.view(1, 4)), kernel)
    dirty_mu, dirty_kappa = mu.clone(), kappa.clone()
    dirty_mu[1], dirty_kappa[2] = math.nan, math.nan
    dirty = VonMisesFisher(dirty_mu, dirty_kappa, validate_args=False)
    log_r = log_positivity(dirty, VonMisesFisher(mu.view(1, 4, 10), kappa.view(1, 4)), kernel)
    assert log_r.isnan().all(1).tolist() == [False, True, True, False]
    torch.testing.assert_close(log_r[[0, 3]], clean[[0, 3]])
