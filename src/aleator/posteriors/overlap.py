"""Overlap of two von Mises-Fisher densities, in closed form."""

import math

import torch
from torch import Tensor

from aleator.special import log_growth


def log_overlap(dim: int, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> Tensor:
    """log(S int vMF vMF' dz) = log(S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|)), with gradients.

    Args:
        dim: Dimension D of the space around the sphere, whose area is S.
        cosine: mu.mu', float64.
        kappa1: Concentrations in [0, inf], float64; they broadcast with the cosines.
        kappa2: Those of the other densities.

    Returns:
        The logarithm, in the shape that cosine and kappas broadcast to. inf for equal point masses, -inf for different
        ones.
    """
    order = dim / 2 - 1
    point1, point2 = torch.isinf(kappa1), torch.isinf(kappa2)
    k1, k2 = torch.where(point1, 1.0, kappa1), torch.where(point2, 1.0, kappa2)
    g1, g2 = log_growth(order, k1), log_growth(order, k2)  # before broadcasting: once per posterior, not per pair
    length = torch.sqrt(((k1 + k2).square() - 2 * k1 * k2 * (1 - cosine)).clamp_min(1e-300))
    both = log_growth(order, length) - g1 - g2
    value = torch.where(point1, k2 * cosine - g2, torch.where(point2, k1 * cosine - g1, both))
    coincide = torch.where(cosine >= 1, math.inf, -math.inf)
    return torch.where(point1 & point2, coincide, value)
