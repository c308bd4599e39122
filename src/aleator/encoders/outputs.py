"""What follows the output layers of an encoder: an embedding becomes a direction, a number becomes a kappa."""

import math
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import first_derivatives_only
from aleator.fused import fused_for_layers, fused_kernels

SHORTEST, LONGEST = 1e-12, 1e18  # beyond these lengths the squares of float32 coordinates under- or overflow
_MOST_DIMENSIONS = 1024  # the fused version holds whole vectors


def directions(embeddings: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (..., D) along the embeddings (..., D), and the lengths (...) of the embeddings.

    An embedding that is shorter than `SHORTEST` gets the direction of `axis` (D,). Coordinates are limited to
    `LONGEST`.
    """
    if fused_for_layers(embeddings) and embeddings.shape[-1] <= _MOST_DIMENSIONS:
        return _Directions.apply(embeddings, axis)
    return plain_directions(embeddings, axis)


def plain_directions(embeddings: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """`directions` in plain torch."""
    embeddings = embeddings.clamp(-LONGEST, LONGEST)
    norm = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
    mu = torch.where(norm < SHORTEST, axis, embeddings / norm.clamp_min(SHORTEST))
    return mu, norm.squeeze(-1)


def bounded_kappa(u: Tensor, scale: Tensor, shift: Tensor, middle: float, half_width: float) -> Tensor:
    """kappa of any shape, from outputs u of that shape:

        log kappa = middle + half_width (2 / pi) arctan(pi (scale u + shift) / 2).

    Args:
        u: Outputs of the last layer.
        scale: Number, as a tensor. It gets no gradient.
        shift: Number, as a tensor. It gets no gradient.
        middle: Middle of the interval of log kappa.
        half_width: Half the width of the interval.
    """
    if fused_for_layers(u):
        return _BoundedKappa.apply(u, scale, shift, middle, half_width)
    return plain_bounded_kappa(u, scale, shift, middle, half_width)


def plain_bounded_kappa(u: Tensor, scale: Tensor, shift: Tensor, middle: float, half_width: float) -> Tensor:
    """`bounded_kappa` in plain torch."""
    u = u * scale + shift
    return torch.exp(middle + half_width * (2 / math.pi) * torch.atan(u * (math.pi / 2)))


class _Directions(torch.autograd.Function):
    """The fused `directions`."""

    @staticmethod
    def forward(ctx, embeddings: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
        fused: Any = fused_kernels(embeddings)
        ctx.save_for_backward(embeddings)
        return fused.fused_directions(embeddings, axis, SHORTEST, LONGEST)

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad_mu: Tensor, grad_norm: Tensor) -> tuple[Any, ...]:
        (embeddings,) = ctx.saved_tensors
        fused: Any = fused_kernels(embeddings)
        return fused.fused_directions_backward(grad_mu, grad_norm, embeddings, SHORTEST, LONGEST), None


class _BoundedKappa(torch.autograd.Function):
    """The fused `bounded_kappa`."""

    @staticmethod
    def forward(ctx, u: Tensor, scale: Tensor, shift: Tensor, middle: float, half_width: float) -> Tensor:
        fused: Any = fused_kernels(u)
        kappa, slope = fused.fused_bounded_kappa(u, scale, shift, middle, half_width)
        ctx.save_for_backward(slope)
        return kappa

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None, None
