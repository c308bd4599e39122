"""Softmax share of the positive among candidates of its own, with cosines that are drawn (sampled_cosines.py).

On a GPU the gradient is one kernel for all candidates of an anchor. It reads the cosines and their slopes once; the
gradient in the cosines is not written.
"""

from typing import Any

import torch
from torch import Generator, Tensor

from aleator.fused import fused_kernels
from aleator.losses.sampled_cosines import angles, drawn_noise, sampled_cosines
from aleator.losses.softmax_share import candidate_log_softmax_share
from aleator.matching import LogLinear, ZonalKernel
from aleator.posteriors import VonMisesFisher

_LARGEST_FUSED_DIM = 128  # a tile of the fused gradient holds whole vectors


def sampled_log_softmax_share(
    z: Tensor, candidates: VonMisesFisher, kernel: ZonalKernel, generator: Generator | None = None
) -> Tensor:
    """Log shares (K, B) of the first candidate, from samples z (K, B, D) of the anchors and candidates (B, 1 + M)."""
    dim = candidates.dim
    log_linear = kernel.log_linear(dim)
    is_fused = fused_kernels(z) is not None and z.dtype == torch.float32 and dim <= _LARGEST_FUSED_DIM
    if not is_fused or log_linear is None:
        return candidate_log_softmax_share(sampled_cosines(z, candidates, generator), dim, kernel)
    noise = drawn_noise(z, candidates, generator)
    return _SampledShare.apply(z, candidates.mu, candidates.kappa, noise, log_linear)


class _SampledShare(torch.autograd.Function):
    """The fused `sampled_log_softmax_share`."""

    @staticmethod
    def forward(ctx, z: Tensor, mu: Tensor, kappa: Tensor, noise: Tensor, log_linear: LogLinear) -> Tensor:
        fused: Any = fused_kernels(z)
        cosines, slope_c, slope_kappa = fused.fused_sampled_cosines(
            z, mu, kappa, noise, angles(mu, True), ctx.needs_input_grad[2]
        )
        share, total = fused.fused_candidate_log_softmax_share(cosines, log_linear)
        ctx.save_for_backward(z, mu, cosines, total, slope_c, slope_kappa)
        ctx.log_linear = log_linear
        return share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        fused: Any = fused_kernels(grad)
        gradients = fused.fused_sampled_share_gradients(
            grad, *ctx.saved_tensors, ctx.log_linear, ctx.needs_input_grad[1]
        )
        return *gradients, None, None
