"""The angle between a sample and the mode: both tails of its distribution, and the table that samples it."""

import math

import pytest
import torch
from scipy import special

from aleator import VonMisesFisher
from aleator.special.angles import angle_masses, angle_quantile, angle_table


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


@pytest.mark.parametrize("dim", [2, 3, 10, 300])
def test_quantiles_have_their_probabilities_however_long_each_one_takes(dim):
    """Easy ones and far tails in one call: each tail has the probability that was asked for, as far as angles round."""
    tail = torch.tensor([1e-12, 1e-6, 0.01, 0.3, 0.5], dtype=torch.float64)
    kappa = torch.tensor([0.0, 1e-3, 1.0, 30.0, 1e4, 1e8], dtype=torch.float64)[:, None].expand(6, 5)
    for below, above in ((tail, 1 - tail), (1 - tail, tail)):
        angle = angle_quantile(dim, kappa, below.expand(6, 5), above.expand(6, 5))
        assert angle.shape == (6, 5)
        *masses, density = angle_masses(dim, kappa, angle)
        error = (masses[0] if below[0] < above[0] else masses[1]) - tail
        assert (error.abs() <= 1e-9 * tail + 1e-15 * math.pi * density).all()


def test_a_quantile_without_a_number_is_none_and_stops_no_other():
    kappa, p = torch.tensor([math.nan, 5.0], dtype=torch.float64), torch.tensor([0.9, 0.9], dtype=torch.float64)
    lost, kept = angle_quantile(4, kappa, p, 1 - p)
    assert lost.isnan()
    torch.testing.assert_close(kept, angle_quantile(4, kappa[1:], p[1:], 1 - p[1:])[0], rtol=0, atol=0)
