"""From a contrastive batch to the scalar loss: which inputs are encoded, and which negatives a phase uses.

A batch is (anchor, positive) or (anchor, positive, negative), or a dict with these names. Inputs are tensors, lists, or
dicts of tensors:

    anchor     B inputs
    positive   B inputs
    negative   (B, M, ...) inputs; (G, M, ...) inputs, shared by groups of B / G anchors; or `SharedNegatives`

Or it is a `SoftBatch`: B items with the match weights of all pairs, for `loss.soft`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import SharedNegatives, SoftBatch
from aleator.encoders import Encoder
from aleator.foundation import require
from aleator.posteriors import PosteriorBatch
from aleator.training.fabric import Uncast
from aleator.training.recipe import MuNegatives, Part

_WITH_LABELS = (
    "with labels pass SoftLabelBatches(inputs, labels, batch_size), or SoftBatch(inputs, match_weights(labels)) "
    "as each batch"
)
_ALIKE = f"give all inputs of a batch one shape and dtype (pad token sequences to one length); {_WITH_LABELS}"
_ROW_TOLERANCE = 1e-3  # of the sum of a row of probabilities


class Objective(nn.Module):
    """A batch -> the scalar loss. Encoder and loss are one module, so that DDP sees all parameters.

    Args:
        encoder: Maps inputs to posteriors.
        loss: Called as loss(anchor, positive, negative), posteriors of shapes (B,), (B,) and (B, M) or (G, M), or None;
            for a `SoftBatch` as loss.soft(anchor, targets, compared=compared).
        part: What the phase trains. In a "mu" phase, kappa gets no gradient.
        mu_negatives: Negatives of a "mu" phase; see `Recipe`.
    """

    def __init__(self, encoder: Encoder, loss: nn.Module, part: Part, mu_negatives: MuNegatives):
        super().__init__()
        self.encoder, self.loss, self.part = encoder, loss, part
        self.rolled = part == "mu" and mu_negatives == "rolled"
        self.looked_at = False  # whether the values of a batch have been looked at, for which a GPU is waited for

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch, a scalar."""
        batch = batch.batch if isinstance(batch, Uncast) else batch
        value = self._soft_loss(batch) if isinstance(batch, SoftBatch) else self._drawn_loss(batch)
        require(value.dim() == 0, "loss", value, "not a scalar", "reduce it to its mean over the batch")
        require(
            value.requires_grad or not torch.is_grad_enabled(),
            "loss",
            type(self.loss).__name__,
            f"does not depend on anything that the phase {self.part!r} trains",
            "choose other phases; a loss that ignores kappa trains mu alone",
        )
        return value

    def _soft_loss(self, batch: SoftBatch) -> Tensor:
        """The loss of a batch with soft targets, in every phase: it has no negatives to choose."""
        soft: Any = getattr(self.loss, "soft", None)
        way_out = "pass a ContrastiveLoss such as ExactInfoNCE"
        require(callable(soft), "loss", type(self.loss).__name__, "takes no soft targets", way_out)
        q = self._posteriors(batch.items)
        with torch.autocast(q.device.type, enabled=False):  # also in losses that are not ours
            return soft(q, batch.targets, compared=batch.compared)

    def _drawn_loss(self, batch: Any) -> Tensor:
        """The loss of a batch of anchors, positives and negatives."""
        anchor, positive, negative = named_parts(batch)
        if not self.looked_at:
            self.looked_at = True
            _require_inputs(anchor, positive)
        if self.rolled:
            negative = None  # not encoded: it is a posterior of another pair
        shared = negative if isinstance(negative, SharedNegatives) else None
        inputs, B, M = joined_inputs(anchor, positive, None if shared else negative)
        if shared:
            inputs = torch.cat([inputs, shared.pool])
        # One call for all inputs: fewer kernels, one set of batch statistics, one forward pass for DDP to watch.
        q = self._posteriors(inputs)
        # Split, not sliced: the backward pass then joins the gradients of the parts in one operation.
        q_anchor, q_positive, q_rest = q.split((B, B, len(q) - 2 * B))
        q_negative = None
        if self.rolled:
            require(B > 1, "batch size", B, "a rolled negative would be the positive", "pass batches of 2 or more")
            q_negative = q_positive.roll(1, 0).unsqueeze(1)  # (B, 1)
        elif shared:
            chosen = q[B:].index_select(0, shared.chosen.flatten())  # from the positives and the pool
            q_negative = chosen.unflatten(0, shared.chosen.shape)  # (B, M)
        elif M:
            q_negative = q_rest.unflatten(0, (-1, M))  # (B, M) or (G, M)
        with torch.autocast(q.device.type, enabled=False):  # also in losses that are not ours
            return self.loss(q_anchor, q_positive, q_negative)

    def _posteriors(self, inputs: Any) -> PosteriorBatch:
        """Posteriors of the inputs. In a "mu" phase, kappa gets no gradient."""
        q = self.encoder(inputs)
        return q.detach_kappa() if self.part == "mu" else q


