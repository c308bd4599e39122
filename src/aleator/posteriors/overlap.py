"""Overlap of two von Mises-Fisher densities, in closed form."""

import math

import torch
from torch import Tensor

from aleator.special import kappa_minus_log_growth

_SMALLEST, _LARGEST = 1e-100, 1e150  # beyond, squares of kappas underflow or overflow
_ROUNDING = 1e-15  # of a cosine


def unit_directions(mu: Tensor) -> Tensor:
    """mu in float64, of length 1: float32 vectors are too long or too short by 1e-7, which kappa would multiply."""
    return torch.nn.functional.normalize(mu.double(), dim=-1)


def log_overlap(dim: int, cosine_gap: Tensor, kappa1: Tensor, kappa2: Tensor) -> Tensor:
    """log(S int vMF vMF' dz) = log(S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|)), with gradients.

    With s(kappa) = kappa - log_growth(kappa) and the length L = |kappa mu + kappa' mu'| it is

        s(kappa) + s(kappa') - s(L) - 2 kappa kappa' (1 - mu.mu') / (kappa + kappa' + L),

    of which no part is large where the kappas are, unless the overlap is small.

    Args:
        dim: Dimension D of the space around the sphere, whose area is S.
        cosine_gap: 1 - mu.mu' in [0, 2], float64, of `unit_directions`, since kappa multiplies its error.
        kappa1: Concentrations in [0, inf], float64; they broadcast with the gaps. Above 1e150 they count as that.
        kappa2: Those of the other densities.

    Returns:
        The logarithm, in the shape that gaps and kappas broadcast to. inf for equal point masses, -inf for different
        ones.
    """
    order = dim / 2 - 1
    point1, point2 = torch.isinf(kappa1), torch.isinf(kappa2)
    k1, k2 = (torch.where(torch.isinf(k), 1.0, k.clamp(max=_LARGEST)) for k in (kappa1, kappa2))
    s1, s2 = (
        kappa_minus_log_growth(order, k1),
        kappa_minus_log_growth(order, k2),
    )  # before broadcasting: once per posterior
    twice = 2 * k1 * k2
    length = torch.sqrt(((k1 - k2).square() + twice * (2 - cosine_gap)).clamp_min(1e-300))
    both = s1 + s2 - kappa_minus_log_growth(order, length) - twice * cosine_gap / (k1 + k2 + length)
    both = torch.where((k1 < _SMALLEST) & (k2 < _SMALLEST), 0.0, both)  # the parts have no derivative at 0
    if both.device.type == "cpu" and not (point1.any() or point2.any()):  # asking a GPU would wait for it
        return both
    value = torch.where(point1, s2 - k2 * cosine_gap, torch.where(point2, s1 - k1 * cosine_gap, both))
    coincide = torch.where(cosine_gap <= _ROUNDING, math.inf, -math.inf)
    return torch.where(point1 & point2, coincide, value)
