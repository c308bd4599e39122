"""The mean loss as a function of a few numbers: its gradient, its Hessian, and a Newton step to its minimum."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from aleator.foundation import derived_seed

_STEP = 1e-2  # of the central differences of gradients, in units of theta
_LONGEST = 0.1  # Newton step along an axis; farther away the quadratic approximation of the loss is poor


def downhill(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Newton step (P,) from Hessian (P, P) and gradient (P,), at most 0.1 along each eigenvector.

    Absolute eigenvalues are used, so that the step goes downhill even at a saddle point.
    """
    values, axes = torch.linalg.eigh(hessian)
    along = -(axes.T @ gradient) / values.abs().clamp_min(1e-4 * values.abs().max())
    return axes @ along.clamp(-_LONGEST, _LONGEST)


class Surface:
    """The mean loss over a fixed sequence of batches, as a function of theta, shape (P,).

    Args:
        objective: Module from a batch to its loss.
        place: Theta -> the tensors of the objective that depend on it, by name.
        batches: Called as batches(step, generator).
        seed: Decides what the generators draw.
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
        """Gradient (P,) of the mean loss over the first `count` batches."""
        total = torch.zeros_like(theta)
        for step in range(count):
            generator = torch.Generator(theta.device).manual_seed(derived_seed(self.seed, step))
            leaf = theta.clone().requires_grad_()
            value = functional_call(self.objective, self.place(leaf), (self.batches(step, generator),))
            total += torch.autograd.grad(value, leaf)[0]
        return total / count

    def hessian(self, theta: Tensor, count: int) -> Tensor:
        """Hessian (P, P) of the same mean, by central differences of gradients."""
        rows = []
        for step in _STEP * torch.eye(len(theta), dtype=theta.dtype, device=theta.device):
            ahead, behind = (self.gradient(theta + sign * step, count) for sign in (1, -1))
            rows.append((ahead - behind) / (2 * _STEP))
        H = torch.stack(rows)
        return (H + H.T) / 2
