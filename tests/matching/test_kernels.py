"""Zonal kernels: values, coefficients, kernels of one's own, and bad input."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate

from aleator import AcceptanceKernel, VMFKernel, VonMisesFisher, ZonalKernel, log_positivity, pairwise_log_positivity
from aleator.special.bessel import log_growth
from aleator.special.polynomials import gegenbauer
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

    def test_a_function_of_the_vmf_kernel_gives_its_coefficients(self):
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
        [
            (2, 20.0, (3, 90)),
            (5, 20.0, (60,)),
            (10, 16.0, (1, 94)),
            pytest.param(10, 16.0, (180,), marks=pytest.mark.slow),
            (33, 20.0, (40,)),
            (128, 20.0, (5, 18, 64)),
        ],
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

    def test_a_learned_acceptance_kernel_has_the_coefficients_of_the_fixed_one(self):
        for dim in (3, 10, 100):
            learned, fixed = AcceptanceKernel(20.0, requires_grad=True), AcceptanceKernel(20.0)
            torch.testing.assert_close(
                learned.coefficients(dim, 80).detach(), fixed.coefficients(dim, 80), rtol=0, atol=1e-13
            )

    def test_repr_names_the_parameter(self):
        assert "kappa_pos=20" in repr(VMFKernel(20.0))
        assert "learnable=True" in repr(AcceptanceKernel(5.0, requires_grad=True))


class Poisson(ZonalKernel):
    """g(t) = (1 - rho^2) / (1 + rho^2 - 2 rho t)^(D/2), which has lambda_n = rho^n in every dimension."""

    def __init__(self, rho: float):
        super().__init__()
        self.rho = rho

    def log_values(self, dim: int, t: torch.Tensor) -> torch.Tensor:
        return -dim / 2 * torch.log(1 + self.rho**2 - 2 * self.rho * t)


class KnownPoisson(Poisson):
    def coefficients(self, dim: int, terms: int) -> torch.Tensor:
        return self.rho ** torch.arange(terms, dtype=torch.float64)

    def coefficient_errors(self, dim: int, terms: int) -> torch.Tensor:
        return torch.zeros(terms, dtype=torch.float64)


class Exponential(torch.nn.Module):
    """A vMF kernel as a module: learnable, with coefficients by quadrature."""

    def __init__(self, kappa_pos: float):
        super().__init__()
        self.log_kappa_pos = torch.nn.Parameter(torch.tensor(kappa_pos, dtype=torch.float64).log())

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.log_kappa_pos.exp() * (t - 1))


class Bare(ZonalKernel):
    """A subclass that has forgotten to say what its values are."""


class TestOwnKernels:
    mu = torch.nn.functional.normalize(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).double(), dim=-1)
    q = VonMisesFisher(mu, torch.linspace(2, 9, 5, dtype=torch.float64))

    def test_a_subclass_with_values_and_one_with_coefficients_agree(self):
        for dim in (2, 3, 6, 20):
            by_quadrature, known = (kind(0.5).coefficients(dim, 20) for kind in (Poisson, KnownPoisson))
            torch.testing.assert_close(by_quadrature, known, rtol=0, atol=2e-14)
        tables = [pairwise_log_positivity(self.q, self.q, kind(0.5)) for kind in (Poisson, KnownPoisson)]
        torch.testing.assert_close(*tables, rtol=0, atol=1e-9)

    def test_known_coefficients_reach_further(self):
        assert Poisson(0.5).reach(64) < KnownPoisson(0.5).reach(64)

    def test_a_module_is_learned(self):
        """Its gradient is that of the vMF kernel, and no cache returns coefficients of an earlier value."""
        own, vmf = ZonalKernel(Exponential(7.0)), VMFKernel(7.0, requires_grad=True)
        assert own.cache_key() is None
        assert [name for name, _ in own.named_parameters()] == ["fn.log_kappa_pos"]
        for kappa_pos in (7.0, 11.0):
            slopes = []
            for kernel, parameter in ((own, own.fn.log_kappa_pos), (vmf, vmf.log_kappa_pos)):
                with torch.no_grad():
                    parameter.fill_(math.log(kappa_pos))
                log_r = pairwise_log_positivity(self.q, self.q, kernel)
                slopes += [log_r.detach(), *torch.autograd.grad(log_r.sum(), parameter)]
            torch.testing.assert_close(slopes[:2], slopes[2:], rtol=1e-6, atol=1e-7)


BAD_INPUT = {
    "kappa_pos = 0": (lambda: VMFKernel(0.0), "kappa_pos = 0.0"),
    "negative": (lambda: AcceptanceKernel(-2.0), "kappa_pos = -2.0"),
    "NaN": (lambda: VMFKernel(math.nan), "kappa_pos = nan"),
    "two numbers": (lambda: VMFKernel(torch.ones(2)), r"kappa_pos = \(2,\)"),
    "infinity cannot be learned": (lambda: VMFKernel(math.inf, requires_grad=True), "kappa_pos = inf"),
    "nothing is accepted": (lambda: AcceptanceKernel(math.inf), "kappa_pos = inf.*VMFKernel"),
    "no function": (lambda: ZonalKernel(), "fn = None.*function of the cosine"),
    "a number for a function": (lambda: ZonalKernel(20.0), "fn = 20.0.*function of the cosine"),
    "neither fn nor log_values": (lambda: Bare().coefficients(5, 3), "fn = None.*override log_values"),
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


def test_a_replaced_function_is_not_taken_for_the_earlier_one():
    """Python gives the place of a freed function, its id, to the next one."""
    q = VonMisesFisher(torch.eye(5)[:2], 10.0)
    kernel = ZonalKernel(lambda t: torch.exp(2.0 * t))
    for steepness in (2.0, 5.0, 8.0, 11.0):
        kernel.fn = lambda t, a=steepness: torch.exp(a * t)
        expected = log_positivity(q[0], q[1], ZonalKernel(lambda t, a=steepness: torch.exp(a * t)))
        assert log_positivity(q[0], q[1], kernel) == expected
        assert expected == pytest.approx(log_positivity(q[0], q[1], VMFKernel(steepness)).item(), abs=1e-5)


def test_a_function_that_cannot_be_hashed_is_not_cached():
    class Steep:
        __hash__ = None

        def __call__(self, t):
            return torch.exp(5.0 * t)

    q = VonMisesFisher(torch.eye(5)[:2], 10.0)
    found = log_positivity(q[0], q[1], ZonalKernel(Steep()))
    assert found == pytest.approx(log_positivity(q[0], q[1], VMFKernel(5.0)).item(), abs=1e-5)
