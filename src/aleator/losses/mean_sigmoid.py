"""HIB's probability that two posteriors match: the mean over the samples of a sigmoid of their cosine, as a logarithm.

    log 1/K sum_k s(a t_k + b) for a match, log 1/K sum_k (1 - s(a t_k + b)) for a mismatch.

t_k is the cosine of the k-th samples, s the sigmoid.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_kernels


def log_mean_sigmoid(cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
    """Log probabilities (..., C) from cosines (K, ..., C).

    Args:
        cosines: Of K samples with those of C candidates.
        a: Slope of the match probability in the cosine, a scalar.
        b: Its offset, a scalar.
        matches: The first so many candidates are asked for a match, the others for a mismatch.
    """
    fused = fused_kernels(cosines)
    if fused is None or not cosines.dtype == a.dtype == torch.float32 or not cosines.numel():
        return plain_log_mean_sigmoid(cosines, a, b, matches)
    flat = cosines.reshape(len(cosines), -1, cosines.shape[-1])

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        mean, learned = fused.fused_log_mean_sigmoid(flat, a, b, matches), needed[1] or needed[2]
        return mean, (flat, a, b, mean), lambda *saved: fused.fused_log_mean_sigmoid_backward(*saved, matches, learned)

    return with_gradient(compute, flat, a, b).view(cosines.shape[1:])


def plain_log_mean_sigmoid(cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
    """`log_mean_sigmoid` in plain torch."""
    sign = torch.ones_like(cosines[0])
    sign[..., matches:] = -1.0  # 1 - s(x) = s(-x)
    log_probability = torch.nn.functional.logsigmoid(sign * (a * cosines + b))
    return torch.logsumexp(log_probability, 0) - math.log(len(cosines))
