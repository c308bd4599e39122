"""Directions and kappas from the output layers, in plain torch; tests/fused/test_outputs.py has the kernels."""

import math

import torch

from aleator.encoders.outputs import LONGEST, bounded_kappa, directions

AXIS = torch.tensor([0.0, 1.0])


def test_directions_are_unit_vectors_and_lengths_are_kept():
    mu, norm = directions(torch.tensor([[3.0, 4.0], [0.0, 0.0], [10 * LONGEST, 0.0]]), AXIS)
    torch.testing.assert_close(mu, torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(norm, torch.tensor([5.0, 0.0, LONGEST]))


def test_a_kappa_stays_between_its_bounds():
    low, high = 1e-2, 1e4
    middle, half_width = (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2
    u = torch.tensor([-1e12, 0.0, 1e12], dtype=torch.float64)
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    kappa = bounded_kappa(u, one, zero, middle, half_width)
    torch.testing.assert_close(kappa, torch.tensor([low, math.sqrt(low * high), high], dtype=torch.float64))


def test_the_gradient_of_kappa():
    u = torch.linspace(-5, 5, 11, dtype=torch.float64, requires_grad=True)
    scale, shift = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda u: bounded_kappa(u, scale, shift, 2.0, 3.0), u)
