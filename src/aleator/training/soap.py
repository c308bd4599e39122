"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv:2409.11321).

A contrastive loss is ill-conditioned: it hardly changes if mu spreads while kappa grows
(docs/understanding-learning.md). Adam scales each weight separately, and moves slowly along such a direction.

For a weight matrix with gradient G, the running means of G G' and G' G (Shampoo's factors) tell in which combinations
of rows and columns the loss is steep or flat. In their eigenbases the entries of the gradient are nearly uncorrelated,
so scaling each entry separately is nearly right there. SOAP runs Adam in these bases. Parameters that are not matrices
are left to plain Adam.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import matmul_precision, require, require_at_least

_LARGEST = 2048  # rows or columns; a larger side has no basis, which would cost more than it gains
_SIDES = ("left", "right")

State = dict[str, Any]


class SOAP(torch.optim.Optimizer):
    """SOAP (Vyas et al. 2024): Adam in a basis that follows the second moments of the gradients.

    It converges in fewer steps than Adam where a small network of dense layers is to be fitted closely. The first step
    chooses the bases and changes no weight.

    Args:
        params: Parameters, or groups of them, as for `torch.optim.AdamW`.
        lr: Learning rate. A good one is larger than Adam's, and falls to zero.
        betas: Decay rates of the mean gradient, and of the squared gradient and the factors.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay, as in AdamW.
        every: Number of steps between updates of the bases. An update is one orthogonal iteration.
        capturable: Whether `step` runs in a CUDA graph. The caller must then call `turn` after every `every` steps;
            otherwise `step` calls it.

    Raises:
        ValueError: If `every` is less than 1, or if a beta is outside [0, 1).

    Examples:
        >>> import torch
        >>> from aleator.training import SOAP
        >>> weight = torch.nn.Parameter(torch.ones(2, 2))
        >>> optimiser = SOAP([weight], lr=0.1)
        >>> for _ in range(50):
        ...     optimiser.zero_grad()
        ...     loss = weight.square().sum()
        ...     loss.backward()
        ...     _ = optimiser.step()
        >>> bool(loss < 1)
        True
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
        require_at_least("every", every, 1, "pass 1 or more; 10 is usual")
        for beta in betas:
            require(0 <= beta < 1, "betas", betas, "not both inside [0, 1)", "try (0.95, 0.95)")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "every": every}
        super().__init__(params, options | {"capturable": capturable})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient.

        Args:
            closure: Computes the loss and its gradients anew. Default: the gradients are there already.

        Returns:
            What `closure` returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due = False
        newest = max((state["cohort"] for state in self.state.values()), default=-1)
        with matmul_precision("highest"):  # in TF32, rounding errors of steep directions would swamp the flat ones
            for group in self.param_groups:
                cohorts = defaultdict(list)  # parameters that had their first gradient together share a step count
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
        """Move the bases closer to the eigenvectors of the factors, and Adam's moments with them."""
        by_size = defaultdict(list)  # one call for all bases of a size: on a GPU, a call costs more than its work
        for state in self.state.values():
            for side in _SIDES:
                if f"{side}_basis" in state:
                    by_size[len(state[f"{side}_basis"])].append((state, side))
        for bases in by_size.values():
            factors = torch.stack([state[side] for state, side in bases])
            old = torch.stack([state[f"{side}_basis"] for state, side in bases])
            # The largest eigenvalue first: an orthogonal iteration converges column by column, in that order.
            order = (old * (factors @ old)).sum(-2).argsort(-1, descending=True)
            old = old.take_along_dim(order[:, None, :], -1)
            new = torch.linalg.qr(factors @ old).Q
            change = new.mT @ old
            for (state, side), basis, along, moved in zip(bases, new, order, change, strict=True):
                axis = _SIDES.index(side)
                state[f"{side}_basis"].copy_(basis)
                state["square"].copy_(state["square"].index_select(axis, along))
                mean = state["mean"].index_select(axis, along)
                state["mean"].copy_(moved @ mean if axis == 0 else mean @ moved.mT)


def _begin(parameter: Tensor, state: State, capturable: bool, cohort: int) -> None:
    """Create the state of a parameter, with bases from its first gradient.

    The first gradient makes no step: in its own basis it would be scaled to the same length in every direction.
    """
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
    """Shampoo's factor of a gradient (..., R, C): (..., R, R) on the left, (..., C, C) on the right."""
    return gradient @ gradient.mT if side == "left" else gradient.mT @ gradient


def _update(parameters: list[Tensor], states: list[State], group: dict[str, Any]) -> None:
    """One step of parameters with the same step count.

    On a GPU a small kernel costs as much as a large one. Matrices of one shape are therefore stacked, and elementwise
    operations take all parameters at once.
    """
    first, second = group["betas"]
    gradients = [parameter.grad for parameter in parameters]
    steps, means, squares = ([state[name] for state in states] for name in ("step", "mean", "square"))
    by_shape = defaultdict(list)
    for i, parameter in enumerate(parameters):
        if parameter.dim() == 2:
            by_shape[parameter.shape].append(i)
    stacks = [(indices, _Bases([states[i] for i in indices])) for indices in by_shape.values()]
    # Update Shampoo's factors, and turn the gradients into their bases.
    turned: list[Any] = list(gradients)
    for indices, bases in stacks:
        stacked = torch.stack([turned[i] for i in indices])
        for side in bases.sides:
            torch._foreach_lerp_([states[i][side] for i in indices], list(_factor(stacked, side)), 1 - second)
        for i, gradient in zip(indices, bases.into(stacked), strict=True):
            turned[i] = gradient
    # Adam in these bases.
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(means, turned, 1 - first)
    torch._foreach_lerp_(squares, torch._foreach_mul(turned, turned), 1 - second)
    scale = torch._foreach_div(squares, 1 - second ** steps[0])
    torch._foreach_sqrt_(scale)
    torch._foreach_add_(scale, group["eps"])
    change = list(torch._foreach_div(means, scale))
    torch._foreach_mul_(change, group["lr"] / (1 - first ** steps[0]))
    # Turn the changes back.
    for indices, bases in stacks:
        for i, turned_back in zip(indices, bases.out_of(torch.stack([change[i] for i in indices])), strict=True):
            change[i] = turned_back
    if group["weight_decay"]:
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
    torch._foreach_sub_(parameters, change)


class _Bases:
    """The bases of N matrices of one shape (R, C), stacked."""

    def __init__(self, states: list[State]):
        self.sides = [side for side in _SIDES if side in states[0]]
        self.basis = {side: torch.stack([state[f"{side}_basis"] for state in states]) for side in self.sides}

    def into(self, matrices: Tensor) -> Tensor:
        """Matrices (N, R, C) in their bases."""
        if "left" in self.basis:
            matrices = self.basis["left"].mT @ matrices
        return matrices @ self.basis["right"] if "right" in self.basis else matrices

    def out_of(self, matrices: Tensor) -> Tensor:
        """The inverse of `into`."""
        if "left" in self.basis:
            matrices = self.basis["left"] @ matrices
        return matrices @ self.basis["right"].mT if "right" in self.basis else matrices
