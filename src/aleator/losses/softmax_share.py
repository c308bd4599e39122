r"""The share of a positive among all that its anchor's latent meets, in logarithms:

    share = g(z.z+) / (g(z.z+) + sum_m g(z.z_m)).

There is one for each sample of each anchor. Where groups of anchors share their negatives, every latent of a group
meets every negative of it: many cosines, of which only their sum is wanted. On a GPU they are never written to memory.
"""

from typing import Any

import torch
from torch import Tensor

from aleator.fused import fused_kernels
from aleator.matching import LogLinear, ZonalKernel

_WIDEST = 128  # dimensions that a tile of the fused kernel holds


def log_shares(cosines: Tensor, dim: int, kernel: ZonalKernel) -> Tensor:
    """(K, B) from the cosines with the positive, which come first, and the negatives; (K, B, 1 + M)."""
    log_linear = kernel.log_linear(dim)
    if fused_kernels(cosines) and log_linear is not None and cosines.dtype == torch.float32:
        return _LogShares.apply(cosines, log_linear)
    values = kernel.log_values(dim, cosines).to(cosines.dtype)
    return log_share(values[..., 0], values[..., 1:])


def crowd_log_shares(z: Tensor, own: Tensor, others: Tensor, kernel: ZonalKernel) -> Tensor:
    """(K, B) from latents z (K, B, D), z.z+ (K, B) and negatives (K, G, M, D), each for B/G of the anchors in a row."""
    dim = z.shape[-1]
    log_linear = kernel.log_linear(dim)
    if fused_kernels(z) and log_linear is not None and z.dtype == torch.float32 and dim <= _WIDEST:
        return _CrowdLogShares.apply(own, z, others, log_linear)
    log_own, log_others = (kernel.log_values(dim, t).to(z.dtype) for t in (own, crowd_cosines(z, others)))
    return log_share(log_own, log_others)


def crowd_cosines(z: Tensor, others: Tensor) -> Tensor:
    """Of latents (K, B, D) with negatives (K, G, M, D), each for B/G of the anchors in a row; (K, B, M)."""
    return (z.unflatten(1, (others.shape[1], -1)) @ others.mT).flatten(1, 2)


def log_share(log_own: Tensor, log_others: Tensor) -> Tensor:
    """(...) from log g of the positive (...) and of the negatives (..., M)."""
    return log_own - torch.logaddexp(log_own, torch.logsumexp(log_others, -1))


class _LogShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cosines: Tensor, log_linear: LogLinear) -> Tensor:
        share, total = fused_kernels(cosines).fused_log_shares(cosines, log_linear)
        ctx.save_for_backward(cosines, total)
        ctx.log_linear = log_linear
        return share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        return fused_kernels(grad).fused_log_shares_backward(grad, *ctx.saved_tensors, ctx.log_linear), None


class _CrowdLogShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: Tensor, z: Tensor, others: Tensor, log_linear: LogLinear) -> Tensor:
        share, total = fused_kernels(z).fused_crowd_log_shares(own, z, others, log_linear)
        ctx.save_for_backward(own, z, others, total)
        ctx.log_linear = log_linear
        return share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        return *fused_kernels(grad).fused_crowd_log_shares_backward(grad, *ctx.saved_tensors, ctx.log_linear), None
