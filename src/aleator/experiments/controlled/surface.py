"""A mean loss as a function of a few numbers: its gradient, its Hessian, and Newton's step towards its minimum."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from aleator.foundation import derived_seed

_STEP = 1e-2  # of a central difference of gradients, in the units of theta
_LONGEST = 0.1  # step along an axis: a quadratic picture of the loss reaches no further


def downhill(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Newton's step with the absolute eigenvalues, no longer than 0.1 along any axis."""
    values, axes = torch.linalg.eigh(hessian)
    along = -(axes.T @ gradient) / values.abs().clamp_min(1e-4 * values.abs().max())
    return axes @ along.clamp(-_LONGEST, _LONGEST)


class Surface:
    """The mean loss over a fixed row of batches, as a function of a few numbers theta.

    Args:
        objective: from a batch to its loss.
        place: from theta to the tensors of the objective that it decides, by name.
        batches: called as batches(step, generator); `seed` decides what it draws.
    """

    def __init__(
        self,
        objective: nn.Module,
        place: Callable[[Tensor], dict[str, Tensor]],
        batches: Callable[[int, Generator], Any],
        seed: int,
    ):
        self.objective, self.place, self.batches, self.seed = objective, place, batches, seed

    def gradient(self, theta: Tensor, count: int) -> Tensor:
        """Of the mean loss over the first `count` batches."""
        total = torch.zeros_like(theta)
        for step in range(count):
            generator = torch.Generator(theta.device).manual_seed(derived_seed(self.seed, step))
            leaf = theta.clone().requires_grad_()
            value = functional_call(self.objective, self.place(leaf), (self.batches(step, generator),))
            total += torch.autograd.grad(value, leaf)[0]
        return total / count

    def hessian(self, theta: Tensor, count: int) -> Tensor:
        """By central differences of gradients over the same batches."""
        rows = []
        for step in _STEP * torch.eye(len(theta), dtype=theta.dtype, device=theta.device):
            ahead, behind = (self.gradient(theta + sign * step, count) for sign in (1, -1))
            rows.append((ahead - behind) / (2 * _STEP))
        H = torch.stack(rows)
        return (H + H.T) / 2
