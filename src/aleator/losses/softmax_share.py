r"""The positive's softmax share among the candidates of its anchor, which sampled InfoNCE losses are made of.

It is computed as a logarithm:

    share = g(z.z+) / (g(z.z+) + sum_m g(z.z_m)).

z, z+ and z_m are samples of an anchor, its positive and its negatives; g is the kernel. There is one share for each of
the K samples of each of the B anchors.

Where groups of anchors share their negatives, every sample of a group is compared with every negative of the group.
These are many cosines, of which only a sum is needed. On a GPU they are never written to memory (aleator.fused).

If the negatives are the other anchors of the batch, there are K B^2 cosines. They are made in blocks, and in the
backward pass again, so memory is linear in K B.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aleator.foundation import Backward, Saved, gather_batch, matmul_precision, process_rank, with_gradient
from aleator.fused import fused_kernels
from aleator.matching import ZonalKernel

_LARGEST_FUSED_DIM = 128  # a tile of the fused version holds whole vectors
_TABLE = 2**22  # cosines in one block, where the negatives are the other anchors


def log_softmax_share(log_positive: Tensor, log_negatives: Tensor) -> Tensor:
    """(...) from log g of the positive (...) and of the negatives (..., M)."""
    return log_positive - torch.logaddexp(log_positive, torch.logsumexp(log_negatives, -1))


def candidate_log_softmax_share(cosines: Tensor, dim: int, kernel: ZonalKernel) -> Tensor:
    """(K, B) from the cosines with all candidates (K, B, 1 + M), the positive first."""
    log_linear, fused = kernel.log_linear(dim), fused_kernels(cosines)
    if fused is None or log_linear is None or cosines.dtype != torch.float32:
        return plain_candidate_log_softmax_share(cosines, dim, kernel)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        share, log_total = fused.fused_candidate_log_softmax_share(cosines, log_linear)
        backward = fused.fused_candidate_log_softmax_share_backward
        return share, (cosines, log_total), lambda *saved: (backward(*saved, log_linear),)

    return with_gradient(compute, cosines)


def plain_candidate_log_softmax_share(cosines: Tensor, dim: int, kernel: ZonalKernel) -> Tensor:
    """`candidate_log_softmax_share` in plain torch."""
    log_values = kernel.log_values(dim, cosines).to(cosines.dtype)
    return log_softmax_share(log_values[..., 0], log_values[..., 1:])


def shared_log_softmax_share(z: Tensor, to_positive: Tensor, negatives: Tensor, kernel: ZonalKernel) -> Tensor:
    """(K, B) where groups of B/G consecutive anchors share M negatives.

    From samples of the anchors z (K, B, D), their cosines with the positives (K, B) and samples of the shared negatives
    (K, G, M, D).
    """
    dim = z.shape[-1]
    log_linear, fused = kernel.log_linear(dim), fused_kernels(z)
    if fused is None or log_linear is None or z.dtype != torch.float32 or dim > _LARGEST_FUSED_DIM:
        return plain_shared_log_softmax_share(z, to_positive, negatives, kernel)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        share, log_total = fused.fused_shared_log_softmax_share(to_positive, z, negatives, log_linear)
        backward = fused.fused_shared_log_softmax_share_backward
        return share, (to_positive, z, negatives, log_total), lambda *saved: backward(*saved, log_linear)

    return with_gradient(compute, to_positive, z, negatives)


def plain_shared_log_softmax_share(z: Tensor, to_positive: Tensor, negatives: Tensor, kernel: ZonalKernel) -> Tensor:
    """`shared_log_softmax_share` in plain torch."""
    cosines = to_positive, shared_negative_cosines(z, negatives)
    log_positive, log_negatives = (kernel.log_values(z.shape[-1], t).to(z.dtype) for t in cosines)
    return log_softmax_share(log_positive, log_negatives)


def shared_negative_cosines(z: Tensor, negatives: Tensor) -> Tensor:
    """Cosines (K, B, M) of z (K, B, D) with samples of shared negatives (K, G, M, D)."""
    return (z.unflatten(1, (negatives.shape[1], -1)) @ negatives.mT).flatten(1, 2)


def batch_log_totals(z: Tensor, kernel: ZonalKernel) -> Tensor:
    """log sum_m g(z.z_m) over the other anchors of all processes, (K, B), from samples of the anchors (K, B, D)."""
    everyone = gather_batch(z, dim=1)
    samples, count, dim = z.shape
    others, own = everyone.shape[1], process_rank() * count
    rows = max(1, min(count, _TABLE // others))
    together = max(1, min(samples, _TABLE // (rows * others)))

    def totals_of(part: Tensor, everyone: Tensor, first: int) -> Tensor:
        """The sums of some rows. The first of them is number `first` among all anchors, and is not its own negative."""
        with matmul_precision("highest"):
            log_values = kernel.log_values(dim, part @ everyone.mT).to(z.dtype)
        mask = torch.zeros(part.shape[1], others, dtype=z.dtype, device=z.device)
        mask.diagonal(first).fill_(-math.inf)
        return torch.logsumexp(log_values + mask, -1)

    if rows == count and together == samples:
        return totals_of(z, everyone, own)
    # Not slices: the gradient of each would be a tensor of the size of all samples.
    totals = []
    for part, beside in zip(z.split(together), everyone.split(together), strict=True):
        places = range(own, own + count, rows)
        of_rows = [
            checkpoint(totals_of, some, beside, first, use_reentrant=False, preserve_rng_state=False)
            for some, first in zip(part.split(rows, 1), places, strict=True)
        ]
        totals.append(torch.cat(of_rows, 1))
    return torch.cat(totals)
