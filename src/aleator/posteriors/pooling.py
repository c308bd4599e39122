r"""Pooling: several independent looks at one thing become one posterior.

Given the latent z, let the looks x_1, ..., x_n be independent, and let z be uniform on the sphere before any look. Then
Bayes' rule gives

    p(z | x_1, ..., x_n)  ~  prod_i p(z | x_i)  ~  exp(z . sum_i kappa_i mu_i),

again a vMF: the natural parameters kappa_i mu_i add (Mardia and Jupp, Directional Statistics, 2000, section 9.3).
"""

import torch
from torch import Tensor

from aleator.foundation import require

_SAME_DIRECTION = 1e-3  # largest distance of point masses that count as one


def pooled_parameters(mu: Tensor, kappa: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """mu and kappa of the product of vMFs.

    Args:
        mu: Unit vectors, shape (..., n, D).
        kappa: Concentrations, shape (..., n), possibly infinite.
        weights: Exponents of the factors, shape (..., n). Default: 1.

    Returns:
        mu (..., D) and kappa (...). mu is the first axis where kappa is 0.

    Raises:
        ValueError: If two point masses lie in different directions.
    """
    weight = torch.ones_like(kappa) if weights is None else weights.to(kappa.dtype).expand(kappa.shape)
    point = torch.isinf(kappa) & (weight > 0)
    certain = point.any(-1)
    # Where a point mass takes part, it alone decides. `where` and not a product: 0 * inf has no gradient.
    finite = torch.where(point, 1.0, torch.where(torch.isinf(kappa), 0.0, kappa)) * weight
    share = torch.where(certain.unsqueeze(-1) & ~point, 0.0, finite)
    natural = (share.unsqueeze(-1) * mu).sum(-2)
    size = natural.detach().abs().amax(-1)
    zero = size == 0
    size = torch.where(zero, 1.0, size)  # squares of numbers of this size are neither inf nor 0
    scaled = natural / size.unsqueeze(-1)
    length = torch.where(zero, 1.0, scaled.square().sum(-1)).sqrt()  # the slope of a root at 0 is infinite
    axis = torch.zeros_like(natural)
    axis[..., 0] = 1
    direction = torch.where(zero.unsqueeze(-1), axis, scaled / length.unsqueeze(-1))
    if bool(certain.any()):
        apart = torch.where(point, (mu - direction.unsqueeze(-2)).norm(dim=-1), 0.0)
        way_out = "pool posteriors of one thing, or leave one out"
        require(apart <= _SAME_DIRECTION, "kappa", kappa, "point masses in different directions", way_out)
    return direction, torch.where(certain, torch.inf, torch.where(zero, 0.0, length * size))
