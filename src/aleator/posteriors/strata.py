"""Stratified samples of von Mises-Fisher distributions, for estimates.

The angles of N samples lie in N intervals of equal probability, one in each, and their directions around mu are
independent. What depends on the angle alone, as the density of a vMF does, is then estimated almost without error.
"""

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from aleator.special import angle_table

if TYPE_CHECKING:
    from aleator.posteriors.vmf import VonMisesFisher


def stratified_rsample(
    q: "VonMisesFisher", count: int, generator: Generator | None = None, centred: bool = False
) -> Tensor:
    """Samples (count, ..., D) with gradients in mu and kappa.

    Args:
        q: Posteriors, batch shape (...).
        count: Number of samples of each.
        generator: Source of randomness. Default: torch's global generator.
        centred: Put each angle at the middle of its interval, by probability, and not at a random place.
    """
    with torch.no_grad():
        place = 0.5 if centred else torch.empty(count, device=q.device).uniform_(generator=generator).cpu().double()
        length = _noise_lengths(q.dim, count, place)
        length = length.to(q.device, q.dtype).view(-1, *(1,) * (q.mu.dim()))
        noise = torch.empty(count, *q.mu.shape, dtype=q.dtype, device=q.device).normal_(generator=generator)
        around = noise - (noise * q.mu).sum(-1, keepdim=True) * q.mu
        around = around - (around * q.mu).sum(-1, keepdim=True) * q.mu  # again: the first time left rounding errors
        noise = torch.nn.functional.normalize(around, dim=-1) * length
    return q.rsample((count,), noise=noise)


@torch.no_grad()
def stratified_angles(q: "VonMisesFisher", count: int) -> Tensor:
    """Angles with mu (..., count), each at the middle of its interval by probability. No gradients."""
    length = _noise_lengths(q.dim, count, 0.5).to(q.device, q.dtype)
    length = length.unsqueeze(-1).expand(count, q.kappa.numel())
    table = angle_table(q.dim, q.dtype, q.device)
    scale, _ = table.angle(length, *table.rows(q.kappa.flatten(), False))
    return (scale * length).T.reshape(*q.kappa.shape, count)


def _noise_lengths(dim: int, count: int, place: Tensor | float) -> Tensor:
    """Lengths (count,) of the noise, a chi variable, which the table of angles (special/angles.py) maps to angles."""
    from scipy import special

    p = (torch.arange(count, dtype=torch.float64) + place) / count
    return torch.as_tensor(2 * special.gammaincinv((dim - 1) / 2, p.numpy())).sqrt()
