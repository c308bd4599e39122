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

from aleator.foundation import matmul_precision, require

_LARGEST = 2048  # rows or columns: beyond, a basis costs more than it brings, and that side keeps the standard one
_SIDES = ("left", "right")

State = dict[str, Any]


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
        newest = max((state["cohort"] for state in self.state.values()), default=-1)
        with matmul_precision("highest"):  # or the rounding of steep directions would cover the flat ones
            for group in self.param_groups:
                cohorts = defaultdict(list)  # what began together has made as many steps
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    if state:
                        cohorts[state["cohort"]].append((parameter, state))
                    else:
                        _begin(parameter, state, group["capturable"], newest + 1)
                for cohort in cohorts.values():
                    _update([parameter for parameter, _ in cohort], [state for _, state in cohort], group)
                    due = due or (not group["capturable"] and int(cohort[0][1]["step"]) % group["every"] == 0)
        if due:
            self.turn()
        return loss

    @torch.no_grad()
    @matmul_precision("highest")
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


def _begin(parameter: Tensor, state: State, capturable: bool, cohort: int) -> None:
    """The first gradient chooses the bases; a step in a basis of its own making would be as long in every direction."""
    state["cohort"] = cohort
    state["step"] = torch.zeros((), device=parameter.device if capturable else "cpu")
    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    if parameter.dim() != 2:
        return
    assert parameter.grad is not None
    for side, size in zip(_SIDES, parameter.shape, strict=True):
        if 1 < size <= _LARGEST:
            state[side] = _factor(parameter.grad, side)
            state[f"{side}_basis"] = torch.linalg.eigh(state[side]).eigenvectors.flip(-1).contiguous()


def _factor(gradient: Tensor, side: str) -> Tensor:
    return gradient @ gradient.mT if side == "left" else gradient.mT @ gradient


def _update(parameters: list[Tensor], states: list[State], group: dict[str, Any]) -> None:
    """One step of parameters that have made as many. On a GPU a small kernel costs as much as a large one, so matrices
    of one shape are stacked, and what is done to each entry is done to all parameters at once."""
    first, second = group["betas"]
    gradients = [parameter.grad for parameter in parameters]
    steps, means, squares = ([state[name] for state in states] for name in ("step", "mean", "square"))
    alike = defaultdict(list)
    for i, parameter in enumerate(parameters):
        if parameter.dim() == 2:
            alike[parameter.shape].append(i)
    stacks = [(of, _Bases([states[i] for i in of])) for of in alike.values()]
    # Shampoo's factors, and the gradients in their bases.
    turned: list[Any] = list(gradients)
    for of, bases in stacks:
        stacked = torch.stack([turned[i] for i in of])
        for side in bases.sides:
            torch._foreach_lerp_([states[i][side] for i in of], list(_factor(stacked, side)), 1 - second)
        for i, one in zip(of, bases.into(stacked), strict=True):
            turned[i] = one
    # Adam there.
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(means, turned, 1 - first)
    torch._foreach_lerp_(squares, torch._foreach_mul(turned, turned), 1 - second)
    scale = torch._foreach_div(squares, 1 - second ** steps[0])
    torch._foreach_sqrt_(scale)
    torch._foreach_add_(scale, group["eps"])
    change = list(torch._foreach_div(means, scale))
    torch._foreach_mul_(change, group["lr"] / (1 - first ** steps[0]))
    # And back.
    for of, bases in stacks:
        for i, one in zip(of, bases.out_of(torch.stack([change[i] for i in of])), strict=True):
            change[i] = one
    if group["weight_decay"]:
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
    torch._foreach_sub_(parameters, change)


class _Bases:
    """The bases of matrices of one shape, which therefore have the same sides."""

    def __init__(self, states: list[State]):
        self.sides = [side for side in _SIDES if side in states[0]]
        self.basis = {side: torch.stack([state[f"{side}_basis"] for state in states]) for side in self.sides}

    def into(self, matrices: Tensor) -> Tensor:
        if "left" in self.basis:
            matrices = self.basis["left"].mT @ matrices
        return matrices @ self.basis["right"] if "right" in self.basis else matrices

    def out_of(self, matrices: Tensor) -> Tensor:
        if "left" in self.basis:
            matrices = self.basis["left"] @ matrices
        return matrices @ self.basis["right"].mT if "right" in self.basis else matrices
