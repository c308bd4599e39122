"""Probability of the caps around the mode of a von Mises-Fisher distribution, and the angle of a cap.

A cap holds all directions within an angle of mu. Only kappa and the dimension D matter. All tensors are float64.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, require_not_compiled, with_gradient
from aleator.special import angle_masses, angle_quantile, log_sphere_area

# From this kappa on, a vMF is a point in float64: all its mass lies within an angle of 1e-12 of mu.
_POINT_MASS = 1e25
# Elements per block. The quadrature needs 64 nodes for each, so blocks bound its memory.
_BLOCK = 2**14


def cap_angle(dim: int, kappa: Tensor, p: Tensor) -> Tensor:
    """Angle of the cap of probability p, in [0, pi]; kappa and p have one shape. No gradients."""
    require_not_compiled("p")
    kappa = kappa.detach()
    angle = _blockwise(lambda k, q: (angle_quantile(dim, k, q, 1 - q),), kappa.clamp_max(_POINT_MASS), p)[0]
    return torch.where(kappa >= _POINT_MASS, 0.0, angle)


def cap_mass(dim: int, kappa: Tensor, angle: Tensor) -> Tensor:
    """P(theta <= angle), with gradients in kappa and in the angle, which have one shape.

    The derivative in the angle is the density. That in kappa is cov(cos theta, 1[theta <= angle]).
    """
    require_not_compiled("angle")

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        finite = kappa.detach().clamp_max(_POINT_MASS)
        below, density = _blockwise(lambda k, a: angle_masses(dim, k, a)[::2], finite, angle.detach())

        def gradient(grad: Tensor, kappa: Tensor, angle: Tensor, density: Tensor) -> tuple[Tensor | None, ...]:
            point = kappa >= _POINT_MASS
            grad_kappa = None
            if needed[0]:
                # The covariance has no closed form. The mass is exact to 1e-15, so a central difference will do.
                step = 1e-5 * (1 + kappa)
                above, below = (kappa + step).clamp_max(_POINT_MASS), (kappa - step).clamp_min(0.0)
                high, low = (_blockwise(lambda k, a: angle_masses(dim, k, a)[:1], k, angle)[0] for k in (above, below))
                grad_kappa = torch.where(point, 0.0, grad * (high - low) / (above - below))
            return grad_kappa, torch.where(point, 0.0, grad * density) if needed[1] else None

        return torch.where(kappa >= _POINT_MASS, 1.0, below), (kappa, angle, density), gradient

    return with_gradient(compute, kappa, angle)


def log_cap_share(dim: int, angle: Tensor) -> Tensor:
    """Log of the share of the sphere that a cap of this angle covers, float64; also where the share underflows."""
    if dim == 2:
        return (angle / math.pi).log()
    small = torch.minimum(angle, math.pi - angle).clamp_min(1e-300)
    # From the edge inwards, sin^(D-2) falls at least like exp(-slope d - (D-2) d^2 / 2): all that counts is within d.
    slope = (dim - 2) / torch.tan(small)
    d = torch.minimum(2 * 40 / (slope + torch.sqrt(slope.square() + 2 * 40 * (dim - 2))), small)
    x, w = (torch.as_tensor(a, device=angle.device) for a in np.polynomial.legendre.leggauss(64))
    nodes = small.unsqueeze(-1) - d.unsqueeze(-1) * (1 - x) / 2
    log_ratio = (dim - 2) * (torch.sin(nodes) / torch.sin(small).unsqueeze(-1)).log()
    integral = (log_ratio.exp() @ w).log() + (d / 2).log() + (dim - 2) * torch.sin(small).log()
    share = integral + log_sphere_area(dim - 1) - log_sphere_area(dim)
    return torch.where(angle <= math.pi / 2, share, torch.log1p(-share.exp()))


def _blockwise(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Apply an elementwise function of tensors of one shape block by block."""
    blocks = zip(*(t.flatten().split(_BLOCK) for t in tensors), strict=True)
    results = zip(*(function(*block) for block in blocks), strict=True)
    return tuple(torch.cat(parts).view(tensors[0].shape) for parts in results)
