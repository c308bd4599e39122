"""The base class of all losses, the checks of a batch, and helpers for negatives that come from the batch."""

import math
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from aleator.foundation import (
    matmul_precision,
    process_count,
    process_rank,
    reject,
    require,
    require_equal_batches,
    require_not_compiled,
)
from aleator.losses.soft_targets import check_soft_batch, compared_candidates, soft_cross_entropy
from aleator.posteriors import PosteriorBatch


class ContrastiveLoss(nn.Module):
    """Base class of all losses on posteriors: `loss(anchor, positive, negative)` returns a scalar.

    Every loss compares an anchor with one positive and with M negatives. All three are posteriors of one
    kind, `VonMisesFisher` or `VMFMixture`, in the same dimension, and B is the batch size:

    | argument | batch shape | meaning |
    |---|---|---|
    | `anchor` | `(B,)` | the inputs x |
    | `positive` | `(B,)` | one input x+ for each anchor that matches it |
    | `negative` | `(B, M)` | M random inputs for each anchor |
    | | `(G, M)`, G a divisor of B | shared negatives: row g serves the g-th group of B/G consecutive anchors |
    | | `None` | the other anchors of the batch, on all processes, are the negatives |

    Batch negatives are anchors, not positives, because the theory asks for negatives from the distribution P(x) of the
    data (docs/theory.md), and the anchors follow it.

    Where it is known how likely each pair is to match, `loss.soft(anchor, targets)` takes all of it in place of one
    positive for each anchor.

    To write a loss, derive from this class and define `per_anchor`. This class then checks the shapes, leaves autocast
    so that the loss works in float32 or float64, and averages over the anchors. Two derived classes do more of the
    work: `SimilarityLoss` needs only the similarity of two posteriors, and `SampledLoss` compares samples.

    Examples:
        A triplet loss on the cosines of the modes, for negatives that are passed in:

        >>> import torch, aleator as al
        >>> class Triplet(al.ContrastiveLoss):
        ...     def per_anchor(self, anchor, positive, negative):
        ...         to_positive = (anchor.mu * positive.mu).sum(-1)
        ...         to_negatives = (anchor.mu[:, None] * negative.mu).sum(-1)
        ...         return torch.relu(0.1 + to_negatives - to_positive[:, None]).mean(1)
        >>> anchor = al.VonMisesFisher(torch.eye(3), 10.0)
        >>> negative = al.VonMisesFisher(-torch.eye(3)[:, None], 10.0)
        >>> Triplet()(anchor, anchor, negative)
        tensor(0.)
    """

    group: int | None = None  # number of anchors that are compared with each other, where a loss has groups; None: all

    def forward(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None = None,
        **options: Any,
    ) -> Tensor:
        """Mean loss of a batch. Call the loss itself, as in `loss(anchor, positive)`.

        Args:
            anchor: Posteriors, batch shape (B,).
            positive: Posteriors, batch shape (B,).
            negative: Posteriors, batch shape (B, M) or (G, M); None takes the other anchors. The table above says more.
            **options: Passed on to `per_anchor`. A `SampledLoss` takes `generator` and `noise`.

        Returns:
            The mean of `per_anchor`, a scalar.

        Raises:
            ValueError: If a batch shape does not fit, the dimensions differ, or an anchor has no negatives.
        """
        require_not_compiled("anchor")
        _check_batch(anchor, positive, negative)
        with torch.autocast(anchor.device.type, enabled=False), matmul_precision("highest"):
            recorded = None if options else self._recorded(anchor, positive, negative)
            return self.per_anchor(anchor, positive, negative, **options).mean() if recorded is None else recorded

    def _recorded(
        self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None
    ) -> Tensor | None:
        """The mean loss from a recording on a GPU (cuda_replay.py). None: it is computed as usual."""
        return None

    def per_anchor(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        """Loss of each anchor. Every loss defines this method; `forward` has checked the arguments.

        Args:
            anchor: Posteriors, batch shape (B,).
            positive: Posteriors, batch shape (B,).
            negative: Posteriors, batch shape (B, M) or (G, M), or None.

        Returns:
            Losses, shape (B,).
        """
        raise NotImplementedError

    def soft(
        self,
        anchor: PosteriorBatch,
        targets: Tensor,
        candidates: PosteriorBatch | None = None,
        compared: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Mean loss with soft targets: how likely each candidate is to match, in place of one drawn positive.

        Each row of `targets` is divided by its sum. The loss is its cross-entropy with the shares that the loss gives
        to the candidates, for `SimilarityLoss` the softmax of the similarities. This is the mean over positives that
        are drawn from the row, with the other candidates as negatives (docs/theory.md). An anchor without a match
        among its candidates does not count. The constant log M that some losses subtract is left out.

        Args:
            anchor: Posteriors, batch shape (B,).
            targets: Match weights of anchors and candidates, shape (B, M): numbers of 0 or more, or booleans.
                `aleator.data.match_weights` makes them from labels. On a GPU their values are not checked, because that
                would wait for the device.
            candidates: Posteriors, batch shape (M,), the same for all anchors. Default: the anchors of this process,
                each of them without itself. A loss with a `group` then compares the anchors of one group: M is its
                size, and column j is the j-th anchor of the anchor's own group.
            compared: Booleans, shape (B, M): False leaves a candidate out, such as a copy of the anchor's own input.
                Default: all count.
            **options: Passed on to `log_shares`. `MCInfoNCE` takes `generator` and `noise`.

        Returns:
            A scalar. It is 0 if no anchor has a match.

        Raises:
            ValueError: If a shape does not fit, a weight is negative or not finite, or the loss takes no soft targets.

        Examples:
            Two items of one class, and a third that may be of either class:

            >>> import torch, aleator as al
            >>> anchor = al.VonMisesFisher(torch.eye(3), 10.0)
            >>> labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
            >>> round(al.ExactInfoNCE().soft(anchor, labels @ labels.T).item(), 3)
            0.693
        """
        check_anchor(anchor)
        if candidates is not None:
            _check_posterior("candidates", candidates)
            _check_alike("candidates", candidates, anchor)
            shape = tuple(candidates.batch_shape)
            fits = len(shape) == 1 and shape[0] > 0
            require(fits, "candidates", shape, "expected batch shape (M,)", "pass one list for all anchors")
        elif self.group is not None:
            self._check_group(len(anchor))
        targets = check_soft_batch(anchor, targets, candidates, compared, self.group)
        with torch.autocast(anchor.device.type, enabled=False), matmul_precision("highest"):
            compared = compared_candidates(anchor, candidates, compared, self.group)
            return soft_cross_entropy(self.log_shares(anchor, candidates, compared, **options), targets, compared)

    def log_shares(self, anchor: PosteriorBatch, candidates: PosteriorBatch | None, compared: Tensor | None) -> Tensor:
        """Log of the share that the loss gives to each candidate of each anchor. `soft` has checked the arguments.

        A loss that takes soft targets defines this method.

        Args:
            anchor: Posteriors, batch shape (B,).
            candidates: Posteriors, batch shape (M,); None for the anchors.
            compared: Which candidates count, shape (B, M); None for all.

        Returns:
            Shape (B, M). The shares of the candidates that count sum to 1; the other entries are 0.

        Raises:
            ValueError: If the loss takes no soft targets.
        """
        way_out = "use ExactInfoNCE, MCInfoNCE, InfoNCE or ELK, or define its log_shares"
        return reject("loss", type(self).__name__, "takes no soft targets", way_out)

    def _check_group(self, batch: int) -> None:
        fits = self.group is None or batch % self.group == 0
        way_out = "pass a divisor of the batch size, or leave it out"
        require(fits, "group", self.group, f"does not divide the batch of {batch}", way_out)


def are_own_negatives(negative: PosteriorBatch | None, anchor: PosteriorBatch) -> TypeGuard[PosteriorBatch]:
    """Whether each anchor has negatives of its own, batch shape (B, M), rather than shared or batch negatives."""
    return negative is not None and len(negative) == len(anchor)


def candidates(positive: PosteriorBatch, negative: PosteriorBatch) -> PosteriorBatch:
    """Candidates of each anchor: its positive (B,) first, then its own negatives (B, M); batch shape (B, 1 + M)."""
    return type(positive).cat([positive[:, None], negative], 1)


def negative_count(anchor: PosteriorBatch, negative: PosteriorBatch | None) -> int:
    """Number of negatives of each anchor.

    Args:
        anchor: Posteriors, batch shape (B,).
        negative: Posteriors, batch shape (B, M) or (G, M); None for batch negatives.

    Returns:
        M, or for batch negatives the number of anchors on all processes less one.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.losses import negative_count
        >>> negative_count(al.VonMisesFisher(torch.eye(3), 10.0), None)
        2
    """
    return len(anchor) * process_count() - 1 if negative is None else negative.batch_shape[1]


def self_mask(anchor: PosteriorBatch) -> Tensor:
    """Mask that takes an anchor out of its own batch negatives; add it to the logits of all pairs of anchors.

    Args:
        anchor: Posteriors of this process, batch shape (B,).

    Returns:
        Shape (B, number of anchors on all processes): -inf where an anchor is compared with itself, 0 elsewhere.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.losses import self_mask
        >>> self_mask(al.VonMisesFisher(torch.eye(2), 10.0))
        tensor([[-inf, 0.],
                [0., -inf]])
    """
    return diagonal_mask(anchor, process_count(), process_rank())


def diagonal_mask(rows: PosteriorBatch, parts: int = 1, own: int = 0) -> Tensor:
    """(N, parts * N) for N rows: -inf on the diagonal of part number `own`, 0 elsewhere."""
    size = len(rows)
    mask = torch.zeros(size, size * parts, dtype=rows.dtype, device=rows.device)
    mask.diagonal(own * size).fill_(-math.inf)
    return mask


def _check_batch(anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> None:
    check_anchor(anchor)
    _check_posterior("positive", positive)
    if negative is not None:
        _check_posterior("negative", negative)
    _check_positive(positive, anchor)
    if negative is None:
        _check_batch_negatives(anchor)
    else:
        _check_negative(negative, positive, anchor)


def check_anchor(anchor: PosteriorBatch) -> None:
    """Raise unless these are posteriors of batch shape (B,), B > 0."""
    _check_posterior("anchor", anchor)
    shape = tuple(anchor.batch_shape)
    require(len(shape) == 1, "anchor", shape, "expected batch shape (B,)", "flatten the batch")
    require(shape[0] > 0, "anchor", shape, "an empty batch has no loss", "skip it")


def _check_posterior(name: str, q: PosteriorBatch) -> None:
    is_posterior = isinstance(q, PosteriorBatch)
    require(is_posterior, name, type(q).__name__, "not a posterior", "pass what an Encoder returns")


def _check_alike(name: str, q: PosteriorBatch, anchor: PosteriorBatch) -> None:
    require(q.dim == anchor.dim, name, f"dimension {q.dim}", f"the anchors have {anchor.dim}", "use one encoder")
    problem, way_out = f"the anchors have {anchor.dtype}", "cast one to the other, for example with .float()"
    require(q.dtype == anchor.dtype, name, q.dtype, problem, way_out)


def _check_positive(positive: PosteriorBatch, anchor: PosteriorBatch) -> None:
    shape, expected = tuple(positive.batch_shape), tuple(anchor.batch_shape)
    problem = f"expected batch shape {expected}, one positive per anchor"
    require(shape == expected, "positive", shape, problem, "draw a positive for each anchor")
    _check_alike("positive", positive, anchor)


def _check_negative(negative: PosteriorBatch, positive: PosteriorBatch, anchor: PosteriorBatch) -> None:
    _check_alike("negative", negative, anchor)
    shape, batch = tuple(negative.batch_shape), len(anchor)
    fits = len(shape) == 2 and min(shape) > 0 and batch % shape[0] == 0
    problem = f"expected batch shape ({batch}, M), or (G, M) for G groups of anchors, G a divisor, with M >= 1"
    require(fits, "negative", shape, problem, "pass None to take negatives from the batch")
    if shape[0] == batch:  # they are candidates beside the positive
        kinds = [f"{type(q).__name__} of {q.modes} modes" for q in (negative, positive)]
        require(kinds[0] == kinds[1], "negative", kinds[0], f"the positives are {kinds[1]}", "use one encoder")


def _check_batch_negatives(anchor: PosteriorBatch) -> None:
    alone = len(anchor) * process_count() == 1
    problem = "one item has no negatives in its batch"
    way_out = "use a larger batch or pass negatives; drop_last=True of a DataLoader leaves a smaller last batch out"
    require(not alone, "anchor", tuple(anchor.batch_shape), problem, way_out)
    require_equal_batches(len(anchor), anchor.device)
