r"""Coefficients of a zonal kernel by numerical integration.

    lambda_n = int g P_n w dt / int g w dt,     w(t) = (1 - t^2)^((D-3)/2),

with the Gegenbauer polynomials P_n, normalised to P_n(1) = 1. The integral runs over the angle theta = arccos t, where
w dt = sin^(D-2)(theta) dtheta is smooth.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import require_at_least
from aleator.special import gegenbauer

_PANELS = 96
_NODES_PER_PANEL = 20


class Moments(NamedTuple):
    """lambda_n and bounds of their rounding errors, (terms,) each, float64."""

    values: Tensor
    errors: Tensor


def zonal_moments(log_values: Callable[[Tensor], Tensor], dim: int, terms: int) -> Moments:
    """lambda_0 .. lambda_{terms-1} of the kernel with these log values, up to a constant, at cosines (N,)."""
    t, log_weights = angle_quadrature(dim)
    weighted = torch.softmax(log_values(t) + log_weights, 0)
    # Softmax normalises only to the rounding of the processor. sum() adds pairwise, which is the same on all of them.
    weighted = weighted / weighted.sum()
    P = gegenbauer(dim, terms, t)
    # Rounding of the sum, and of the recurrence of P_n, whose error grows with n.
    errors = 8e-16 * (1 + torch.arange(terms) * (P.abs() @ weighted.detach()))
    return Moments((P * weighted).sum(-1), errors)


@lru_cache(maxsize=64)
def angle_quadrature(dim: int) -> tuple[Tensor, Tensor]:
    """Cosines t_i and log weights, (N,) each: sum_i exp(log w_i) f(t_i) is int f w dt up to a constant.

    The rule is Gauss-Legendre in panels of the angle. The weights are logarithms because they are tiny near t = 1,
    where a kernel is large: so their product keeps its relative accuracy.
    """
    require_at_least("dim", dim, 2, "pass the dimension of the embedding")
    x, w = np.polynomial.legendre.leggauss(_NODES_PER_PANEL)
    half = math.pi / (2 * _PANELS)
    angle = (half * (1 + 2 * np.arange(_PANELS)[:, None] + x)).ravel()
    log_weight = (dim - 2) * np.log(np.sin(angle)) + np.log(np.tile(w, _PANELS))
    with torch.inference_mode(False):  # what is kept here serves training, too
        return torch.as_tensor(np.cos(angle)), torch.as_tensor(log_weight)
