r"""Samples of von Mises-Fisher distributions with gradients in mu and kappa.

A sample is z = cos(theta) mu + sin(theta) g/|g|. Here g is the part of a standard normal vector that is orthogonal to
mu, and theta is a function of the length |g| and of kappa, tabulated by special/angles.py. There is no rejection step.

Gradients are unbiased. In kappa: the angle moves, and dz/dtheta = (cos(theta) z - mu)/sin(theta). In mu: z turns with
mu, as a rigid rotation in the plane of mu and dmu, so dz = (mu.z) dmu - (dmu.z) mu. A rotated vMF is the vMF around the
rotated mu.
"""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from aleator.foundation import Backward, Saved, require_not_compiled, with_gradient, without_autocast
from aleator.fused import fused_kernels
from aleator.special import AngleTable, angle_table

# Numbers of noise per block on a CPU. A block stays in the cache while it is turned into samples.
_BLOCK = 2**19
# Posteriors per block. Each needs a row of about 640 numbers of the table of angles.
_POSTERIORS_PER_BLOCK = 2**14


def draw_noise(count: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Standard normal noise (K, B, D) for K = `count` samples, in dtype and device of `like` (B, D)."""
    batch, dim = like.shape
    noise = torch.empty(count, batch, dim, dtype=like.dtype, device=like.device)
    for block in noise.view(-1, dim).split(max(1, _BLOCK // dim)) if noise.device.type == "cpu" else (noise,):
        block.normal_(generator=generator)
    return noise


@without_autocast
def sample_from_noise(mu: Tensor, kappa: Tensor, noise: Tensor, overwrite: bool) -> Tensor:
    """Samples (K, B, D) from mu (B, D), kappa (B,) and noise (K, B, D), which may be overwritten."""
    require_not_compiled("noise")

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        table = angle_table(mu.shape[-1], mu.dtype, mu.device)
        need_mu, slopes = needed
        z = noise if overwrite else noise.clone()
        if fused := fused_kernels(z):
            slope = fused.fused_sample(z, mu, *table.rows(kappa, slopes), table.first, table.spacing)
            backward = fused.fused_sample_backward
        else:
            slope, backward = plain_sample(z, mu, kappa, table, slopes), plain_sample_backward
        return z, (mu, z, slope), lambda grad, mu, z, slope: backward(grad, z, mu, slope, need_mu)

    return with_gradient(compute, mu, kappa)


def plain_sample(z: Tensor, mu: Tensor, kappa: Tensor, table: AngleTable, slopes: bool) -> Tensor | None:
    """Turn the noise z (K, B, D) into samples, in place. With `slopes`, return d(theta)/dkappa / sin(theta), (K, B)."""
    angle_slope = z.new_empty(z.shape[:2]) if slopes else None
    # A sample is a combination of the noise and mu. In few dimensions the orthogonal part may be much shorter than the
    # noise, and its length would lose digits as a difference: then the orthogonal part is computed first.
    project = mu.shape[-1] < 8
    for first in range(0, len(kappa), _POSTERIORS_PER_BLOCK):
        part = slice(first, first + _POSTERIORS_PER_BLOCK)
        rows = table.rows(kappa[part], slopes)
        count = max(1, _BLOCK // mu[part].numel()) if z.device.type == "cpu" else len(z)
        for start in range(0, len(z), count):
            block = z[start : start + count, part]
            along = torch.linalg.vecdot(block, mu[part])
            if project:
                block.addcmul_(along.unsqueeze(-1), mu[part], value=-1)
                along.zero_()
            sigma = torch.linalg.vecdot(block, block).addcmul_(along, along, value=-1).clamp_(min=0.0).sqrt_()
            scale, slope = table.angle(sigma, *rows)  # theta / sigma
            theta = sigma.mul_(scale)
            sine = torch.sinc(theta / math.pi).mul_(scale)  # sin(theta) / sigma
            if angle_slope is not None and slope is not None:
                angle_slope[start : start + count, part] = slope / sine.clamp_min(1e-30)
            block.mul_(sine.unsqueeze(-1))
            block.addcmul_(theta.cos_().addcmul_(along, sine, value=-1).unsqueeze_(-1), mu[part])
    return angle_slope


@without_autocast
def plain_sample_backward(
    grad: Tensor, z: Tensor, mu: Tensor, slope: Tensor | None, need_mu: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in mu (B, D) and kappa (B,), summed over the samples z (K, B, D); None for one that is not needed.

    `slope` is that of `plain_sample`, or None if kappa needs no gradient.
    """
    cosine, grad_along = torch.linalg.vecdot(z, mu), torch.linalg.vecdot(grad, mu)
    grad_mu = (cosine.unsqueeze(-1) * grad - grad_along.unsqueeze(-1) * z).sum(0) if need_mu else None
    if slope is None:
        return grad_mu, None
    return grad_mu, (slope * (cosine * torch.linalg.vecdot(grad, z) - grad_along)).sum(0)
