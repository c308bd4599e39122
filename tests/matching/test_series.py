"""The sum of the series: far from its maximum, for sharp posteriors, its gradients, and how it is computed."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from aleator import (
    AcceptanceKernel,
    VMFKernel,
    VonMisesFisher,
    ZonalKernel,
    log_positivity,
    pairwise_log_positivity,
)
from aleator.matching import series
from aleator.special.bessel import bessel_ratios
from aleator.special.polynomials import gegenbauer, harmonic_dimension
from tests import reference
from tests.matching.posterior_pairs import COSINES, INF, at_cosines, some_posteriors


def assert_same_positivity(log_r, expected):
    """Equal up to the error of the series: a few eps in r, which is much more in log r where r is small."""
    torch.testing.assert_close(log_r.exp(), expected.exp(), rtol=1e-12, atol=1e-14)


class TestFarAway:
    """Below 1e-5 of its maximum, r stays positive, finite and increasing, with a gradient of the right sign."""

    grid = torch.linspace(-1, 1, 801, dtype=torch.float64)

    @pytest.mark.parametrize("dim", [2, 3, 10, 128, 1024])
    @pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_log_r_increases_with_the_vmf_kernel(self, dim, kappa_pos, dtype):
        for kappas in ((1e-3, 1e3), (5.0, 30.0), (1e4, 1e4), (10.0, INF), (INF, INF)):
            self.check(dim, kappas, VMFKernel(kappa_pos), dtype, slack=0.0 if dtype == torch.float64 else 1e-12)

    @pytest.mark.parametrize(("dim", "kappa_pos"), [(2, 20.0), (3, 64.0), (10, 20.0), (10, 200.0), (16, 20.0)])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_log_r_increases_with_the_acceptance_kernel(self, dim, kappa_pos, dtype):
        """This kernel saturates: where r is flat, rounding may hide its increase."""
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

    def test_the_logarithm_of_the_plain_sum_fails(self):
        """The sum has an absolute error of 1e-16 of its maximum: far away it is noise, and sometimes negative."""
        dim, kappa_pos, terms = 10, 64.0, 120
        c = torch.linspace(-1, 0, 200, dtype=torch.float64)
        lam = bessel_ratios(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64), terms)
        dims = torch.tensor([float(harmonic_dimension(dim, n)) for n in range(terms)], dtype=torch.float64)
        naive = ((dims * lam)[:, None] * gegenbauer(dim, terms, c)).sum(0)
        assert (naive <= 0).any()
        ours = log_positivity(*at_cosines(dim, c, INF, INF), VMFKernel(kappa_pos))
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours.diff(), kappa_pos * c.diff(), rtol=1e-3, atol=0)

    def test_gradients_in_the_tail_match_differences(self):
        """Where log r is a straight line, finite differences with a large step equal the gradients."""
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
    def test_against_quadrature_within_an_infinite_reach(self, dim, kappas):
        """One of the two posteriors is a point mass."""
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

    def test_posteriors_beyond_the_reach_are_treated_as_at_the_reach(self):
        """On the plateau of the kernel this hardly matters."""
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
        """The posteriors are so wide that r is above 1e-5 of its maximum everywhere. Below, differences are noise."""
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

    def test_gradients_at_kappa_zero_and_infinity(self):
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


class TestSummation:
    def test_adaptive_terms_equal_the_full_series(self):
        """Wide posteriors need few terms; many more terms change nothing."""
        for low, high in ((0.1, 2.0), (10.0, 40.0), (500.0, 1e4)):
            q1, q2 = some_posteriors(9, 12, low, high), some_posteriors(9, 12, low, high, seed=1)
            adaptive = pairwise_log_positivity(q1, q2, VMFKernel(30.0))
            full = pairwise_log_positivity(q1, q2, VMFKernel(30.0), terms=400)
            torch.testing.assert_close(adaptive, full, rtol=0, atol=1e-9)

    def test_blocks_equal_the_whole_table(self, monkeypatch):
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

    def test_without_gradients_the_values_are_the_same(self):
        q1, q2 = some_posteriors(40, 10), some_posteriors(30, 10, seed=1)
        wanted = VonMisesFisher(q1.mu, q1.kappa.clone().requires_grad_())
        for kernel in (VMFKernel(20.0), AcceptanceKernel(20.0)):
            plain, slopes = (pairwise_log_positivity(q, q2, kernel) for q in (q1, wanted))
            assert slopes.requires_grad
            torch.testing.assert_close(plain, slopes.detach(), rtol=0, atol=1e-12)

    def test_pairs_broadcast_like_the_table(self):
        q1, q2 = some_posteriors(5, 7), some_posteriors(4, 7, seed=1)
        table = pairwise_log_positivity(q1, q2, VMFKernel(20.0))
        torch.testing.assert_close(log_positivity(q1[:, None], q2[None], VMFKernel(20.0)), table)
        single = torch.stack(
            [torch.stack([log_positivity(q1[i], q2[j], VMFKernel(20.0)) for j in range(4)]) for i in range(5)]
        )
        assert_same_positivity(single, table)
        assert log_positivity(q1[:, None, None], q2[:, None], VMFKernel(20.0)).shape == (5, 4, 1)
        assert log_positivity(q1[:0], q2[:0], VMFKernel(20.0)).shape == (0,)

    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
    def test_groups_equal_separate_tables(self, kernel, monkeypatch):
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
            together = log_positivity(grouped[:, :, None], others[:, None, :], kernel, 30)
            assert_same_positivity(together, expected)
            for ours, theirs in zip(torch.autograd.grad((together * weight).sum(), leaves), slopes, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)

    def test_memory_does_not_grow_with_the_terms(self):
        """The backward pass saves a few numbers per pair, however many terms were summed."""
        q1, q2 = some_posteriors(200, 10), some_posteriors(200, 10, seed=1)
        sizes = []
        for terms in (20, 80):
            saved: list[int] = []
            save = lambda t, saved=saved: saved.append(t.numel()) or t  # noqa: E731
            leaf = q1.kappa.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
                pairwise_log_positivity(VonMisesFisher(q1.mu, leaf), q2, VMFKernel(20.0), terms=terms)
            sizes.append(sum(saved))
        assert sizes[0] == sizes[1]
        assert sizes[0] < 8 * 200 * 200
