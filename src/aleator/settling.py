r"""The last step of training: Newton's method in the few directions in which a contrastive loss is nearly flat.

Near a pair, log r falls with the square of its angle over the variance of both posteriors and the kernel together. Draw
all directions a little closer to each other and make all posteriors a little surer, and every such ratio stays as it
was: only the curvature of the sphere tells. So one direction, spread of mu against height of kappa, is nearly flat, and
gradient descent, which moves mu and kappa by small steps of their own, drifts along it slowly (docs/theory.md).

The output layers have parameters for it: the bias of mu, the scale and the shift of kappa, D + 2 numbers theta. With
everything else fixed, the loss over many batches is a function of theta with a gradient g and a Hessian H, and
theta <- theta - |H|^{-1} g finds its minimum in a few steps; |H| has the absolute eigenvalues of H, so that a step goes
down even where few batches make H indefinite. H needs few batches, g many: its noise is what is left, and for a
cross-entropy over n anchors, where H is the Fisher information, theta's standard errors are the root of the diagonal of
H^{-1}/n.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from .batches import derived_seed
from .checks import require
from .encoders import Encoder
from .objective import Objective

_STEP = 1e-2  # of a central difference of gradients, in the units of theta
_HESSIAN_BATCHES = 8
_LONGEST = 0.1  # step along an axis: a quadratic picture of the loss reaches no further


@dataclass(frozen=True)
class Settled:
    """What `settle` did: the change of theta in every round, (rounds, D + 2), and the Hessian, (D + 2, D + 2)."""

    change: Tensor
    hessian: Tensor


def settle(
    encoder: Encoder,
    loss: nn.Module,
    batches: Callable[[int, Generator], Any],
    count: int,
    *,
    rounds: int = 3,
    seed: int = 0,
) -> Settled:
    """Move mu's bias and kappa's scale and shift, in place, to where the loss over `count` fresh batches is least.

    `batches` is a source as for `fit`, called as batches(step, generator). All rounds look at the same batches.
    """
    require(encoder.kappa_head is not None, "encoder", encoder.kappa, "has no kappa head", 'build it with kappa="head"')
    require(count >= 1, "count", count, "no batch to look at", "pass for example 100")
    encoder.eval()
    outputs = _Outputs(encoder)
    surface = Surface(Objective(encoder, loss, "joint", "given"), outputs.at, batches, seed)
    theta, changes = torch.zeros_like(outputs.unit), []
    for _ in range(rounds):
        hessian = surface.hessian(theta, min(count, _HESSIAN_BATCHES))
        change = downhill(hessian, surface.gradient(theta, count))
        theta = theta + change
        changes.append(change.cpu())
    outputs.keep(theta)
    return Settled(torch.stack(changes), hessian.cpu())


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


class _Outputs:
    """Theta of an encoder: mu's bias in units of the embedding's length, kappa's scale and shift."""

    def __init__(self, encoder: Encoder):
        assert encoder.kappa_head is not None
        head = encoder.kappa_head
        self.parts = {
            "encoder.mu_head.bias": encoder.mu_head.bias,
            "encoder.kappa_head.scale": head.scale,
            "encoder.kappa_head.shift": head.shift,
        }
        with torch.no_grad():
            length = encoder.mu_head.weight.norm() / encoder.dim**0.5  # for features of size one, about
        self.unit = torch.cat([length.expand(encoder.dim), head.scale[None], head.shift.new_ones(1)]).double()

    def at(self, theta: Tensor) -> dict[str, Tensor]:
        bias, scale, shift = self.parts.values()
        change = (self.unit * theta).to(bias.dtype)
        return dict(zip(self.parts, (bias + change[:-2], scale + change[-2], shift + change[-1]), strict=True))

    @torch.no_grad()
    def keep(self, theta: Tensor) -> None:
        for name, value in self.at(theta).items():
            self.parts[name].copy_(value)
