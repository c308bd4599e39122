"""log I_v, its ratios and their derivatives against mpmath, by recurrence, at the ends, and where scipy gives up."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special
from torch.autograd import gradcheck, gradgradcheck

from aleator.special.bessel import bessel_ratio, bessel_ratios, log_bessel_ratios, log_growth, log_iv
from tests import reference

ORDERS = (0.0, 0.25, 0.5, 1.0, 1.7, 4.0, 9.3, 19.5, 20.0, 63.0, 511.0, 2047.0)
KAPPAS = (1e-6, 1e-3, 0.1, 1.0, 5.0, 10.0, 50.0, 100.0, 1e3, 1e4, 1e6)

# kappa in [0, inf], evenly over its orders of magnitude, and the ends
any_kappa = st.one_of(st.sampled_from([0.0, math.inf]), st.floats(-300, 300).map(lambda e: 10.0**e))
any_order = st.one_of(st.integers(0, 2500).map(lambda n: n / 2), st.floats(0, 2500))


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def derivatives(function, kappa: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The value and `count` derivatives of an elementwise function."""
    kappa = kappa.clone().requires_grad_()
    out = [function(kappa)]
    for n in range(1, count + 1):
        out.append(torch.autograd.grad(out[-1].sum(), kappa, create_graph=n < count)[0])
    return [x.detach() for x in out]


