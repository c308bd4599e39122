"""Noisy directions have the noise and the spread that they say."""

import math

import pytest
import torch

from aleator import VonMisesFisher
from aleator.data.noisy_direction import NoisyDirection
from aleator.evaluation import spread


@pytest.mark.parametrize(("family", "deviation"), [("gaussian", 1 / math.sqrt(400)), ("laplace", math.sqrt(2) / 400)])
def test_noisy_directions_have_the_noise_they_say(family, deviation):
    """For little noise, the part of z orthogonal to mu is the noise itself."""
    mu = torch.eye(5)[:1]
    z = NoisyDirection(mu, torch.tensor([400.0]), family).sample((40_000,))
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(40_000, 1))
    assert z[..., 1:].std().item() == pytest.approx(deviation, rel=0.02)
    kurtosis = ((z[..., 1:] / deviation) ** 4).mean().item()
    assert kurtosis == pytest.approx(3.0 if family == "gaussian" else 6.0, rel=0.1)


def test_the_spread_of_noisy_directions():
    """The projected normal has E mu.z in closed form; in D = 3, kappa = 9 scipy's hyp1f1 gives it."""
    from scipy.special import gamma, hyp1f1

    kappa = torch.tensor([2.0, 9.0, 30.0])
    q = NoisyDirection(torch.eye(3), kappa, "gaussian")
    k = kappa.numpy()
    exact = 1 - (k / 2) ** 0.5 * gamma(2) / gamma(2.5) * hyp1f1(0.5, 2.5, -k / 2)
    value = q.spread(20_000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(value, torch.as_tensor(exact).float(), rtol=0.03, atol=0)
    # A vMF of the same kappa is close to the normalised Gaussian where both are narrow.
    narrow = NoisyDirection(torch.eye(3)[0], torch.tensor(300.0), "gaussian").spread(20_000)
    assert narrow.item() == pytest.approx(spread(VonMisesFisher(torch.eye(3)[0], 300.0)).item(), rel=0.03)
