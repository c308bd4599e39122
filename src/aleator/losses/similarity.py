"""Losses that need only the similarity of two posteriors: InfoNCE, ExactInfoNCE, ELK."""

import math
from functools import partial
from typing import ClassVar, get_args

import torch
from torch import Tensor

from aleator.foundation import gather_batch, is_whole, process_count, require, require_one_of
from aleator.losses.base import (
    ContrastiveLoss,
    are_own_negatives,
    candidates,
    diagonal_mask,
    negative_count,
    self_mask,
)
from aleator.losses.cuda_replay import recorded_mean
from aleator.losses.distributed_totals import LARGEST_TABLE, PAIRS, log_totals_in_parts
from aleator.losses.soft_targets import log_shares_of
from aleator.matching import (
    DEFAULT_KAPPA_POS,
    NegativeLaw,
    VMFKernel,
    ZonalKernel,
    check_kernel,
    log_bilinear,
    log_match_odds,
    log_positivity,
    log_total_positivity,
    pairwise_log_positivity,
    sums_in_tiles,
)
from aleator.posteriors import PosteriorBatch, VonMisesFisher
from aleator.special import log_sphere_area


class SimilarityLoss(ContrastiveLoss):
    """Base class of InfoNCE losses: cross-entropy of naming the positive among the candidates of its anchor.

    For a similarity s of two posteriors the loss of an anchor x with positive x+ and negatives x_1, ..., x_M is

        -log( e^s(x, x+) / (e^s(x, x+) + sum_m e^s(x, x_m)) ).

    A derived class defines `similarity`. `ContrastiveLoss` describes the arguments of the call and their shapes.

    Attributes:
        group: Batch negatives only. Number of consecutive anchors that serve as negatives of each other; a divisor of
            the batch size. None: all anchors of the batch, on all processes.

    Examples:
        The inner product of the two means as similarity, so that uncertain posteriors are less similar:

        >>> import torch, aleator as al
        >>> from aleator.losses import SimilarityLoss
        >>> class MeanCosine(SimilarityLoss):
        ...     def similarity(self, q1, q2):
        ...         return 5.0 * (q1.mean * q2.mean).sum(-1)
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> round(MeanCosine()(anchor, anchor).item(), 3)
        0.075
    """

    # Whether the similarity depends on nothing but the posteriors and the parameters of the loss. Batch negatives of
    # several processes, or very many of them, are then compared part by part (distributed_totals.py).
    _in_parts: ClassVar[bool] = False

    def similarity(self, q1: PosteriorBatch, q2: PosteriorBatch) -> Tensor:
        """Similarity s of two posteriors: the logit of the softmax.

        Args:
            q1: Posteriors, any batch shape.
            q2: Posteriors; the batch shapes broadcast.

        Returns:
            Similarities in the broadcast batch shape.
        """
        raise NotImplementedError

    def self_similarity(self, q: PosteriorBatch) -> Tensor:
        """Similarity of every posterior of a batch with every posterior of the same batch.

        Override it where symmetry saves work.

        Args:
            q: Posteriors, batch shape (B,).

        Returns:
            Similarities, shape (B, B).
        """
        return self.similarity(q[:, None], q[None, :])

    def per_anchor(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        if are_own_negatives(negative, anchor):  # one call for all candidates
            logits = self.similarity(anchor[:, None], candidates(positive, negative))
            return torch.logsumexp(logits, 1) - logits[:, 0]
        if negative is None:
            self._check_group(len(anchor))
        to_positive = self.similarity(anchor, positive)
        many = process_count() > 1 or len(anchor) ** 2 > LARGEST_TABLE
        if negative is None and self.group is None and self._in_parts and many:
            rows = max(1, PAIRS // len(anchor))
            total = log_totals_in_parts(anchor, self._part_of_table, rows, self.parameters())
            return torch.nn.functional.softplus(total - to_positive).to(anchor.dtype)
        to_negatives = self._negative_similarities(anchor, negative)
        return torch.logsumexp(torch.cat([to_positive[:, None], to_negatives], 1), 1) - to_positive

    def log_shares(self, anchor: PosteriorBatch, candidates: PosteriorBatch | None, compared: Tensor | None) -> Tensor:
        if candidates is None and self.group is not None:
            return log_shares_of(self._group_similarities(anchor, self.group).flatten(0, 1), compared)
        if candidates is None:
            return log_shares_of(self.self_similarity(anchor), compared)
        return log_shares_of(self.similarity(anchor[:, None], candidates[None, :]), compared)

    def _negative_similarities(self, anchor: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        """Similarities with shared or batch negatives, (B, M); -inf where an anchor is compared with itself."""
        if negative is not None and len(negative) == 1:
            return self.similarity(anchor[:, None], negative)
        if negative is not None:
            groups = anchor.unflatten(0, (len(negative), -1))
            return self.similarity(groups[:, :, None], negative[:, None, :]).flatten(0, 1)
        if self.group is not None:
            logits = self._group_similarities(anchor, self.group)
            return _without(diagonal_mask(anchor[: self.group]), logits).flatten(0, 1)
        if process_count() == 1:
            return _without(self_mask(anchor), self.self_similarity(anchor))
        everyone = anchor.map_tensors(gather_batch)
        return _without(self_mask(anchor), self.similarity(anchor[:, None], everyone[None, :]))

    def _group_similarities(self, anchor: PosteriorBatch, group: int) -> Tensor:
        """Similarities of the anchors of each group with each other, (B / group, group, group)."""
        groups = anchor.unflatten(0, (-1, group))
        return self.similarity(groups[:, :, None], groups[:, None, :])

    def _part_of_table(self, rows: PosteriorBatch, block: PosteriorBatch, first: int | None) -> Tensor:
        """log sum_j exp s of rows with a block, a `Part` of distributed_totals.py."""
        table = self.similarity(rows[:, None], block[None, :])
        if first is not None:
            themselves = torch.zeros_like(table, dtype=torch.bool)
            themselves.diagonal(first).fill_(True)
            table = table.masked_fill(themselves, -math.inf)
        return torch.logsumexp(table, 1)


def _without(mask: Tensor, table: Tensor) -> Tensor:
    """-inf where a mask says so. Not their sum: that of +inf, as of a point with itself, and -inf would be NaN."""
    return table.masked_fill(mask < 0, -math.inf)


class InfoNCE(SimilarityLoss):
    """InfoNCE on the modes of the posteriors (van den Oord et al. 2018): s(x, x') = kappa_pos mu.mu'.

    The loss does not depend on kappa, so it learns points rather than posteriors. `SimilarityLoss` has the formula. For
    mixtures exp s is the mean over pairs of components, by their weights.

    Args:
        kappa_pos: Inverse temperature.
        requires_grad: Whether kappa_pos is learned.

    Examples:
        >>> import torch, aleator as al
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> round(al.InfoNCE(kappa_pos=1.0)(anchor, anchor).item(), 3)
        0.744
    """

    _in_parts = True

    def __init__(self, kappa_pos: float = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__()
        self.kernel = _finite_kernel(kappa_pos, requires_grad)

    def similarity(self, q1: PosteriorBatch, q2: PosteriorBatch) -> Tensor:
        return log_bilinear(q1, q2, self._component_similarity)

    def _component_similarity(self, q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
        # In float64, so that a GPU's TF32 cannot round the cosines to ten bits.
        return self.kernel.log_values(q1.dim, _cosine(q1.mu.double(), q2.mu.double())).to(q1.mu.dtype)


class ExactInfoNCE(SimilarityLoss):
    """InfoNCE with expected positivity in closed form: s(x, x') = log r(x, x'), see `log_positivity`.

    This is the paper's loss without Monte Carlo: no bias of a finite number of samples, and a lower cost. The true
    posteriors minimise it, for any number of negatives (docs/theory.md), if `rule` is the law of the negatives. With
    rejected negatives the similarity is the log odds of a match, log rho - log(1 - rho), where rho is the probability
    that the two inputs match. `SimilarityLoss` has the formula. Its value is not to be compared with `MCInfoNCE`, which
    subtracts log M: for points, `ExactInfoNCE` is `MCInfoNCE` + log M.

    Args:
        kernel: What counts as a match. Default: `VMFKernel()`. Use `AcceptanceKernel` for pairs that were accepted by
            the paper's rejection rule.
        terms: Number of terms of the series. Default: as many as the posteriors need, decided for each tile of pairs
            with shared and batch negatives. Other pairs on a GPU take as many as any posterior needs, because a look at
            kappa would wait for the device.
        group: Number of consecutive anchors that share their batch negatives, a divisor of the batch size. Default:
            all. The cost grows with `group`. The posteriors hardly improve once it is several times the largest r
            (docs/understanding.md).
        rule: Law of the negatives. "marginal": from P(x), as the other anchors of a batch are. "rejected-pair" or
            "rejected-latent": candidates that did not match, as `GenerativeProcess.batches` and `LabelledBatches` draw
            them. The values of the kernel are then probabilities of a match.

    Raises:
        ValueError: If `kernel` is not a kernel, `group` is less than 2 or `rule` is not known. In a call, if the
            negatives are rejected ones and none are given: the other anchors of a batch are not rejected ones.

    Examples:
        >>> import torch, aleator as al
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> loss = al.ExactInfoNCE(al.VMFKernel(20.0))
        >>> round(loss(anchor, anchor).item(), 3)
        0.042
        >>> loss(anchor, anchor).dtype
        torch.float32
    """

    _in_parts = True

    def __init__(
        self,
        kernel: ZonalKernel | None = None,
        terms: int | None = None,
        group: int | None = None,
        rule: NegativeLaw = "marginal",
    ):
        super().__init__()
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())
        require_one_of("rule", rule, get_args(NegativeLaw))
        self.rule = rule
        several = group is None or is_whole(group, 2)
        problem = "not a whole number of 2 or more, and an anchor alone has no negatives"
        require(several, "group", group, problem, "pass for example 128, or None for the whole batch")
        self.terms, self.group = terms, group

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the loss: True unless a step needs the host.

        The host counts the terms of a learned kernel, and computes its coefficients unless it is a `VMFKernel`.
        """
        on_device = self.terms is not None and isinstance(self.kernel, VMFKernel)
        return on_device or self.kernel.cache_key() is not None

    def similarity(self, q1: PosteriorBatch, q2: PosteriorBatch) -> Tensor:
        compare = log_positivity if self.rule == "marginal" else log_match_odds
        return compare(q1, q2, self.kernel, self.terms)

    def self_similarity(self, q: PosteriorBatch) -> Tensor:
        if self.rule != "marginal":
            return super().self_similarity(q)
        return pairwise_log_positivity(q, q, self.kernel, self.terms)

    def per_anchor(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        given = negative is not None or self.rule == "marginal"
        problem = "the other anchors of a batch follow P(x) and are not rejected ones"
        require(given, "negative", None, f"rule is {self.rule!r}, and {problem}", 'pass negatives, or rule="marginal"')
        if are_own_negatives(negative, anchor) or not self._streams(anchor, positive, negative):
            return super().per_anchor(anchor, positive, negative)
        if negative is None:
            self._check_group(len(anchor))
        to_positive = self.similarity(anchor, positive).double()
        to_negatives = self._log_total(anchor, negative)
        return torch.nn.functional.softplus(to_negatives - to_positive).to(anchor.dtype)

    def _recorded(
        self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None
    ) -> Tensor | None:
        # A derived class may depend on more than these settings.
        if type(self) is not ExactInfoNCE or not self.capturable or process_count() > 1:
            return None
        if are_own_negatives(negative, anchor) or not self._streams(anchor, positive, negative):
            return None
        settings = self.kernel, self.kernel.cache_key(), self.terms, self.group
        posteriors = [anchor, positive] if negative is None else [anchor, positive, negative]
        return recorded_mean(settings, self._mean, posteriors)

    def _mean(self, posteriors: list[VonMisesFisher]) -> Tensor:
        """Mean loss of anchors, positives and any negatives."""
        anchor, positive, *negative = posteriors
        return self.per_anchor(anchor, positive, negative[0] if negative else None).mean()

    def _streams(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> bool:
        """Whether pairs with shared or batch negatives are summed in tiles: the same result in less time and memory."""
        others = [positive] if negative is None else [positive, negative]
        alike = all(q.dtype == anchor.dtype for q in others)
        return self.rule == "marginal" and alike and sums_in_tiles(self.kernel, anchor)

    def _log_total(self, anchor: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        """log sum_m r(x, x_m) over shared or batch negatives, (B,), float64."""
        total = partial(log_total_positivity, kernel=self.kernel, terms=self.terms)
        if negative is not None:
            return total(anchor.unflatten(0, (len(negative), -1)), negative).flatten()
        if self.group is not None:
            return total(anchor.unflatten(0, (-1, self.group)), None).flatten()
        if process_count() == 1:
            return total(anchor, None)

        def part(rows: PosteriorBatch, block: PosteriorBatch, first: int | None) -> Tensor:
            return total(rows, block if first is None else None)

        return log_totals_in_parts(anchor, part, len(anchor), self.parameters())

    def log_shares(self, anchor: PosteriorBatch, candidates: PosteriorBatch | None, compared: Tensor | None) -> Tensor:
        problem = "soft targets compare candidates from P(x)"
        require(self.rule == "marginal", "rule", self.rule, problem, 'pass rule="marginal"')
        return super().log_shares(anchor, candidates, compared)


class ELK(SimilarityLoss):
    """Expected likelihood kernel in InfoNCE (Kirchhof et al. 2022): s(x, x') = kappa_pos log int q q' dz.

    q and q' are the densities of the two posteriors. As in the paper's appendix B the denominator of the softmax is
    divided by the number of negatives M, which shifts the formula of `SimilarityLoss` by -log M.

    Args:
        kappa_pos: Factor of the similarity.
        requires_grad: Whether kappa_pos is learned.

    Examples:
        >>> import torch, aleator as al
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> round(al.ELK(kappa_pos=1.0)(anchor, anchor).item(), 3)
        -1.084
    """

    _in_parts = True

    def __init__(self, kappa_pos: float = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__()
        self.scale = _finite_kernel(kappa_pos, requires_grad)
        self.kernel = VMFKernel(math.inf)

    def similarity(self, q1: PosteriorBatch, q2: PosteriorBatch) -> Tensor:
        likelihood = log_positivity(q1, q2, self.kernel) - log_sphere_area(q1.dim)
        return self.scale.concentration(likelihood) * likelihood

    def per_anchor(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch | None) -> Tensor:
        if anchor.device.type == "cpu":  # to ask a GPU would wait for it
            points = [torch.isinf(q.components.kappa).any(-1) for q in (anchor, positive)]
            way_out = "bound kappa, as the encoders of this library do"
            require(~(points[0] & points[1]), "positive", "kappa = inf", "two point masses have no likelihood", way_out)
        return super().per_anchor(anchor, positive, negative) - math.log(negative_count(anchor, negative))


def _finite_kernel(kappa_pos: float, requires_grad: bool) -> VMFKernel:
    """The kernel whose kappa_pos multiplies similarities."""
    kernel = VMFKernel(kappa_pos, requires_grad)
    problem = "infinite similarities have no loss"
    require(not kernel.is_identity, "kappa_pos", kappa_pos, problem, "pass for example 20.0")
    return kernel


def _cosine(mu1: Tensor, mu2: Tensor) -> Tensor:
    """Inner products over the last dimension; one matrix product where every row is compared with every row."""
    if mu1.dim() == mu2.dim() == 3 and mu1.shape[1] == 1 and mu2.shape[0] == 1:
        return mu1[:, 0] @ mu2[0].mT
    return (mu1 * mu2).sum(-1)
