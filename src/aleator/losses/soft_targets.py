r"""Soft targets: how likely each candidate is to match, in place of one positive that was drawn.

For an anchor i with candidates j, match weights W_ij >= 0 and shares q_ij that a model gives to its candidates,

    loss_i = - sum_j W_ij / (sum_k W_ik) log q_ij.

This is the mean over j ~ W_i of the loss in which j is the positive and the other candidates are the negatives. Its
minimum over all shares is at q_ij proportional to W_ij (docs/theory.md).
"""

import math

import torch
from torch import Tensor

from aleator.foundation import require, require_type
from aleator.posteriors import PosteriorBatch


def log_shares_of(logits: Tensor, compared: Tensor | None) -> Tensor:
    """Log of the softmax over the candidates that count; 0 where a candidate does not count.

    Args:
        logits: Shape (..., B, M).
        compared: Which candidates count, shape (B, M), or None for all.
    """
    if compared is None:
        return logits.log_softmax(-1)
    # An anchor without any candidate keeps them all here, so that no entry is infinite or undefined.
    kept = compared | ~compared.any(1, keepdim=True)
    return logits.masked_fill(~kept, -math.inf).log_softmax(-1).masked_fill(~compared, 0.0)


def soft_cross_entropy(log_shares: Tensor, targets: Tensor, compared: Tensor | None) -> Tensor:
    """Mean over anchors of the cross-entropy of their match weights and shares, a scalar.

    An anchor without any match among its candidates does not count. If no anchor has one, the mean is 0.

    Args:
        log_shares: Shape (B, M).
        targets: Match weights, shape (B, M).
        compared: Which candidates count, shape (B, M), or None for all.
    """
    weights = targets if compared is None else targets.masked_fill(~compared, 0.0)
    total = weights.sum(1)
    counts = total > 0
    each = -(weights * log_shares).sum(1) / total.masked_fill(~counts, 1.0)
    return each.sum() / counts.sum().clamp_min(1)


def compared_candidates(
    anchor: PosteriorBatch, candidates: PosteriorBatch | None, compared: Tensor | None, group: int | None = None
) -> Tensor | None:
    """Which candidates count, (B, M), or None for all. An anchor is not its own candidate.

    Without candidates M is the size of a group of anchors, which are candidates of each other. None: all anchors.
    """
    if candidates is None:
        others = ~torch.eye(group or len(anchor), dtype=torch.bool, device=anchor.device)
        if group is not None:
            others = others.repeat(len(anchor) // group, 1)
        compared = others if compared is None else compared & others
    return compared


def check_soft_batch(
    anchor: PosteriorBatch,
    targets: Tensor,
    candidates: PosteriorBatch | None,
    compared: Tensor | None,
    group: int | None = None,
) -> Tensor:
    """The targets in the dtype of the posteriors. An error unless targets and mask fit these."""
    count = (group or len(anchor)) if candidates is None else len(candidates)
    return check_targets(anchor, targets, compared, count, "candidate", "pass match weights of all pairs")


def check_targets(
    anchor: PosteriorBatch, targets: Tensor, compared: Tensor | None, columns: int, column: str, way_out: str
) -> Tensor:
    """The targets, which may be booleans or whole numbers too, in the dtype of the anchors.

    An error unless targets and mask have the shape. The values of targets on a GPU are not read.
    """
    shape = (len(anchor), columns)
    problem = f"expected shape {shape}, one row for each anchor and one column for each {column}"
    require_type("targets", targets, Tensor, "pass torch.as_tensor(targets)")
    require(tuple(targets.shape) == shape, "targets", tuple(targets.shape), problem, way_out)
    if compared is not None:
        mask = compared.dtype == torch.bool and tuple(compared.shape) == shape
        require(mask, "compared", compared, f"expected booleans of shape {shape}", "pass None to compare all")
    if targets.device.type == "cpu":
        usable = torch.isfinite(targets) & (targets >= 0)
        require(usable, "targets", targets, "not a finite weight of 0 or more", "pass probabilities to match")
    return targets.to(anchor.dtype)
