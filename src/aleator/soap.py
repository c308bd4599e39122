"""SOAP: Adam, run in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv:2409.11321).

A contrastive loss with known posteriors is ill-conditioned: spread of mu against height of kappa is nearly flat
(docs/understanding.md), and Adam, which scales each weight by itself, drifts along such directions slowly. For a weight
matrix with gradient G, the means of G G' and G' G say in which rows and columns of weights the loss is steep or flat
together; in their eigenbases the gradient's entries are nearly uncorrelated, and Adam's scaling of each entry is close
to the scaling that is due. What is not a matrix is left to plain Adam.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .checks import require
from .precision import matrix_products

_LARGEST = 2048  # rows or columns: beyond, a basis costs more than it brings, and that side keeps the standard one
_SIDES = ("left", "right")


class SOAP(torch.optim.Optimizer):
    """Adam in a basis that turns with the gradients' second moments.

    Args:
        params, lr, eps, weight_decay: as of `torch.optim.AdamW`.
        betas: decay of the gradient's mean, and of its squares and the factors.
        every: steps between turns of the bases to the factors' eigenvectors. The turn is one orthogonal iteration.
        capturable: nothing in `step` depends on the host, so that a CUDA graph can hold it. The caller then calls
            `turn` between steps; otherwise `step` does so itself.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        every: int = 10,
        capturable: bool = False,
    ):
        require(every >= 1, "every", every, "the bases would never turn", "pass 1 or more; 10 is usual")
        for beta in betas:
            require(0 <= beta < 1, "betas", betas, "not both inside [0, 1)", "try (0.95, 0.95)")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "every": every}
        super().__init__(params, options | {"capturable": capturable})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due = False
        with matrix_products("highest"):  # or the rounding of steep directions would cover the flat ones
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    if not state:
                        _begin(parameter, state, group["capturable"])
                        continue
                    _update(parameter, state, group)
                    due = due or (not group["capturable"] and int(state["step"]) % group["every"] == 0)
        if due:
            self.turn()
        return loss

    @torch.no_grad()
    @matrix_products("highest")
    def turn(self) -> None:
        """Bring the bases closer to the factors' eigenvectors, and what Adam remembers along with them."""
        by_size = defaultdict(list)  # one call for all matrices of a size: on a GPU, each call costs more than its work
        for state in self.state.values():
            for side in _SIDES:
                if f"{side}_basis" in state:
                    by_size[len(state[f"{side}_basis"])].append((state, side))
        for found in by_size.values():
            factors = torch.stack([state[side] for state, side in found])
            old = torch.stack([state[f"{side}_basis"] for state, side in found])
            # The largest eigenvalue first: an orthogonal iteration converges column by column, in that order.
            order = (old * (factors @ old)).sum(-2).argsort(-1, descending=True)
            old = old.take_along_dim(order[:, None, :], -1)
            new = torch.linalg.qr(factors @ old).Q
            change = new.mT @ old
            for (state, side), basis, along, moved in zip(found, new, order, change, strict=True):
                axis = _SIDES.index(side)
                state[f"{side}_basis"].copy_(basis)
                state["square"].copy_(state["square"].index_select(axis, along))
                mean = state["mean"].index_select(axis, along)
                state["mean"].copy_(moved @ mean if axis == 0 else mean @ moved.mT)


def _begin(parameter: Tensor, state: dict[str, Any], capturable: bool) -> None:
    """The first gradient chooses the bases; a step in a basis of its own making would be as long in every direction."""
    state["step"] = torch.zeros((), device=parameter.device if capturable else "cpu")
    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    if parameter.dim() != 2:
        return
    for side, size in zip(_SIDES, parameter.shape, strict=True):
        if 1 < size <= _LARGEST:
            state[side] = _factor(parameter, side)
            state[f"{side}_basis"] = torch.linalg.eigh(state[side]).eigenvectors.flip(-1).contiguous()


def _factor(parameter: Tensor, side: str) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient @ gradient.mT if side == "left" else gradient.mT @ gradient


def _update(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    gradient = parameter.grad
    assert gradient is not None
    first, second = group["betas"]
    left, right = state.get("left_basis"), state.get("right_basis")
    state["step"] += 1
    # Shampoo's factors.
    for side in _SIDES:
        if side in state:
            state[side].lerp_(_factor(parameter, side), 1 - second)
    # Adam in their basis.
    turned = gradient if left is None else left.mT @ gradient
    turned = turned if right is None else turned @ right
    state["mean"].lerp_(turned, 1 - first)
    state["square"].lerp_(turned.square(), 1 - second)
    corrected = (state["square"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
    change = state["mean"] / (1 - first ** state["step"]) / corrected
    change = change if left is None else left @ change
    change = change if right is None else change @ right.mT
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.sub_(group["lr"] * change)
