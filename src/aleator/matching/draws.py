"""Draws in proportion to expected positivity, for data/pair_sampler.py."""

import math
from typing import Any

import torch
from torch import Tensor

from aleator.fused import fused_kernels
from aleator.matching.fused_totals import recurrence_on
from aleator.matching.kernels import VMFKernel
from aleator.matching.positivity import log_positivity
from aleator.matching.series import row_weights
from aleator.matching.zonal import ZonalKernel
from aleator.posteriors import PosteriorBatch, VonMisesFisher


def point_masses(z: Tensor) -> VonMisesFisher:
    """Posteriors that are sure of their latents z (..., D)."""
    return VonMisesFisher(z, torch.full_like(z[..., 0], math.inf), validate_args=False)


def resolves_points(kernel: ZonalKernel, dim: int) -> bool:
    """Whether r of a point mass has a series."""
    identity = isinstance(kernel, VMFKernel) and kernel.is_identity
    return not identity and math.isinf(kernel.reach(dim))


@torch.no_grad()
def smallest_ratios(q: PosteriorBatch, z: Tensor, kernel: ZonalKernel, u: Tensor, terms: int) -> Tensor:
    """Which of the latents z has the smallest u / r with each posterior.

    Args:
        q: Posteriors, batch shape (G, N).
        z: Latents, shape (G, M, D).
        kernel: What counts as a match. One that `resolves_points`.
        u: Positive numbers, shape (G, N, M), float64.
        terms: Number of terms of the series.

    Returns:
        Indices, shape (G, N).
    """
    fused: Any = fused_kernels(u)
    if not (fused and isinstance(q, VonMisesFisher) and q.dtype == torch.float32 and kernel.cache_key() is not None):
        return (u.log() - log_positivity(q[..., :, None], point_masses(z)[..., None, :], kernel, terms)).argmin(-1)
    log_lam, sign = kernel.series(q.dim, terms + terms % 2, u.device)
    rows = row_weights(q.dim, q.kappa.double().flatten(), log_lam).weights.mT.contiguous()
    steps, heights = recurrence_on(q.dim, len(log_lam), u.device)
    point = row_weights(q.dim, torch.full((1,), math.inf, dtype=torch.float64, device=u.device), log_lam, sign)
    return fused.fused_smallest(u, q.mu, rows, z, point.weights[0] * heights, steps)
