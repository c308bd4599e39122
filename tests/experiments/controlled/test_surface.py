"""A mean loss over a few numbers: against a quadratic whose minimum and Hessian are known."""

import torch
from torch import nn

from aleator.experiments.controlled.surface import Surface, downhill

H = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)


class Bowl(nn.Module):
    """(theta - x)' H (theta - x)/2, averaged over a batch of x."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        offset = self.theta - x
        return torch.einsum("ni,ij,nj->n", offset, H, offset).mean() / 2


def batches(step, generator):
    return 0.02 * torch.randn(50, 2, generator=generator, dtype=torch.float64) + 0.04


def test_newton_finds_the_minimum_of_a_quadratic_at_once():
    surface = Surface(Bowl(), lambda theta: {"theta": theta}, batches, seed=3)
    start = torch.zeros(2, dtype=torch.float64)
    hessian = surface.hessian(start, 4)
    torch.testing.assert_close(hessian, H)
    found = start + downhill(hessian, surface.gradient(start, 4))
    torch.testing.assert_close(surface.gradient(found, 4), torch.zeros_like(found), rtol=0, atol=1e-9)
    assert 0.03 < found.mean() < 0.05
    assert not torch.equal(surface.gradient(start, 4), surface.gradient(start, 5)), "every batch counts"


def test_a_step_goes_down_even_on_a_saddle_and_never_far():
    saddle = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    gradient = torch.tensor([0.01, 0.01], dtype=torch.float64)
    torch.testing.assert_close(downhill(saddle, gradient), -gradient)
    assert downhill(saddle, 1e6 * gradient).abs().max() <= 0.1
