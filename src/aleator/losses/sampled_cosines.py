r"""Sampled cosines: cosines of a vector z with samples z' of posteriors, without forming the samples.

A Monte-Carlo loss needs only the cosine of a negative's sample with the anchor's sample. A vMF sample z' lies at an
angle theta from mu', in a direction that is uniform among the D-1 directions orthogonal to mu'. With c = mu'.z

    z.z' = cos(theta) c + sin(theta) sqrt(1 - c^2) s,

where s is the first coordinate of a uniform unit vector in D-1 dimensions. This takes two random numbers in place of D,
and saves the work and the memory of D coordinates. Both come from a standard normal vector in D-1 dimensions: s is its
first coordinate divided by its length, and theta is a function of the length (special/angles.py). The other coordinates
enter only by the sum of their squares, so this sum is drawn directly.

Given z, the distribution of z.z' is that of the cosine with a sampled vector, for any mu' and kappa'. With the noise
held fixed z.z' is smooth in c and kappa', so its derivatives are unbiased gradients. They differ from the gradients
through a sampled vector, sample by sample, because there the noise turns along with mu'.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aleator.foundation import Backward, Saved, matmul_precision, with_gradient
from aleator.fused import fused_kernels
from aleator.posteriors import VonMisesFisher
from aleator.special import LEAST_DIM, AngleSeries, AngleTable, angle_series, angle_table

_SMALLEST = 1e-12  # of 1 - c^2: at z = mu' the direction from mu' to z is undefined


def sampled_cosines(z: Tensor, others: VonMisesFisher, generator: Generator | None = None) -> Tensor:
    """Cosines of z (K, B, D) with a new sample of each of the posteriors (B, M): (K, B, M)."""
    noise: Tensor | tuple[Tensor, Tensor]
    if fused_kernels(z):
        noise = torch.randint(2**62, (), generator=generator, device=z.device)  # a seed: the fused version draws
    else:
        noise = draw_noise((len(z), *others.batch_shape), others.dim, z, generator)
    return cosines_from_noise(z, others.mu, others.kappa, noise)


def cosines_from_noise(z: Tensor, mu: Tensor, kappa: Tensor, noise: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """z.z' for z (K, B, D), mu (B, M, D), kappa (B, M) and noise (K, B, M), or a seed for the fused version."""
    fused = fused_kernels(z)
    forward = fused.fused_sampled_cosines if fused else plain_sampled_cosines
    backward: Backward = fused.fused_sampled_cosines_backward if fused else plain_sampled_cosines_backward

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        cosine, *slopes = forward(z, mu, kappa, noise, _angles(mu, fused is not None), needed[2])
        return cosine, (z, mu, *slopes), lambda *saved: backward(*saved, needed[:2])

    return with_gradient(compute, z, mu, kappa)


def draw_noise(
    shape: Sequence[int], dim: int, like: Tensor, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """First coordinate and length of standard normal vectors in D-1 dimensions; `shape` each."""
    first = torch.empty(*shape, dtype=like.dtype, device=like.device).normal_(generator=generator)
    square, other = first.square(), torch.empty_like(first)
    for _ in range((dim - 2) // 2):  # the squares of two coordinates sum to an exponential variable with mean 2
        square.add_(other.exponential_(generator=generator), alpha=2)
    if dim % 2:
        square.add_(other.normal_(generator=generator).square_())
    return first, square.sqrt_()


def _angles(mu: Tensor, fused: bool) -> AngleTable | AngleSeries:
    """The map from noise to angles: a fused kernel prefers a series, where there is one."""
    dim = mu.shape[-1]
    if fused and mu.dtype == torch.float32 and dim >= LEAST_DIM:
        return angle_series(dim, mu.device)
    return angle_table(dim, mu.dtype, mu.device)


def plain_sampled_cosines(
    z: Tensor, mu: Tensor, kappa: Tensor, noise: Any, table: AngleTable | AngleSeries, slopes: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """z.z', its derivative in c and, with `slopes`, its derivative in kappa; (K, B, M) each."""
    first, sigma = noise
    with matmul_precision("highest"):
        c = torch.einsum("kbd,bmd->kbm", z, mu).clamp_(-1, 1)
    scale, scale_slope = table.angle(sigma.flatten(1), *table.rows(kappa.flatten(), slopes))
    theta = sigma * scale.view_as(sigma)
    around = (1 - c.square()).clamp_min_(_SMALLEST).sqrt_()
    s = first / sigma.clamp_min(1e-30)
    cosine, sine = theta.cos(), theta.sin_()
    slope_c = cosine - sine * s * c / around
    slope_kappa = None
    if scale_slope is not None:
        slope_kappa = scale_slope.view_as(sigma).mul_(sigma).mul_(cosine * s * around - sine * c)
    return cosine * c + sine * s * around, slope_c, slope_kappa


def plain_sampled_cosines_backward(
    grad: Tensor, z: Tensor, mu: Tensor, slope_c: Tensor, slope_kappa: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients in z, mu and kappa; `needed` says whether z and mu need theirs.

    Gradients in z and mu are those of c = mu.z in all of space, not projected onto the sphere.
    """
    grad_c = grad * slope_c
    with matmul_precision("highest"):
        grad_z = torch.einsum("kbm,bmd->kbd", grad_c, mu) if needed[0] else None
        grad_mu = torch.einsum("kbm,kbd->bmd", grad_c, z) if needed[1] else None
    return grad_z, grad_mu, None if slope_kappa is None else (grad * slope_kappa).sum(0)
