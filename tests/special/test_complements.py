"""kappa - log_growth and 1 - I_{v+1}/I_v against mpmath, for kappas at which the differences have no digits left."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from aleator.special import bessel_ratio, kappa_minus_log_growth, log_growth, one_minus_bessel_ratio

ORDERS = (0.0, 0.25, 0.5, 4.0, 19.5, 63.0, 511.0, 2047.0)
SCALES = (0.0, 1e-6, 0.1, 1.0, 20.0, 63.0, 65.0, 1e3, 1e6, 1e10, 1e15, 1e20)  # kappa / (v + 1)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def exact(order: float, kappa: float) -> tuple[float, float]:
    """kappa - log 0F1 and 1 - I_{v+1}/I_v in eighty digits."""
    with mpmath.workdps(80):
        v, k = mpmath.mpf(order), mpmath.mpf(kappa)
        if k == 0:
            return 0.0, 1.0
        here, above = (mpmath.besseli(v + n, k, maxterms=10**7) for n in (0, 1))
        growth = mpmath.loggamma(v + 1) + v * mpmath.log(2 / k) + mpmath.log(here)
        return float(k - growth), float(1 - above / here)


@pytest.mark.parametrize("order", ORDERS)
def test_value_and_slope_against_mpmath(order):
    kappa = (double(*SCALES) * (order + 1)).requires_grad_()
    value, slope = double(*(x for k in kappa.tolist() for x in exact(order, k))).view(-1, 2).unbind(1)
    found = kappa_minus_log_growth(order, kappa)
    torch.testing.assert_close(found.detach(), value, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), kappa)[0], slope, rtol=2e-13, atol=0)
    torch.testing.assert_close(one_minus_bessel_ratio(order, kappa).detach(), slope, rtol=2e-13, atol=0)


def test_the_differences_have_no_digits_where_these_have_all():
    kappa, order = double(1e20), 4.0
    value, slope = exact(order, 1e20)
    assert abs((kappa - log_growth(order, kappa)).item() - value) > 10
    assert abs((1 - bessel_ratio(order, kappa)).item() / slope - 1) > 0.9
    assert kappa_minus_log_growth(order, kappa).item() == pytest.approx(value, rel=1e-15)
    assert one_minus_bessel_ratio(order, kappa).item() == pytest.approx(slope, rel=1e-15)


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 31.0, 255.0])
def test_gradcheck_twice(order):
    kappa = (double(0.3, 2.0, 30.0, 100.0, 300.0) * (order + 1)).requires_grad_()
    for function in (kappa_minus_log_growth, one_minus_bessel_ratio):
        assert gradcheck(lambda k, f=function: f(order, k), kappa)
        assert gradgradcheck(lambda k, f=function: f(order, k), kappa)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 2500), st.floats(-300, 300).map(lambda e: 10.0**e))
def test_both_stay_in_their_range(order, kappa):
    x = double(0.0, kappa, 2 * kappa, math.inf)
    value, slope = kappa_minus_log_growth(order, x), one_minus_bessel_ratio(order, x)
    assert value[0] == 0
    assert torch.isfinite(value[1:3]).all()
    assert (value.diff() >= -1e-14 * value[1:3].amax()).all()
    assert value[3] == math.inf
    assert slope[0] == 1
    assert slope[3] == 0
    assert (slope.diff() <= 1e-15).all()


def test_shape_and_dtype_follow_the_input():
    kappa = torch.rand(3, 1, 2) * 1000
    for function in (kappa_minus_log_growth, one_minus_bessel_ratio):
        assert function(4.0, kappa).shape == kappa.shape
        assert function(4.0, kappa).dtype == torch.float32
        with pytest.raises(ValueError, match=r"order = -1\.0"):
            function(-1.0, kappa)
