"""The angle between a sample and the mode: both tails of its distribution, and the table that samples it."""

import math

import pytest
import torch
from scipy import special

from aleator import VonMisesFisher
from aleator.special.angles import angle_masses, angle_table


def vmf(dim: int, kappa: torch.Tensor) -> VonMisesFisher:
    mu = torch.zeros(dim, dtype=kappa.dtype)
    mu[0] = 1
    return VonMisesFisher(mu, kappa)


def test_tails_keep_their_relative_accuracy():
    """Both tails are integrated: the probability beyond a far angle is right although 1 - p rounds to 0."""
    angle = torch.tensor([0.8, 1.1], dtype=torch.float64)
    _, above, _ = angle_masses(3, torch.full_like(angle, 60.0), angle)
    exact = torch.expm1(60 * (angle.cos() + 1)) * math.exp(-120) / -math.expm1(-120)
    torch.testing.assert_close(above, exact, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 4, 10, 64, 1024])
def test_the_table_samples_the_right_law(dim):
    """Send chi quantiles through the table: the angle must have the probability that the length has."""
    p = torch.tensor([1e-6, 1e-3, 0.02, 0.3, 0.5, 0.8, 0.97, 0.999], dtype=torch.float64)
    sigma = torch.as_tensor(2 * special.gammaincinv((dim - 1) / 2, p.numpy())).sqrt()[:, None]
    kappa = torch.cat([torch.tensor([0.0]), torch.logspace(-2, 6, 25)]).double()
    sigma = sigma.expand(-1, len(kappa))
    table = angle_table(dim, torch.float64, torch.device("cpu"))
    scale, _ = table.angle(sigma, *table.rows(kappa, slopes=False))
    mass = vmf(dim, kappa).cap_angle_probability(scale * sigma)
    assert (mass - p[:, None]).abs().max() < (1e-4 if dim == 2 else 1e-6)
