"""How samples move with the weights: the continuity equation on the circle, solved by quadrature."""

import math

import torch

from aleator import VMFMixture, VonMisesFisher
from aleator.posteriors.mixtures import move_with_weights, weight_velocities
from tests.posteriors.cases import random_directions
from tests.posteriors.mixture_cases import mixture


def test_the_flow_carries_the_change_of_the_density():
    """On the circle: d(q v)/d angle = -(vMF_k - 1/(2 pi)), by finite differences."""
    q = mixture(modes=3, dim=2, low=2.0, high=10.0).detach()
    angle = torch.arange(4000, dtype=torch.float64) * (2 * math.pi / 4000)
    z = torch.stack([angle.cos(), angle.sin()], 1)
    along = torch.stack([-angle.sin(), angle.cos()], 1)
    flow = (weight_velocities(q, z) * along.unsqueeze(1)).sum(-1) * q.log_prob(z).exp().unsqueeze(-1)  # (N, K)
    slope = (flow.roll(-1, 0) - flow.roll(1, 0)) / (2 * 2 * math.pi / 4000)
    source = q.components.log_prob(z.unsqueeze(1)).exp() - 1 / (2 * math.pi)
    torch.testing.assert_close(slope, -source, atol=1e-3, rtol=1e-3)


def test_samples_keep_their_place_and_move_along_the_sphere():
    q = mixture(4, modes=2, dim=6)
    z = random_directions(7, 4, 6, seed=1)
    moved = move_with_weights(q, z)
    assert torch.equal(moved, z)
    assert moved.requires_grad
    velocity = weight_velocities(q, z)
    assert velocity.shape == (7, 4, 2, 6)
    assert (velocity * z.unsqueeze(-2)).sum(-1).abs().max() <= 1e-9 * velocity.abs().max()


def test_at_the_direction_of_a_component_and_its_antipode():
    parts = VonMisesFisher(torch.eye(3, dtype=torch.float64)[:2], 5.0)
    q = VMFMixture(torch.zeros(2, dtype=torch.float64), parts)
    for z in (parts.mu, -parts.mu):
        assert torch.isfinite(weight_velocities(q, z)).all()
