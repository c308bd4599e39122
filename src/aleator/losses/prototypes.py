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
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.foundation import matmul_precision, require, require_at_least
from aleator.losses.base import ContrastiveLoss
from aleator.losses.soft_targets import compared_candidates, log_shares_of, soft_cross_entropy
from aleator.matching import VMFKernel, ZonalKernel, check_kernel, pairwise_log_positivity
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

    Raises:
        ValueError: If there are fewer than two classes, or a share is not positive, or `pairs` is negative.

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
    ):
        super().__init__()
        require_at_least("pairs", pairs, 0, "pass 0 to compare with classes only")
        shares = torch.as_tensor(shares, dtype=torch.float64)
        way_out = "pass the number of items of each class"
        enough = shares.dim() == 1 and len(shares) >= 2
        require(enough, "shares", tuple(shares.shape), "not the shares of two classes or more", way_out)
        require((shares > 0) & shares.isfinite(), "shares", shares, "not positive", way_out)
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())
        self.pairs, self.terms = pairs, terms
        self.direction = nn.Parameter(F.normalize(torch.randn(len(shares), dim), dim=-1))
        self.log_kappa = nn.Parameter(torch.full((len(shares),), math.log(_FIRST_KAPPA * dim)))
        self.register_buffer("log_shares_of_classes", (shares / shares.sum()).log().float())

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the loss."""
        return self.terms is not None or self.kernel.cache_key() is not None

    @property
    def prototypes(self) -> VonMisesFisher:
        """Posteriors of the classes, batch shape (C,)."""
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
            ValueError: If `targets` does not have a column for each class.
        """
        shape, expected = tuple(targets.shape), (len(anchor), len(self.direction))
        require(
            shape == expected, "targets", shape, f"expected shape {expected}", "pass a row of labels for each input"
        )
        with torch.autocast(anchor.device.type, enabled=False), matmul_precision("highest"):
            value = soft_cross_entropy(self.log_probabilities(anchor), targets, compared)
            if self.pairs:
                others = compared_candidates(anchor, None, None)
                log_r = pairwise_log_positivity(anchor, anchor, self.kernel, self.terms)
                same_class = targets @ targets.mT
                value = value + self.pairs * soft_cross_entropy(log_shares_of(log_r, others), same_class, others)
            return value
