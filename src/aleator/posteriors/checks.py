"""Checks of the parameters of posteriors and of directions. Errors name the argument and the way out."""

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from aleator.foundation import reject, require, require_float, require_not_compiled

# How far a length may be from 1. A normalised float32 vector of a few thousand entries stays well within it.
UNIT_TOLERANCE = 1e-3


class _UnitVector(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.norm(dim=-1) - 1).abs() <= UNIT_TOLERANCE


unit_vector = _UnitVector()


def refuse_transforms(*tensors: Tensor | float) -> None:
    """Raise inside torch.func's transforms: special functions are chosen by the values of kappa, which they hide."""
    require_not_compiled("mu")
    for tensor in tensors:
        if isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            problem = "posteriors do not work inside torch.func (vmap, grad, jacrev, jacfwd)"
            way_out = "pass a batch in place of vmap, and use torch.autograd for derivatives"
            reject("mu", "a tensor of a transform", problem, way_out)


def require_parameters(mu: Tensor, kappa: Tensor) -> None:
    """Raise unless mu and kappa are the parameters of posteriors."""
    shape = tuple(kappa.shape)
    require(mu.dim() >= 1 and mu.shape[-1] >= 2, "mu", tuple(mu.shape), "a sphere needs D >= 2", "pass shape (..., D)")
    require(kappa.dtype == mu.dtype, "kappa", kappa.dtype, f"mu has dtype {mu.dtype}", "cast one to the other")
    require(kappa.device == mu.device, "kappa", kappa.device, f"mu is on {mu.device}", "move one to the other")
    # kappa (N, 1) would broadcast with mu (N, D) to N x N posteriors, which nobody means.
    trailing = f"has a trailing 1 that mu of shape {tuple(mu.shape)} has not"
    require(mu.dim() == 1 or shape != (*mu.shape[:-1], 1), "kappa", shape, trailing, "pass kappa.squeeze(-1)")
    try:
        if mu.shape[:-1] != shape:  # broadcast_shapes loads sympy, which takes half a second
            torch.broadcast_shapes(mu.shape[:-1], shape)
    except RuntimeError:
        problem = f"does not broadcast with mu of shape {tuple(mu.shape)}"
        require(False, "kappa", shape, problem, "pass kappa in the shape of mu without its last dimension")
    require_unit("mu", mu, mu.shape[-1])
    require(kappa >= 0, "kappa", kappa, "negative or NaN", "pass a concentration in [0, inf], for example softplus(x)")


def require_unit(argument: str, value: Tensor, dim: int) -> None:
    """Raise unless `value` is float32 or float64 unit vectors, shape (..., dim)."""
    require_float(argument, value)
    shape = tuple(value.shape)
    problem = f"expected a last dimension of {dim}"
    require(value.dim() >= 1 and shape[-1] == dim, argument, shape, problem, "pass one vector per row")
    length = value.detach().norm(dim=-1)
    unit = (length - 1).abs() <= UNIT_TOLERANCE
    way_out = f"pass torch.nn.functional.normalize({argument}, dim=-1)"
    require(unit, argument, length, "the length of a vector is not 1", way_out)
