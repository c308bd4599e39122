"""What follows the output layers of an encoder: an embedding becomes a direction, a number becomes a kappa."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_for_layers

SHORTEST, LONGEST = 1e-12, 1e18  # beyond these lengths the squares of float32 coordinates under- or overflow
_MOST_DIMENSIONS = 1024  # the fused version holds whole vectors


def directions(embeddings: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (..., D) along the embeddings (..., D), and the lengths (...) of the embeddings.

    An embedding that is shorter than `SHORTEST` gets the direction of `axis` (D,). Coordinates are limited to
    `LONGEST`.
    """
    fused = fused_for_layers(embeddings)
    if fused is None or embeddings.shape[-1] > _MOST_DIMENSIONS:
        return plain_directions(embeddings, axis)

    def compute(needed: Sequence[bool]) -> tuple[tuple[Tensor, ...], Saved, Backward]:
        results = fused.fused_directions(embeddings, axis, SHORTEST, LONGEST)
        return results, (embeddings,), lambda *saved: (fused.fused_directions_backward(*saved, SHORTEST, LONGEST),)

    mu, norm = with_gradient(compute, embeddings)
    return mu, norm


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
    fused = fused_for_layers(u)
    if fused is None:
        return plain_bounded_kappa(u, scale, shift, middle, half_width)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        kappa, slope = fused.fused_bounded_kappa(u, scale, shift, middle, half_width)
        return kappa, (slope,), lambda grad, slope: (grad * slope,)

    return with_gradient(compute, u)


def plain_bounded_kappa(u: Tensor, scale: Tensor, shift: Tensor, middle: float, half_width: float) -> Tensor:
    """`bounded_kappa` in plain torch."""
    u = u * scale + shift
    return torch.exp(middle + half_width * (2 / math.pi) * torch.atan(u * (math.pi / 2)))
