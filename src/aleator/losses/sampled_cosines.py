r"""Cosines of a latent z with samples z' of other posteriors, without forming the samples.

A Monte-Carlo loss asks of a negative's sample only how close it is to its anchor's. A vMF sample lies at an angle theta
from mu', in a direction that is uniform among the D-1 orthogonal to mu'. So with c = mu'.z

    z.z' = cos(theta) c + sin(theta) sqrt(1 - c^2) s,     s = v_1 of v uniform on the sphere of D-1 dimensions:

two random numbers in place of D, and of the work and the memory of D coordinates. Both come from a standard normal
vector of D-1 dimensions, s as the share of its first coordinate, theta from its length (quantile.py); the other
coordinates enter by the sum of their squares alone, which is drawn as such. The law of z.z' given z is that of the
sampled vector, whatever mu' and kappa'; with the noise held fixed z.z' is smooth in c and kappa', so its slopes are
unbiased gradients. They are not the same numbers as through the vector: there the noise turns along with mu'.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aleator.foundation import matmul_precision
from aleator.fused import fused_kernels
from aleator.posteriors import VonMisesFisher
from aleator.special import AngleTable, angle_table

_NARROWEST = 1e-12  # of 1 - c^2: a latent at mu' itself has no direction around it


def sampled_cosines(z: Tensor, others: VonMisesFisher, generator: Generator | None = None) -> Tensor:
    """Of z (K, B, D) with a fresh sample of each of the posteriors (B, M): (K, B, M)."""
    noise: Tensor | tuple[Tensor, Tensor]
    if fused_kernels(z):
        noise = torch.randint(2**62, (), generator=generator, device=z.device)  # a seed: the kernel draws
    else:
        noise = draw_noise((len(z), *others.batch_shape), others.dim, z, generator)
    return _Cosines.apply(z, others.mu, others.kappa, noise)


def draw_noise(
    shape: Sequence[int], dim: int, like: Tensor, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """The first coordinate and the length of standard normal vectors of D-1 dimensions."""
    first = torch.empty(*shape, dtype=like.dtype, device=like.device).normal_(generator=generator)
    square, other = first.square(), torch.empty_like(first)
    for _ in range((dim - 2) // 2):  # the squares of two coordinates are together exponential, of mean 2
        square.add_(other.exponential_(generator=generator), alpha=2)
    if dim % 2:
        square.add_(other.normal_(generator=generator).square_())
    return first, square.sqrt_()


class _Cosines(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, mu, kappa, noise):
        table = angle_table(mu.shape[-1], mu.dtype, mu.device)
        slopes = ctx.needs_input_grad[2]
        fused = fused_kernels(z)
        forward = fused.fused_cosines if fused else plain_cosines
        cosine, turn, slope = forward(z, mu, kappa, noise, table, slopes)
        ctx.save_for_backward(z, mu, turn, slope)
        return cosine

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        z, mu, turn, slope = ctx.saved_tensors
        fused = fused_kernels(z)
        backward = fused.fused_cosines_backward if fused else plain_cosines_backward
        gradients = backward(grad, z, mu, turn, slope, ctx.needs_input_grad[:2])
        return *gradients, None


def plain_cosines(
    z: Tensor, mu: Tensor, kappa: Tensor, noise: Any, table: AngleTable, slopes: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """z.z' and its slopes in c and, if asked for, in kappa; (K, B, M) each."""
    first, sigma = noise
    with matmul_precision("highest"):
        c = torch.einsum("kbd,bmd->kbm", z, mu).clamp_(-1, 1)
    scale, bend = table.angle(sigma.flatten(1), *table.rows(kappa.flatten(), slopes))
    theta = sigma * scale.view_as(sigma)
    around = (1 - c.square()).clamp_min_(_NARROWEST).sqrt_()
    share = first / sigma.clamp_min(1e-30)
    cosine, sine = theta.cos(), theta.sin_()
    turn = cosine - sine * share * c / around
    slope = None
    if bend is not None:
        slope = bend.view_as(sigma).mul_(sigma).mul_(cosine * share * around - sine * c)
    return cosine * c + sine * share * around, turn, slope


def plain_cosines_backward(
    grad: Tensor, z: Tensor, mu: Tensor, turn: Tensor, slope: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients in z, mu and kappa; those in z and mu are of c = mu.z alone, not confined to the sphere."""
    along = grad * turn
    with matmul_precision("highest"):
        grad_z = torch.einsum("kbm,bmd->kbd", along, mu) if needed[0] else None
        grad_mu = torch.einsum("kbm,kbd->bmd", along, z) if needed[1] else None
    return grad_z, grad_mu, None if slope is None else (grad * slope).sum(0)
