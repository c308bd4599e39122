"""Zonal kernels: their values, coefficients and terms, and bad input."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate

from aleator import AcceptanceKernel, VMFKernel, ZonalKernel
from aleator.special.bessel import log_growth, log_ratios_and_slopes
from aleator.special.polynomials import gegenbauer, log_harmonic_dimensions
from tests import reference


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def acceptance(dim: int, kappa_pos: float):
    """g(t) = p/(p+u) as the paper states it, from densities."""
    log_p = lambda t: reference.log_normaliser(dim, kappa_pos) + kappa_pos * t  # noqa: E731
    log_u = reference.log_normaliser(dim, 0.0)
    return lambda t: 1 / (1 + np.exp(log_u - log_p(t)))


class TestKernels:
    @pytest.mark.parametrize(("dim", "kappa_pos"), [(2, 3.0), (3, 20.0), (10, 20.0), (33, 8.0)])
    @pytest.mark.parametrize("kind", ["vmf", "acceptance"])
    def test_coefficients_against_adaptive_quadrature(self, dim, kappa_pos, kind):
        kernel = VMFKernel(kappa_pos) if kind == "vmf" else AcceptanceKernel(kappa_pos)
        g = (lambda t: np.exp(kappa_pos * (t - 1))) if kind == "vmf" else acceptance(dim, kappa_pos)

        def moment(n: int) -> float:
            P = lambda a: gegenbauer(dim, n + 1, double(math.cos(a)))[n].item()  # noqa: E731
            f = lambda a: g(math.cos(a)) * P(a) * math.sin(a) ** (dim - 2)  # noqa: E731
            return integrate.quad(f, 0, math.pi, epsabs=1e-13, epsrel=1e-12, limit=200)[0]

        lam = kernel.coefficients(dim, 9)
        for n in (0, 1, 2, 5, 8):
            assert lam[n].item() == pytest.approx(moment(n) / moment(0), abs=1e-9)

    def test_any_function_equals_the_kernel_it_states(self):
        for dim in (2, 3, 10):
            by_quadrature = ZonalKernel(lambda t: torch.exp(20 * t)).coefficients(dim, 30)
            torch.testing.assert_close(by_quadrature, VMFKernel(20.0).coefficients(dim, 30), rtol=0, atol=2e-14)

    def test_a_constant_kernel_has_one_coefficient(self):
        lam = ZonalKernel(torch.ones_like).coefficients(7, 6)
        torch.testing.assert_close(lam, double(1, 0, 0, 0, 0, 0), rtol=0, atol=1e-14)

    def test_the_acceptance_kernel_saturates(self):
        """It is not the vMF: p/(p+u) is 1/2 where p = u, and nearly 1 at its mode."""
        kernel, dim = AcceptanceKernel(20.0), 10
        offset = log_growth(dim / 2 - 1, double(20.0)).item() / 20
        values = kernel.log_values(dim, double(offset, 1.0)).exp()
        assert values[0].item() == pytest.approx(0.5)
        assert values[1].item() > 0.999
        assert kernel.coefficients(dim, 2)[1] < VMFKernel(20.0).coefficients(dim, 2)[1]

    @pytest.mark.parametrize("kind", [VMFKernel, AcceptanceKernel])
    def test_learnable_kappa_pos(self, kind):
        kernel = kind(7.0, requires_grad=True)
        assert [name for name, _ in kernel.named_parameters()] == ["log_kappa_pos"]
        assert float(kernel.kappa_pos.detach()) == pytest.approx(7.0)
        assert list(kind(7.0).parameters()) == []
        state = kind(3.0, requires_grad=True)
        state.load_state_dict(kernel.state_dict())
        assert float(state.kappa_pos.detach()) == pytest.approx(7.0)

        weights = torch.linspace(1, 2, 8, dtype=torch.float64)
        (slope,) = torch.autograd.grad(kernel.coefficients(10, 8) @ weights, kernel.log_kappa_pos)
        up, down = (kind(7.0 * math.exp(step)).coefficients(10, 8) @ weights for step in (1e-5, -1e-5))
        assert slope.item() == pytest.approx((up - down).item() / 2e-5, rel=1e-8)

    @pytest.mark.parametrize(
        ("dim", "kappa_pos", "degrees"),
        [(2, 20.0, (3, 90)), (5, 20.0, (60,)), (10, 16.0, (1, 94, 180)), (33, 20.0, (40,)), (128, 20.0, (5, 18, 64))],
    )
    def test_coefficients_of_the_acceptance_kernel_have_all_their_digits(self, dim, kappa_pos, degrees):
        """Also where they are far below the rounding of a float64 quadrature: at D = 128, lambda_64 is about 2e-33."""
        log_lam, sign = AcceptanceKernel(kappa_pos).log_abs_coefficients(dim, max(degrees) + 1)
        offset = log_growth(dim / 2 - 1, double(kappa_pos)).item()
        for n in degrees:
            expected = reference.logistic_moment(dim, kappa_pos, offset, n)
            assert sign[n].item() == float(mpmath.sign(expected))
            # a logarithm of -90 is itself rounded to 1e-14
            assert log_lam[n].item() == pytest.approx(float(mpmath.log(abs(expected))), abs=3e-14)

    @pytest.mark.parametrize("dim", [2, 5, 10, 32, 128])
    @pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
    def test_what_quadrature_says_of_its_noise(self, dim, kappa_pos):
        lam, noise = ZonalKernel(lambda t: torch.exp(kappa_pos * (t - 1)))._moments(dim, 200)
        assert ((lam - VMFKernel(kappa_pos).coefficients(dim, 200)).abs() <= noise).all()

    def test_a_learned_acceptance_kernel_is_the_fixed_one(self):
        for dim in (3, 10, 100):
            learned, fixed = AcceptanceKernel(20.0, requires_grad=True), AcceptanceKernel(20.0)
            torch.testing.assert_close(
                learned.coefficients(dim, 80).detach(), fixed.coefficients(dim, 80), rtol=0, atol=1e-13
            )

    def test_reach(self):
        for dim in (2, 10, 16, 1024):
            assert VMFKernel(200.0).reach(dim) == math.inf
        for dim in (2, 3, 8, 10, 16):
            assert AcceptanceKernel(20.0).reach(dim) == math.inf
        for dim in (2, 3, 10):
            assert ZonalKernel(lambda t: torch.exp(20 * t)).reach(dim) == math.inf
        assert 300 < AcceptanceKernel(20.0).reach(128) < 1e3
        # with the noise of quadrature less sharp posteriors are resolved, but always some
        for dim in (16, 64, 256):
            assert 30 < AcceptanceKernel(20.0, requires_grad=True).reach(dim) < AcceptanceKernel(20.0).reach(dim)

    @pytest.mark.parametrize("dim", [10, 64, 128])
    def test_terms_within_the_reach(self, dim):
        """Coefficients below the noise of quadrature are not the end of the series: 18 terms, it was once thought."""
        kernel = AcceptanceKernel(20.0)
        kappa = torch.tensor([min(kernel.reach(dim), 1e25)], dtype=torch.float64)
        count = kernel.terms(dim, 1e-10)
        log_lam, sign = kernel.log_abs_coefficients(dim, 3 * count)
        log_a = log_ratios_and_slopes(dim / 2 - 1, kappa, 3 * count)[0][0]
        terms = sign * torch.exp(log_harmonic_dimensions(dim, 3 * count) + log_lam + 2 * log_a)
        assert count > 60
        rounding = 1e-17 * terms.abs().sum()  # what is smaller than that of the largest terms cannot be seen at all
        assert terms[count:].abs().sum() <= max(1e-10 * terms.sum(), rounding)
        assert kernel.terms(dim, 1e-10, 5.0, 30.0) < count / 2

    @pytest.mark.parametrize("dim", [2, 10, 128])
    def test_terms_bound_what_is_left_out(self, dim):
        for kernel in (VMFKernel(1.0), VMFKernel(20.0), VMFKernel(200.0)):
            few, many = kernel.terms(dim, 1e-6), kernel.terms(dim, 1e-12)
            assert 2 <= few < many
            all_terms = (log_harmonic_dimensions(dim, 3 * many) + kernel.coefficients(dim, 3 * many).log()).exp()
            assert all_terms[few:].sum() <= 1e-6 * all_terms.sum()
            assert all_terms[few - 1 :].sum() > 1e-6 * all_terms.sum()  # and not one term too many

    def test_a_sharper_kernel_needs_more_terms(self):
        counts = [VMFKernel(k).terms(10, 1e-12) for k in (1.0, 5.0, 20.0, 100.0)]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]

    def test_repr_names_the_parameter(self):
        assert "kappa_pos=20" in repr(VMFKernel(20.0))
        assert "learnable=True" in repr(AcceptanceKernel(5.0, requires_grad=True))


BAD_INPUT = {
    "kappa_pos = 0": (lambda: VMFKernel(0.0), "kappa_pos = 0.0"),
    "negative": (lambda: AcceptanceKernel(-2.0), "kappa_pos = -2.0"),
    "NaN": (lambda: VMFKernel(math.nan), "kappa_pos = nan"),
    "two numbers": (lambda: VMFKernel(torch.ones(2)), r"kappa_pos = \(2,\)"),
    "infinity cannot be learned": (lambda: VMFKernel(math.inf, requires_grad=True), "kappa_pos = inf"),
    "nothing is accepted": (lambda: AcceptanceKernel(math.inf), "kappa_pos = inf.*VMFKernel"),
    "negative values": (lambda: ZonalKernel(lambda t: t).coefficients(5, 3), "fn = .*not negative"),
    "zero everywhere": (lambda: ZonalKernel(torch.zeros_like).coefficients(5, 3), "fn = 0.0.*zero everywhere"),
    "one number for all": (lambda: ZonalKernel(lambda t: t.sum()).coefficients(5, 3), "fn.*one value per cosine"),
    "no convergence": (lambda: ZonalKernel(lambda t: (t > 0.5).double()).terms(3, 1e-12), "kernel.*converge"),
    "D = 1": (lambda: AcceptanceKernel(2.0).coefficients(1, 3), "dim = 1"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(0.5)], ids=repr)
@pytest.mark.parametrize("dim", [2, 10, 100])
def test_log_linear_is_the_logarithm_of_the_kernel(kernel, dim):
    t = torch.linspace(-1, 1, 101, dtype=torch.float64)
    slope, offset, saturates = kernel.log_linear(dim)
    value = slope * t - offset
    expected = torch.nn.functional.logsigmoid(value) if saturates else value
    torch.testing.assert_close(kernel.log_values(dim, t), expected)


def test_kernels_that_are_not_log_linear():
    learned = VMFKernel(20.0, requires_grad=True), AcceptanceKernel(20.0, requires_grad=True)
    for kernel in (*learned, VMFKernel(math.inf), ZonalKernel(lambda t: torch.exp(3 * t))):
        assert kernel.log_linear(10) is None
