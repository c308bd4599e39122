"""HIB's probability that two posteriors match: the mean over the samples of a sigmoid of their cosine, as a logarithm.

    log 1/K sum_k s(a t_k + b) for a match, log 1/K sum_k (1 - s(a t_k + b)) for a mismatch.

t_k is the cosine of the k-th samples, s the sigmoid.
"""

import math
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import first_derivatives_only
from aleator.fused import fused_kernels


def log_mean_sigmoid(cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
    """Log probabilities (..., C) from cosines (K, ..., C).

    Args:
        cosines: Of K samples with those of C candidates.
        a: Slope of the match probability in the cosine, a scalar.
        b: Its offset, a scalar.
        matches: The first so many candidates are asked for a match, the others for a mismatch.
    """
    if fused_kernels(cosines) is not None and cosines.dtype == a.dtype == torch.float32 and cosines.numel():
        flat = cosines.reshape(len(cosines), -1, cosines.shape[-1])
        return _LogMeanSigmoid.apply(flat, a, b, matches).view(cosines.shape[1:])
    return plain_log_mean_sigmoid(cosines, a, b, matches)


def plain_log_mean_sigmoid(cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
    """`log_mean_sigmoid` in plain torch."""
    sign = torch.ones_like(cosines[0])
    sign[..., matches:] = -1.0  # 1 - s(x) = s(-x)
    log_probability = torch.nn.functional.logsigmoid(sign * (a * cosines + b))
    return torch.logsumexp(log_probability, 0) - math.log(len(cosines))


class _LogMeanSigmoid(torch.autograd.Function):
    """The fused `log_mean_sigmoid`, of cosines (K, B, C)."""

    @staticmethod
    def forward(ctx, cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
        fused: Any = fused_kernels(cosines)
        mean = fused.fused_log_mean_sigmoid(cosines, a, b, matches)
        ctx.save_for_backward(cosines, a, b, mean)
        ctx.matches = matches
        return mean

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        fused: Any = fused_kernels(grad)
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        return *fused.fused_log_mean_sigmoid_backward(grad, *ctx.saved_tensors, ctx.matches, learned), None
