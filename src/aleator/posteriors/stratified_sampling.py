"""Stratified samples of von Mises-Fisher distributions, for estimates.

The angles of N samples lie in N intervals of equal probability, one in each, and their directions around mu are
independent. What depends on the angle alone, as the density of a vMF does, is then estimated almost without error.
"""

import torch
from torch import Generator, Tensor

from aleator.special import angle_table


@torch.no_grad()
def stratified_noise(mu: Tensor, count: int, generator: Generator | None = None, centred: bool = False) -> Tensor:
    """Noise (count, ..., D) that `VonMisesFisher.rsample` turns into samples, which have gradients in mu and kappa.

    Args:
        mu: Directions (..., D).
        count: Number of samples of each.
        generator: Source of randomness. Default: torch's global generator.
        centred: Put each angle at the middle of its interval, by probability, and not at a random place.
    """
    place = 0.5 if centred else torch.empty(count, device=mu.device).uniform_(generator=generator).cpu().double()
    length = _noise_lengths(mu.shape[-1], count, place).to(mu.device, mu.dtype).view(-1, *(1,) * mu.dim())
    noise = torch.empty(count, *mu.shape, dtype=mu.dtype, device=mu.device).normal_(generator=generator)
    around = noise - (noise * mu).sum(-1, keepdim=True) * mu
    around = around - (around * mu).sum(-1, keepdim=True) * mu  # again: the first time left rounding errors
    return torch.nn.functional.normalize(around, dim=-1) * length


@torch.no_grad()
def stratified_angles(dim: int, kappa: Tensor, count: int) -> Tensor:
    """Angles with mu (..., count), each at the middle of its interval by probability. No gradients."""
    length = _noise_lengths(dim, count, 0.5).to(kappa.device, kappa.dtype).unsqueeze(-1).expand(count, kappa.numel())
    table = angle_table(dim, kappa.dtype, kappa.device)
    scale, _ = table.angle(length, *table.rows(kappa.flatten(), False))
    return (scale * length).T.reshape(*kappa.shape, count)


def _noise_lengths(dim: int, count: int, place: Tensor | float) -> Tensor:
    """Lengths (count,) of the noise, a chi variable, which the table of angles (special/angles.py) maps to angles."""
    from scipy import special

    p = (torch.arange(count, dtype=torch.float64) + place) / count
    return torch.as_tensor(2 * special.gammaincinv((dim - 1) / 2, p.numpy())).sqrt()