@pytest.mark.parametrize("order", ORDERS)
def test_value_and_two_derivatives_against_mpmath(order):
    kappa = double(*KAPPAS)
    value = log_iv(order, kappa)
    expected = double(*(reference.log_iv(order, k) for k in KAPPAS))
    assert ((value - expected).abs() / expected.abs().clamp_min(1)).max() < 1e-13

    _, ratio, slope = derivatives(lambda k: log_growth(order, k), kappa, 2)
    expected = double(*(reference.ratio(order, k) for k in KAPPAS))
    torch.testing.assert_close(ratio, expected, rtol=1e-14, atol=0)
    expected = double(*(reference.ratio_slope(order, k) for k in KAPPAS))
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 31.0, 2047.0])
def test_third_derivative_is_the_slope_of_the_second(order):
    """(log I)''' closes Bessel's equation: rho'' = -2 rho rho' - (2v+1)(rho'/kappa - rho/kappa^2)."""
    kappa = double(0.5, 3.0, 40.0)
    _, rho, slope, curvature = derivatives(lambda k: log_growth(order, k), kappa, 3)
    expected = -2 * rho * slope - (2 * order + 1) * (slope / kappa - rho / kappa**2)
    torch.testing.assert_close(curvature, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("order", [0.0, 0.3, 0.5, 7.0, 25.5, 1023.0])
def test_three_term_recurrence(order):
    """I_v - I_{v+2} = 2(v+1)/kappa I_{v+1}, divided by I_v; a check that needs no reference."""
    kappa = double(0.5, 5.0, 60.0, 700.0)
    A = bessel_ratios(order, kappa, 3)
    torch.testing.assert_close(1 - A[:, 2], 2 * (order + 1) / kappa * A[:, 1], rtol=1e-11, atol=0)


@pytest.mark.parametrize("order", [0.0, 0.5, 3.2, 31.0, 511.0])
def test_ratios_of_every_degree(order):
    """A_n = I_{v+n}/I_v as the difference of two logarithms, and its slope A_n' = A_{n+1} + (n/kappa - A_1) A_n."""
    kappa = double(0.2, 8.0, 150.0)
    log_a = log_bessel_ratios(order, kappa, 40)
    for n in (0, 1, 2, 11, 39):
        expected = double(*(reference.log_iv(order + n, k) - reference.log_iv(order, k) for k in kappa.tolist()))
        torch.testing.assert_close(log_a[:, n], expected, rtol=1e-12, atol=1e-11)
    A, slope = derivatives(lambda k: bessel_ratios(order, k, 12)[:, 10], kappa, 1)
    following = bessel_ratios(order, kappa, 12)
    torch.testing.assert_close(slope, following[:, 11] + (10 / kappa - following[:, 1]) * A, rtol=1e-9, atol=0)


@pytest.mark.parametrize("order", [0.0, 0.5, 5.0, 100.0])
def test_ends(order):
    zero, infinity = double(0.0), double(math.inf)
    assert log_growth(order, zero).item() == pytest.approx(0, abs=1e-16)
    assert bessel_ratio(order, zero).item() == 0
    assert bessel_ratio(order, infinity).item() == pytest.approx(1, abs=1e-15)
    assert log_iv(order, infinity).item() == math.inf
    assert log_iv(order, zero).item() == (pytest.approx(0, abs=1e-16) if order == 0 else -math.inf)
    assert bessel_ratios(order, zero, 4)[0].tolist() == [1, *[pytest.approx(0, abs=1e-149)] * 3]
    assert bessel_ratios(order, infinity, 4)[0].tolist() == [1, *[pytest.approx(1, abs=1e-15)] * 3]
    # near 0: I_v ~ (kappa/2)^v / Gamma(v+1), so rho ~ kappa / 2(v+1); far out: rho ~ 1 - (2v+1)/2kappa
    assert bessel_ratio(order, double(1e-100)).item() == pytest.approx(1e-100 / (2 * order + 2), rel=1e-14)
    assert 1 - bessel_ratio(order, double(1e12)).item() == pytest.approx((order + 0.5) * 1e-12, rel=1e-3)
    _, ratio, slope = derivatives(lambda k: log_growth(order, k), double(0.0, math.inf), 2)
    assert ratio.tolist() == [0, pytest.approx(1, abs=1e-15)]
    assert slope.tolist() == [pytest.approx(1 / (2 * order + 2)), 0]


def test_half_integer_orders_are_elementary():
    """I_{1/2} = sqrt(2/pi kappa) sinh kappa, so rho_{1/2} = coth kappa - 1/kappa, Langevin's function."""
    kappa = double(0.3, 1.0, 4.0, 30.0)
    torch.testing.assert_close(log_growth(0.5, kappa), torch.log(torch.sinh(kappa) / kappa), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(bessel_ratio(0.5, kappa), 1 / torch.tanh(kappa) - 1 / kappa, rtol=1e-12, atol=0)


@settings(max_examples=150, deadline=None)
@given(any_order, any_kappa, st.sampled_from([torch.float32, torch.float64]))
def test_nothing_overflows_anywhere(order, kappa, dtype):
    x = torch.tensor([kappa], dtype=dtype)
    value, ratio, slope = derivatives(lambda k: log_growth(order, k), x, 2)
    if torch.isfinite(x):
        assert torch.isfinite(value)
    assert 0 <= ratio <= 1
    assert torch.isfinite(slope)
    assert slope >= 0
    if x > 0:
        assert not torch.isnan(log_iv(order, x))
    log_a = log_bessel_ratios(order, x, 20)[0]
    assert torch.isfinite(log_a).all()
    assert (log_a.diff() <= 0).all()


@settings(max_examples=60, deadline=None)
@given(any_order, st.floats(-8, 6).map(lambda e: 10.0**e))
@example(2499.5, 3e4)
def test_any_order_and_argument_against_mpmath(order, kappa):
    expected = reference.log_iv(order, kappa)
    assert abs(log_iv(order, double(kappa)).item() - expected) <= 2e-13 * max(1, abs(expected))
    assert bessel_ratio(order, double(kappa)).item() == pytest.approx(reference.ratio(order, kappa), rel=1e-13)


@pytest.mark.parametrize("order", [0.0, 0.5, 2.0, 11.5, 31.0, 255.0])
def test_gradcheck_twice(order):
    kappa = double(0.3, 2.0, 15.0, 80.0).requires_grad_()
    assert gradcheck(lambda k: log_iv(order, k), kappa)
    assert gradgradcheck(lambda k: log_iv(order, k), kappa)
    assert gradcheck(lambda k: bessel_ratio(order, k), kappa)
    assert gradgradcheck(lambda k: bessel_ratio(order, k), kappa)
    assert gradcheck(lambda k: log_bessel_ratios(order, k, 9), kappa)


@pytest.mark.parametrize(("order", "kappa"), [(255.0, 10.0), (511.0, 50.0), (2047.0, 100.0)])
def test_right_where_scaled_bessel_functions_underflow(order, kappa):
    """scipy's exponentially scaled I_v is 0 here, and its logarithm -inf."""
    assert special.ive(order, kappa) == 0
    assert log_iv(order, double(kappa)).item() == pytest.approx(reference.log_iv(order, kappa), rel=1e-14)


def test_the_textbook_second_derivative_cancels_and_ours_does_not():
    kappa, order = 1e6, 31.0
    ours = derivatives(lambda k: bessel_ratio(order, k), double(kappa), 1)[1].item()
    rho = bessel_ratio(order, double(kappa)).item()
    naive = 1 - rho**2 - (2 * order + 1) * rho / kappa
    expected = reference.ratio_slope(order, kappa)
    assert ours == pytest.approx(expected, rel=1e-13)
    assert abs(naive / expected - 1) > 1e-7


def test_shape_and_dtype_follow_the_input():
    kappa = torch.rand(3, 1, 2) * 50
    for function in (log_iv, log_growth, bessel_ratio):
        assert function(4.0, kappa).shape == kappa.shape
        assert function(4.0, kappa).dtype == torch.float32
    assert bessel_ratios(4.0, kappa, 7).shape == (3, 1, 2, 7)


def test_long_inputs_are_worked_in_pieces_without_a_seam():
    kappa = torch.linspace(0, 100, 2**18 + 1001, dtype=torch.float64)
    whole = log_growth(4.0, kappa)
    ends = torch.cat([log_growth(4.0, kappa[:1000]), log_growth(4.0, kappa[-2000:])])
    assert torch.equal(torch.cat([whole[:1000], whole[-2000:]]), ends)
    assert whole.diff().min() > 0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: log_iv(-0.5, double(1.0)), "order = -0.5"),
        (lambda: bessel_ratio(math.nan, double(1.0)), "order = nan"),
        (lambda: log_growth(1.0, torch.tensor([1])), "kappa = torch.int64"),
        (lambda: bessel_ratios(1.0, torch.ones(2).half(), 3), "kappa = torch.float16"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_the_slope_of_order_0_at_0_is_0():
    kappa = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_iv(0.0, kappa).sum(), kappa)
    torch.testing.assert_close(slope.detach(), bessel_ratio(0.0, kappa.detach()))
    assert slope[0] == 0
