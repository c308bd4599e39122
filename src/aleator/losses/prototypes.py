r"""Contrast with classes: every class has a posterior of its own, and an input is compared with all of them.

A class c with share P(c) is one more input, with a posterior q_c. By Bayes' rule

    P(c | x) = P(c) r(x, c) / sum_c' P(c') r(x, c'),

where r(x, c) is the expected positivity of the posteriors of x and of the class (`matching/positivity.py`). The loss is
the cross-entropy of this with the labels of x, hard or soft. The posteriors of the classes are learned with the
encoder. A batch of B inputs has B C comparisons, not B^2, and each input meets every class in every step. So a network
learns as fast as with a softmax layer, and learns posteriors (Movshovitz-Attias et al. 2017 do this for points).

Classes alone do not say how sure an input between two classes is: there r(x, c) = r(x, c') for any kappa. The pairs of
a batch do. So the soft loss of all pairs (soft_targets.py) can be added. The match weight of a pair is the probability
that both inputs are of one class.

Votes say more: how often two people agree who see the same input. For label rows p that is sum_c p_c^2. The model says
it with r(x, x), which grows with kappa, and with the share of matches P(m) = sum_c P(c)^2 among independent inputs:

    logit P(agree | x) = log r(x, x) + logit P(m).

The cross-entropy of the two can be added. It separates an input that divides people from one that the network cannot
read: both have P(c | x) between the classes, but only the first needs a small kappa.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.foundation import is_whole, matmul_precision, reject, require, require_at_least
from aleator.losses.base import ContrastiveLoss, check_anchor
from aleator.losses.soft_targets import check_targets, compared_candidates, log_shares_of, soft_cross_entropy
from aleator.matching import VMFKernel, ZonalKernel, check_kernel, log_positivity, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch, VonMisesFisher

_FIRST_KAPPA = 4.0  # of a class before training, in units of D: classes are surer than inputs


class PrototypeLoss(ContrastiveLoss):
    """Cross-entropy of labels with the label probabilities that learned class posteriors give.

    `fit` calls it with the batches of `LabelRowBatches`.

    Args:
        dim: D, the dimension of the posteriors.
        shares: Share of each class among the inputs, C positive numbers. They are scaled to sum to 1.
        kernel: What counts as a match. Default: `VMFKernel()`.
        pairs: Weight of the loss of all pairs of the batch. 0 compares inputs with classes only.
        terms: Number of terms of the series. Default: as many as the kernel needs.
        most_paired: Number of inputs of a batch that are compared with each other, the first ones. The cost of pairs
            grows with its square. Default: all.
        agreement: Weight of the loss of agreement: whether two labels of the same input are equal. It needs soft labels
            that are people's votes or their shares. Hard labels always agree, which says nothing about an input.

    Raises:
        ValueError: If there are fewer than two classes, or a share is not positive, or a weight is negative.

    Examples:
        >>> import torch, aleator as al
        >>> _ = torch.manual_seed(0)
        >>> loss = al.PrototypeLoss(dim=3, shares=[0.5, 0.5])
        >>> q = al.VonMisesFisher(torch.eye(3), 10.0)
        >>> [round(total, 4) for total in loss.log_probabilities(q).exp().sum(1).tolist()]
        [1.0, 1.0, 1.0]
        >>> loss.soft(q, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])).shape
        torch.Size([])
    """

    log_shares_of_classes: Tensor

    def __init__(
        self,
        dim: int,
        shares: Any,
        kernel: ZonalKernel | None = None,
        pairs: float = 0.0,
        terms: int | None = None,
        agreement: float = 0.0,
        most_paired: int | None = None,
    ):
        super().__init__()
        require_at_least("pairs", pairs, 0, "pass 0 to compare with classes only")
        require_at_least("agreement", agreement, 0, "pass 0 for hard labels")
        shares = torch.as_tensor(shares, dtype=torch.float64)
        way_out = "pass the number of items of each class"
        enough = shares.dim() == 1 and len(shares) >= 2
        require(enough, "shares", tuple(shares.shape), "not the shares of two classes or more", way_out)
        require((shares > 0) & shares.isfinite(), "shares", shares, "not positive", way_out)
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())
        if most_paired is not None:
            way_out = "pass None to compare all inputs of a batch"
            require(is_whole(most_paired, 2), "most_paired", most_paired, "not a whole number from 2 on", way_out)
        require(is_whole(dim, 2), "dim", dim, "not a whole number from 2 on", "pass the dimension of the posteriors")
        self.pairs, self.terms, self.agreement, self.most_paired = pairs, terms, agreement, most_paired
        self.direction = nn.Parameter(_first_directions(len(shares), dim))
        self.log_kappa = nn.Parameter(torch.full((len(shares),), math.log(_FIRST_KAPPA * dim)))
        self.register_buffer("log_shares_of_classes", (shares / shares.sum()).log().float())

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the loss."""
        return self.terms is not None or self.kernel.cache_key() is not None

    @property
    def prototypes(self) -> VonMisesFisher:
        """Posteriors of the classes, batch shape (C,)."""
        with torch.autocast(self.direction.device.type, enabled=False):
            return VonMisesFisher(F.normalize(self.direction, dim=-1), self.log_kappa.exp(), validate_args=False)

    def log_probabilities(self, q: PosteriorBatch) -> Tensor:
        """Log of the probability of each class.

        Args:
            q: Posteriors of inputs, batch shape (B,).

        Returns:
            Shape (B, C). The probabilities of each row sum to 1.
        """
        log_r = pairwise_log_positivity(q, self.prototypes, self.kernel, self.terms)
        return (log_r + self.log_shares_of_classes).log_softmax(1)

    def per_anchor(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        way_out = "call its soft with label rows, or train on LabelRowBatches"
        return reject("loss", "PrototypeLoss", "compares inputs with classes, not with positives", way_out)

    def soft(
        self,
        anchor: PosteriorBatch,
        targets: Tensor,
        candidates: PosteriorBatch | None = None,
        compared: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Mean cross-entropy of label rows with the probabilities of the classes.

        Args:
            anchor: Posteriors of inputs, batch shape (B,).
            targets: Label rows, shape (B, C): probabilities of the classes.
            candidates: Not used: the candidates are the classes.
            compared: Booleans, shape (B, C): False leaves a class out.
            **options: Not used.

        Returns:
            A scalar.

        Raises:
            ValueError: If `targets` does not have a column for each class, or holds a number that is negative or not
                finite.
        """
        check_anchor(anchor)
        way_out = "pass a row of labels for each input"
        targets = check_targets(anchor, targets, compared, len(self.direction), "class", way_out)
        with torch.autocast(anchor.device.type, enabled=False), matmul_precision("highest"):
            value = soft_cross_entropy(self.log_probabilities(anchor), targets, compared)
            if self.pairs:
                few, rows = anchor[: self.most_paired], targets[: self.most_paired]
                others = compared_candidates(few, None, None)
                log_r = pairwise_log_positivity(few, few, self.kernel, self.terms)
                same_class = rows @ rows.mT
                value = value + self.pairs * soft_cross_entropy(log_shares_of(log_r, others), same_class, others)
            if self.agreement:
                log_r_self = log_positivity(anchor, anchor, self.kernel, self.terms)
                log_matches = (2 * self.log_shares_of_classes).logsumexp(0)
                log_odds = log_r_self + log_matches - (-log_matches.exp()).log1p()
                agree = targets.square().sum(1).clamp(max=1.0)
                value = value + self.agreement * F.binary_cross_entropy_with_logits(log_odds, agree)
            return value


def _first_directions(classes: int, dim: int) -> Tensor:
    """Directions (C, D) before training: the corners of a regular simplex, turned at random; random for C > D + 1."""
    random = torch.randn(max(classes, dim), dim)
    if classes > dim + 1:
        return F.normalize(random, dim=-1)
    corners = torch.eye(classes) - 1 / classes  # they span C - 1 dimensions
    axes, _, _ = torch.linalg.svd(corners)
    turn = torch.linalg.qr(random[:dim]).Q
    return F.normalize(axes[:, : classes - 1] @ turn[: classes - 1], dim=-1)
