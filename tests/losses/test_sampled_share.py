"""The share with drawn cosines; tests/fused/test_sampled_share.py has the kernel of its gradients."""

import pytest
import torch
from torch.nn import functional as F

from aleator import VMFKernel, VonMisesFisher
from aleator.losses.sampled_cosines import sampled_cosines
from aleator.losses.sampled_share import sampled_log_softmax_share
from aleator.losses.softmax_share import candidate_log_softmax_share

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_share_of_the_drawn_cosines(device):
    """With the same seed, values and gradients are those of the two steps in turn."""
    torch.manual_seed(0)
    leaves = [
        F.normalize(torch.randn(40, 5, 10, device=device), dim=-1),
        F.normalize(torch.randn(5, 8, 10, device=device), dim=-1),
        torch.empty(5, 8, device=device).uniform_(5, 50),
    ]
    z, mu, kappa = (leaf.requires_grad_() for leaf in leaves)
    candidates, kernel = VonMisesFisher(mu, kappa, validate_args=False), VMFKernel(20.0)

    def seeded():
        return torch.Generator(device).manual_seed(7)

    ours = sampled_log_softmax_share(z, candidates, kernel, seeded())
    in_turn = candidate_log_softmax_share(sampled_cosines(z, candidates, seeded()), 10, kernel)
    torch.testing.assert_close(ours, in_turn)
    weights = torch.randn_like(ours)
    for part, expected in zip(
        torch.autograd.grad(ours, (z, mu, kappa), weights),
        torch.autograd.grad(in_turn, (z, mu, kappa), weights),
        strict=True,
    ):
        torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-4)
