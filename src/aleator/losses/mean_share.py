"""Mean over the samples of the positive's softmax share (losses/softmax_share.py), as a logarithm."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_kernels


def log_mean_share(share: Tensor, averaged: int = 1) -> Tensor:
    """log of the mean over the samples, (B,), from log shares (K, B).

    Args:
        share: Log shares.
        averaged: Number of negatives, if their values are averaged in the denominator and not summed; 1 if summed.
    """
    fused = fused_kernels(share)
    if fused is None or share.dtype != torch.float32 or not share.numel():
        return plain_log_mean_share(share, averaged)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        mean = fused.fused_log_mean_share(share, averaged)
        return mean, (share, mean), lambda *saved: (fused.fused_log_mean_share_backward(*saved, averaged),)

    return with_gradient(compute, share)


def plain_log_mean_share(share: Tensor, averaged: int) -> Tensor:
    """`log_mean_share` in plain torch."""
    return torch.logsumexp(share_among_average(share, averaged), 0) - math.log(len(share))


def share_among_average(share: Tensor, count: int) -> Tensor:
    """The share if the negatives are averaged and not summed: from log shares (...) among `count` negatives.

    With s = p/(p + n) the share p/(p + n/M) is s / (1/M + (1 - 1/M) s).
    """
    if count == 1:
        return share
    least = torch.full_like(share, -math.log(count))
    return share - torch.logaddexp(least, share + math.log1p(-1 / count))
