"""Credible caps: probabilities against mpmath, round trips over the whole grid, nesting, gradients."""

import math

import pytest
import torch
from scipy import special
from torch.autograd import gradcheck

from aleator import VonMisesFisher
from tests import reference

DIMENSIONS = (2, 3, 4, 5, 7, 10, 16, 31, 64, 128, 512, 1024, 4096)
KAPPAS = torch.tensor([0, 1e-6, 1e-3, 0.1, 1, 5, 10, 50, 100, 1e3, 1e4, 1e6], dtype=torch.float64)
LEVELS = torch.tensor(
    [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6],
    dtype=torch.float64,
)


def vmf(dim: int, kappa: torch.Tensor) -> VonMisesFisher:
    mu = torch.zeros(dim, dtype=kappa.dtype)
    mu[0] = 1
    return VonMisesFisher(mu, kappa)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_cap_and_its_probability_are_inverse_over_the_grid(dim):
    q = vmf(dim, KAPPAS[:, None])
    angle = q.cap_angle(LEVELS)
    torch.testing.assert_close(q.cap_angle_probability(angle), LEVELS.expand(len(KAPPAS), -1), rtol=0, atol=1e-9)
    # A cosine near 1 is a coarse scale: 1 - t is 5e-19 for D = 2, kappa = 1e6, p = 1e-6. What one step of float64
    # changes of the probability is allowed for, and only that.
    t = q.cap(LEVELS)
    steps = [torch.nextafter(t, torch.full_like(t, end)) for end in (-1.0, 1.0)]
    grain = q.cap_probability(steps[0]) - q.cap_probability(steps[1])
    assert ((q.cap_probability(t) - LEVELS).abs() <= 1e-9 + grain).all()
    assert (grain[KAPPAS <= 1e3] < 1e-6).all()  # so the allowance is for the sharpest only


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_caps_nest(dim):
    """A more certain cap is larger, and a more concentrated posterior has a smaller one."""
    angle = vmf(dim, KAPPAS[:, None]).cap_angle(LEVELS)
    assert (angle.diff(dim=1) > 0).all()
    assert (angle.diff(dim=0)[1:] < 0).all()
    assert (angle >= 0).all()
    assert (angle <= math.pi).all()


@pytest.mark.parametrize(
    ("dim", "kappa", "cosine"),
    [
        (2, 0.5, -0.3),
        (2, 40.0, 0.99),
        (3, 7.0, 0.2),
        (5, 1e-3, 0.0),
        (10, 16.0, 0.9),
        (10, 16.0, -0.4),
        (64, 100.0, 0.5),
        (512, 64.0, 0.2),
        (1024, 1e4, 0.96),
        (4096, 10.0, 0.03),
    ],
)
def test_probability_against_mpmath(dim, kappa, cosine):
    ours = vmf(dim, torch.tensor(kappa, dtype=torch.float64)).cap_probability(cosine).item()
    assert ours == pytest.approx(reference.cap_probability(dim, kappa, cosine), rel=1e-11, abs=1e-15)


def test_closed_forms():
    """D = 3: P(cos >= t) = (e^kappa - e^{kappa t}) / (e^kappa - e^-kappa). kappa = 0: an incomplete beta function."""
    t = torch.linspace(-0.99, 0.99, 9, dtype=torch.float64)
    for kappa in (0.2, 3.0, 30.0):
        expected = -torch.expm1(kappa * (t - 1)) / -math.expm1(-2 * kappa)
        torch.testing.assert_close(
            vmf(3, torch.tensor(kappa, dtype=torch.float64)).cap_probability(t), expected, rtol=1e-11, atol=0
        )
    for dim in (2, 4, 33, 1000):
        expected = torch.as_tensor(special.betainc((dim - 1) / 2, (dim - 1) / 2, ((1 - t) / 2).numpy()))
        ours = vmf(dim, torch.tensor(0.0).double()).cap_probability(t)
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-13)


def test_ends():
    q = vmf(5, torch.tensor([0.0, 3.0, 1e6, math.inf], dtype=torch.float64))
    assert q.cap_probability(-1.0).tolist() == pytest.approx([1, 1, 1, 1], abs=1e-14)
    assert q.cap_probability(1.0).tolist() == pytest.approx([0, 0, 0, 1], abs=1e-14)
    point = q[3]
    assert point.cap(0.5).item() == 1
    assert point.cap_angle(0.999).item() == 0
    assert q[0].cap(0.5).item() == pytest.approx(0, abs=1e-12)  # half of the sphere


@pytest.mark.parametrize("dim", [2, 3, 10, 100])
def test_gradcheck(dim):
    kappa = torch.tensor([0.5, 4.0, 60.0], dtype=torch.float64)
    angle = vmf(dim, kappa).cap_angle(torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)).requires_grad_()
    kappa.requires_grad_()
    assert gradcheck(lambda k, x: vmf(dim, k).cap_angle_probability(x), (kappa, angle), rtol=1e-4, atol=1e-7)
    cosine = angle.detach().cos().requires_grad_()
    assert gradcheck(lambda k, t: vmf(dim, k).cap_probability(t), (kappa, cosine), rtol=1e-4, atol=1e-7)


def test_float32_follows_its_dtype_and_broadcasts():
    q = vmf(10, torch.tensor([[1.0], [20.0]]))
    assert q.cap(torch.tensor([0.1, 0.5, 0.9])).shape == (2, 3)
    assert q.cap(0.5).dtype == torch.float32
    assert q.cap_probability(0.3).shape == (2, 1)