def some_inputs(batch: Any) -> Any:
    """Inputs of a batch in any of its forms, to show them to the encoder."""
    return batch.items if isinstance(batch, SoftBatch) else named_parts(batch)[0]


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


def _require_inputs(anchor: Any, positive: Any) -> None:
    """Raise if the positives are probabilities of classes, and the anchors are not."""
    if not (isinstance(anchor, Tensor) and isinstance(positive, Tensor)):
        return
    are_labels = _are_probabilities(positive) and not _are_probabilities(anchor)
    problem = "its rows are probabilities and those of the anchors are not, so they look like soft labels"
    way_out = f"{_WITH_LABELS}; with pairs of such inputs pass PairBatches"
    require(not are_labels, "positive", positive, problem, way_out)


def _are_probabilities(rows: Tensor) -> bool:
    """Whether each of several rows sums to 1 and has no negative number."""
    if rows.dim() != 2 or rows.shape[1] < 2 or not rows.is_floating_point():
        return False
    return bool((rows >= 0).all() & ((rows.sum(1) - 1).abs() < _ROW_TOLERANCE).all())


def joined_inputs(anchor: Any, positive: Any, negative: Any) -> tuple[Any, int, int]:
    """All inputs of a batch in one row.

    Args:
        anchor: B inputs.
        positive: B inputs.
        negative: (G, M, ...) inputs, where G divides B, or None.

    Returns:
        The inputs, B + B + G M of them; B; M (0 without negatives).
    """
    for kind in (Mapping, Tensor):
        alike = isinstance(positive, kind) == isinstance(anchor, kind)
        require(alike, "positive", type(positive).__name__, f"the anchors are a {type(anchor).__name__}", _ALIKE)
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
    require(len(positive) == B, "positive", len(positive), f"there are {B} anchors", "pass one positive per anchor")
    require(
        negative is None or (M > 0 and B % len(negative) == 0),
        "negative",
        tuple(negative.shape) if isinstance(negative, torch.Tensor) else negative,
        f"there are {B} anchors",
        "pass negatives of shape (B, M, ...) with M >= 1, (G, M, ...) for G groups of anchors, or None",
    )
    if not isinstance(anchor, torch.Tensor):
        is_array = isinstance(anchor, np.ndarray)
        require(not is_array, "batch", type(anchor).__name__, "an encoder takes tensors", "use torch.as_tensor")
        return [*anchor, *positive, *(item for row in negative or () for item in row)], B, M
    parts = [anchor, positive] if negative is None else [anchor, positive, negative.flatten(0, 1)]
    for name, part in zip(("positive", "negative"), parts[1:], strict=False):
        problem = f"one anchor has shape {tuple(anchor.shape[1:])}"
        require(part.shape[1:] == anchor.shape[1:], name, tuple(part.shape[1:]), problem, _ALIKE)
        require(part.dtype == anchor.dtype, name, part.dtype, f"the anchors have {anchor.dtype}", _ALIKE)
    return torch.cat(parts), B, M
