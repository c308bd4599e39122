"""A contrastive batch -> the scalar loss: which inputs are encoded, and what each phase of training sees.

A batch is (anchor, positive) or (anchor, positive, negative), or a dict with those names. Anchor and
positive hold B inputs each, negative (B, M, ...) inputs, (G, M, ...) that groups of anchors share, or
`SharedNegatives`; inputs are tensors, lists, or dicts of tensors.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aleator.data import SharedNegatives
from aleator.encoders import Encoder
from aleator.foundation import require
from aleator.posteriors import VonMisesFisher


class Objective(nn.Module):
    """A batch -> the scalar loss. Encoder and loss are one module, so that DDP sees all that learns."""

    def __init__(self, encoder: Encoder, loss: nn.Module, part: str, mu_negatives: str):
        super().__init__()
        self.encoder, self.loss, self.part = encoder, loss, part
        self.rolled = part == "mu" and mu_negatives == "rolled"

    def forward(self, batch: Any) -> Tensor:
        anchor, positive, negative = named_parts(batch)
        shared = negative if isinstance(negative, SharedNegatives) and not self.rolled else None
        inputs, B, M = joined_inputs(anchor, positive, None if self.rolled or shared else negative)
        if shared:
            inputs = torch.cat([inputs, shared.pool])
        # One call for all inputs: fewer kernels, one set of batch statistics, one forward pass for DDP to
        # watch.
        q = self.encoder(inputs)
        if self.part == "mu":
            q = VonMisesFisher(q.mu, q.kappa.detach(), validate_args=False)
        # Split, not sliced: the backward pass then joins the parts' gradients at once.
        q_anchor, q_positive, q_rest = q.split((B, B, len(q) - 2 * B))
        q_negative = None
        if self.rolled:
            require(B > 1, "batch size", B, "a rolled negative would be the positive", "pass batches of 2 or more")
            q_negative = q_positive.roll(1, 0).unsqueeze(1)
        elif shared:
            q_negative = q[B:].index_select(0, shared.chosen.flatten()).unflatten(0, shared.chosen.shape)
        elif M:
            q_negative = q_rest.unflatten(0, (-1, M))
        value = self.loss(q_anchor, q_positive, q_negative)
        require(value.dim() == 0, "loss", value, "not a scalar", "reduce it to its mean over the batch")
        require(
            value.requires_grad or not torch.is_grad_enabled(),
            "loss",
            type(self.loss).__name__,
            f"does not depend on anything that the phase {self.part!r} trains",
            "choose other phases; a loss that ignores kappa trains mu alone",
        )
        return value


def named_parts(batch: Any) -> tuple[Any, Any, Any]:
    """(anchor, positive, negative or None) of a batch in any of its forms."""
    if isinstance(batch, Mapping):
        unknown = set(batch) - {"anchor", "positive", "negative"}
        require(
            {"anchor", "positive"} <= set(batch) and not unknown,
            "batch",
            sorted(batch),
            "not the names of its parts",
            'pass {"anchor": ..., "positive": ...}, and "negative" if there are any',
        )
        return batch["anchor"], batch["positive"], batch.get("negative")
    require(
        isinstance(batch, list | tuple) and len(batch) in (2, 3),
        "batch",
        type(batch).__name__,
        "not two or three parts",
        "pass (anchor, positive) or (anchor, positive, negative)",
    )
    return (*batch, None) if len(batch) == 2 else tuple(batch)


def joined_inputs(anchor: Any, positive: Any, negative: Any) -> tuple[Any, int, int]:
    """(all inputs in one row of B + B + G M, B, M); negative (G, M, ...), G a divisor of B, or None."""
    if isinstance(anchor, Mapping):
        rows = {
            key: joined_inputs(anchor[key], positive[key], None if negative is None else negative[key])
            for key in anchor
        }
        _, B, M = next(iter(rows.values()))
        return {key: row for key, (row, _, _) in rows.items()}, B, M
    B = len(anchor)
    M = 0 if negative is None else len(negative[0]) if len(negative) else 0
    require(B > 0, "batch size", B, "an empty batch", "pass at least one pair")
    require(
        len(positive) == B,
        "positive",
        len(positive),
        f"there are {B} anchors",
        "pass one positive per anchor",
    )
    require(
        negative is None or (M > 0 and B % len(negative) == 0),
        "negative",
        tuple(negative.shape) if isinstance(negative, torch.Tensor) else negative,
        f"there are {B} anchors",
        "pass negatives of shape (B, M, ...) with M >= 1, (G, M, ...) for G groups of anchors, or None",
    )
    if not isinstance(anchor, torch.Tensor):
        return [*anchor, *positive, *(item for row in negative or () for item in row)], B, M
    parts = [anchor, positive] if negative is None else [anchor, positive, negative.flatten(0, 1)]
    for name, part in zip(("positive", "negative"), parts[1:], strict=False):
        require(
            part.shape[1:] == anchor.shape[1:],
            name,
            tuple(part.shape[1:]),
            f"one anchor has shape {tuple(anchor.shape[1:])}",
            "give all inputs of a batch one shape (pad token sequences to one length)",
        )
    return torch.cat(parts), B, M
