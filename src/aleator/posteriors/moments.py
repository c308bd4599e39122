"""The von Mises-Fisher distribution with a given mean: maximum likelihood, and the closest one to a mixture."""

import math

import torch
from torch import Tensor

from aleator.posteriors.overlap import unit_directions
from aleator.special import bessel_ratio, one_minus_bessel_ratio, ratio_slope


def closest_parameters(mu: Tensor, shortfall: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """mu (..., D) and kappa (...) of the vMF with the mean of a mixture of vMFs, float64. No gradients in kappa.

    A vMF of which samples are most likely, or that is closest to a mixture, has the same mean.

    Args:
        mu: Directions of the components, shape (..., K, D).
        shortfall: 1 - A_1 of the components, shape (..., K); 0 for a point mass.
        weights: Their weights up to a factor, shape (..., K).
    """
    mu, shortfall, weights = unit_directions(mu), shortfall.double(), weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    mean = ((weights * (1 - shortfall)).unsqueeze(-1) * mu).sum(-2)
    length = mean.norm(dim=-1)
    # A mean of zero has no direction. kappa is then 0, so any direction is right.
    axis = torch.eye(1, mu.shape[-1], dtype=mu.dtype, device=mu.device)[0]
    direction = torch.where(
        (length > 1e-150).unsqueeze(-1), torch.nn.functional.normalize(mean, dim=-1, eps=1e-150), axis
    )
    # 1 - length is the mean of 1 - A_1 mu.direction. As a sum of positive parts it keeps its digits.
    gap = (mu - direction.unsqueeze(-2)).square().sum(-1) / 2
    missing = (weights * (shortfall + (1 - shortfall) * gap)).sum(-1)
    return direction, kappa_from_mean_resultant_length(length, mu.shape[-1], missing)


def kappa_from_mean_resultant_length(length: Tensor, dim: int, shortfall: Tensor | None = None) -> Tensor:
    """Solve A_1(kappa) = length for kappa, elementwise: 0 for 0, inf for 1. Float64, no gradients.

    For lengths close to 1 the accuracy of kappa is that of 1 - length, which is `shortfall` if it is known better.
    """
    length = length.detach().double()
    least = 1e-15 if shortfall is None else 1e-30  # below it is rounding
    missing = 1 - length if shortfall is None else shortfall.detach().double()
    point, missing, inside = missing <= least, missing.clamp_min(least), length.clamp(1e-150, 1.0)
    kappa = inside * (dim - inside.square()) / (missing * (2 - missing))  # Banerjee et al., JMLR 2005
    order = dim / 2 - 1
    for _ in range(8):  # Newton's method: A_1 is concave, and the start is within a few per cent
        excess = torch.where(
            inside > 0.5, one_minus_bessel_ratio(order, kappa) - missing, inside - bessel_ratio(order, kappa)
        )
        kappa = (kappa + excess / ratio_slope(order, kappa)).clamp_min(1e-150)
    return torch.where(length <= 1e-150, 0.0, torch.where(point, math.inf, kappa))
