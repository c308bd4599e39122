"""Losses on samples of the posteriors: MCInfoNCE, HIB."""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from aleator.foundation import gather_batch, require, require_count
from aleator.losses.base import ContrastiveLoss, are_own_negatives, candidates, negative_count, self_mask
from aleator.losses.mean_share import log_mean_share, share_among_average
from aleator.losses.mean_sigmoid import log_mean_sigmoid
from aleator.losses.sampled_cosines import sampled_cosines
from aleator.losses.soft_targets import log_shares_of
from aleator.losses.softmax_share import (
    batch_log_totals,
    candidate_log_softmax_share,
    log_softmax_share,
    shared_log_softmax_share,
    shared_negative_cosines,
)
from aleator.losses.weighted_samples import all_cosines, log_mean, weighted_cosines, weighted_samples
from aleator.matching import VMFKernel, ZonalKernel, check_kernel
from aleator.posteriors import PosteriorBatch, VonMisesFisher

Noise = tuple[Tensor, Tensor, Tensor | None]  # of anchor, positive and negative


class SampledLoss(ContrastiveLoss):
    """Base class of losses that compare K samples of each posterior.

    A derived class defines `per_anchor` with the two additional arguments `generator` and `noise`, and gets the cosines
    of the samples from `cosines`. `ContrastiveLoss` describes the other arguments and their shapes.

    Args:
        samples: Number K of samples of each posterior.

    Raises:
        ValueError: If `samples` is not a positive integer.

    Examples:
        A hinge on the sampled cosines, for negatives that are passed in:

        >>> import torch, aleator as al
        >>> from aleator.losses import SampledLoss
        >>> class SampledHinge(SampledLoss):
        ...     def per_anchor(self, anchor, positive, negative, generator=None, noise=None):
        ...         to_positive, to_negatives = self.cosines(anchor, positive, negative, generator, noise)
        ...         return torch.relu(0.1 + to_negatives - to_positive[..., None]).mean((0, 2))
        >>> anchor = al.VonMisesFisher(torch.eye(3), 1e6)
        >>> negative = al.VonMisesFisher(-torch.eye(3)[:, None], 1e6)
        >>> SampledHinge(samples=4)(anchor, anchor, negative)
        tensor(0.)
    """

    def __init__(self, samples: int):
        super().__init__()
        require_count("samples", samples, "pass 16")
        self.samples = samples

    def per_anchor(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """Loss of each anchor. Every sampled loss defines this method; `forward` has checked the arguments.

        Args:
            anchor: Posteriors, batch shape (B,).
            positive: Posteriors, batch shape (B,).
            negative: Posteriors, batch shape (B, M) or (G, M), or None.
            generator: Source of randomness. Default: torch's global generator.
            noise: Standard normal noise of the samples of anchor (K, B, D), positive (K, B, D) and negative
                (K, B, M, D) or (K, G, M, D), or None. Makes the loss deterministic. Default: drawn from `generator`.
                For mixtures of C components each has a dimension C before the last.

        Returns:
            Losses, shape (B,).
        """
        raise NotImplementedError

    def cosines(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cosines of each anchor's samples with the samples of its positive and its negatives.

        Args:
            anchor: Posteriors, batch shape (B,).
            positive: Posteriors, batch shape (B,).
            negative: Posteriors, batch shape (B, M) or (G, M), or None.
            generator: As in `per_anchor`.
            noise: As in `per_anchor`.

        Returns:
            Cosines with the positives, shape (K, B), and with the negatives, shape (K, B, M). Sample k is compared
            with sample k. For batch negatives M counts all anchors, including the anchor itself; see `self_mask`.
        """
        draw = _Draw(self.samples, generator, noise)
        z = draw.anchor_samples(anchor)
        if are_own_negatives(negative, anchor):
            cosines = draw.candidate_cosines(z, positive, negative)
            to_positive, to_negatives = cosines.split((1, negative.batch_shape[1]), -1)
            return to_positive.squeeze(-1), to_negatives
        to_positive = draw.positive_cosines(z, positive)
        if negative is None:
            return to_positive, _batch_cosines(z)
        return to_positive, shared_negative_cosines(z, draw.negative_samples(negative))


class MCInfoNCE(SampledLoss):
    """Monte-Carlo InfoNCE, the loss of the paper (Kirchhof, Kasneci, Oh 2023).

    The loss of an anchor is

        -log 1/K sum_k g(z_k.z_k+) / (1/M g(z_k.z_k+) + 1/M sum_m g(z_k.z_mk)).

    g is the kernel, exp(kappa_pos t) for `VMFKernel`; z_k, z_k+ and z_mk are the k-th samples of the anchor, its
    positive and its m-th negative. With few samples the estimate is biased towards too large a kappa, as the paper
    says. `ExactInfoNCE` has no such bias.

    The 1/M subtract log M from the value that `ExactInfoNCE` has: for points, `MCInfoNCE` is `ExactInfoNCE` - log M.
    The gradients of points are the same. Compare values within one loss only.

    For mixtures the mean over the components of the anchor is outside the ratio, as that over its samples is. g is the
    mean over the components of the positive, or of a negative. With few negatives this is another loss than the formula
    on latents of randomly drawn components; for many it is the same. `ExactInfoNCE` and `HIB` know no such difference.

    Args:
        kernel: What counts as a match. Default: `VMFKernel()`.
        samples: Number K of samples of each posterior.
        average_negatives: Divide the sum over the negatives in the denominator by M, but not the term of the positive:
            g(z_k.z_k+) / (g(z_k.z_k+) + 1/M sum_m g(z_k.z_mk)). The published code does this. For one negative it is
            the same loss; for more, the truth is not its minimum. For comparison only.

    Examples:
        >>> import torch, aleator as al
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> loss = al.MCInfoNCE(al.VMFKernel(20.0), samples=16)
        >>> value = loss(anchor, anchor, generator=torch.Generator().manual_seed(0))
        >>> value.shape
        torch.Size([])
    """

    def __init__(self, kernel: ZonalKernel | None = None, samples: int = 16, average_negatives: bool = False):
        super().__init__(samples)
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())
        self.average_negatives = average_negatives

    def per_anchor(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        if not isinstance(anchor, VonMisesFisher):
            share = self._mixture_shares(anchor, positive, negative, generator, noise)
        else:
            share = self._shares(anchor, positive, negative, _Draw(self.samples, generator, noise))
        count = negative_count(anchor, negative)
        averaged = count if self.average_negatives else 1
        if share.dim() == 3:  # (K, B, components)
            share, averaged = log_mean(share_among_average(share, averaged), anchor.log_weights, (-1,)), 1
        mean = log_mean_share(share, averaged)  # share: (K, B)
        return -mean - (0.0 if self.average_negatives else math.log(count))

    def _shares(
        self, anchor: VonMisesFisher, positive: PosteriorBatch, negative: PosteriorBatch | None, draw: "_Draw"
    ) -> Tensor:
        """Log share of the positive for each sample of each anchor, (K, B)."""
        z = draw.anchor_samples(anchor)
        if are_own_negatives(negative, anchor):
            share = candidate_log_softmax_share(draw.candidate_cosines(z, positive, negative), anchor.dim, self.kernel)
        elif negative is not None:
            to_positive = draw.positive_cosines(z, positive)
            share = shared_log_softmax_share(z, to_positive, draw.negative_samples(negative), self.kernel)
        else:
            log_positive = self.kernel.log_values(anchor.dim, draw.positive_cosines(z, positive)).to(z.dtype)
            share = log_positive - torch.logaddexp(log_positive, batch_log_totals(z, self.kernel))
        return share

    def _mixture_shares(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None,
        noise: Noise | None,
    ) -> Tensor:
        """The same for each component of mixtures, (K, B, components). g is the mean over the other's components."""
        drawn = weighted_cosines(self.samples, anchor, positive, negative, generator, noise)
        to_positive, to_negatives = (
            self.kernel.log_values(anchor.dim, t).to(t.dtype) for t in (drawn.to_positive, drawn.to_negatives)
        )
        log_positive = log_mean(to_positive, drawn.log_positive.unsqueeze(-2), (-1,))  # (K, B, components)
        log_negatives = log_mean(to_negatives, drawn.log_negatives.unsqueeze(-2), (-1,))  # (K, B, M, components)
        if negative is None:
            log_negatives = log_negatives + self_mask(anchor).unsqueeze(-1)
        return log_softmax_share(log_positive, log_negatives.mT)

    def log_shares(
        self,
        anchor: PosteriorBatch,
        candidates: PosteriorBatch | None,
        compared: Tensor | None,
        generator: Generator | None = None,
        noise: tuple[Tensor, Tensor | None] | None = None,
    ) -> Tensor:
        """Log of the mean over the samples of each candidate's share. `soft` has checked the arguments.

        Args:
            anchor: Posteriors, batch shape (B,).
            candidates: Posteriors, batch shape (M,); None for the anchors, whose samples are then compared.
            compared: Which candidates count, shape (B, M); None for all.
            generator: Source of randomness. Default: torch's global generator.
            noise: Standard normal noise of the samples of anchor (K, B, C, D) and candidates (K, M, C, D), or None,
                for C components; without that dimension for posteriors of one mode. Makes the loss deterministic.
                Default: drawn from `generator`.

        Returns:
            Shape (B, M). The shares of the candidates that count sum to 1; the other entries are 0.
        """
        of_anchor, of_candidates = noise if noise is not None else (None, None)
        others = anchor if candidates is None else candidates
        z = weighted_samples(anchor, self.samples, generator, of_anchor)
        z_others = z if candidates is None else weighted_samples(others, self.samples, generator, of_candidates)
        cosines = all_cosines(z, z_others)  # (K, B, M, components of anchors, components of candidates)
        log_values = self.kernel.log_values(anchor.dim, cosines).to(z.dtype)
        logits = log_mean(log_values, others.log_weights.unsqueeze(-2), (-1,)).movedim(-1, 1)  # (K, components, B, M)
        shares = log_shares_of(logits, compared)
        return log_mean(shares, anchor.log_weights.mT.unsqueeze(-1), (0, 1)) - math.log(self.samples)


class HIB(SampledLoss):
    """Hedged instance embeddings (Oh et al. 2018) on the sphere, as in the paper's appendix B.

    The loss of an anchor is

        -log mean_k s(a z_k.z_k+ + b) - 1/M sum_m log mean_k (1 - s(a z_k.z_mk + b)).

    s is the sigmoid; z_k, z_k+ and z_mk are the k-th samples of the anchor, its positive and its m-th negative.

    Args:
        a: Slope of the match probability in the cosine.
        b: Its offset.
        samples: Number K of samples of each posterior.
        requires_grad: Whether a and b are learned.

    Raises:
        ValueError: If a or b is not finite, or `samples` is not a positive integer.

    Examples:
        >>> import torch, aleator as al
        >>> anchor = al.VonMisesFisher(torch.eye(4), 10.0)
        >>> loss = al.HIB(a=4.0, b=-2.0, samples=16)
        >>> value = loss(anchor, anchor, generator=torch.Generator().manual_seed(0))
        >>> value.shape
        torch.Size([])
    """

    def __init__(self, a: float = 1.0, b: float = 0.0, samples: int = 16, requires_grad: bool = False):
        super().__init__(samples)
        for name, value in (("a", a), ("b", b)):
            require(math.isfinite(value), name, value, "not a finite number", "pass for example 1.0 and 0.0")
        if requires_grad:
            self._start_a, self._start_b = float(a), float(b)  # they tell runs apart that begin with others
        self.a = nn.Parameter(torch.tensor(float(a)), requires_grad)
        self.b = nn.Parameter(torch.tensor(float(b)), requires_grad)

    def per_anchor(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        matches = self._matches if isinstance(anchor, VonMisesFisher) else self._mixture_matches
        match, mismatch = matches(anchor, positive, negative, generator, noise)
        if negative is None:
            mismatch = mismatch.masked_fill(self_mask(anchor) < 0, 0.0)
        return -match - mismatch.sum(-1) / negative_count(anchor, negative)

    def _matches(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None,
        noise: Noise | None,
    ) -> tuple[Tensor, Tensor]:
        """Log probabilities to match the positive (B,) and not to match the negatives (B, M)."""
        if are_own_negatives(negative, anchor):
            draw = _Draw(self.samples, generator, noise)
            cosines = draw.candidate_cosines(draw.anchor_samples(anchor), positive, negative)
            match, mismatch = log_mean_sigmoid(cosines, self.a, self.b, 1).split((1, cosines.shape[-1] - 1), -1)
        else:
            to_positive, to_negatives = self.cosines(anchor, positive, negative, generator, noise)
            match = log_mean_sigmoid(to_positive.unsqueeze(-1), self.a, self.b, 1)
            mismatch = log_mean_sigmoid(to_negatives, self.a, self.b, 0)
        return match.squeeze(-1), mismatch

    def _mixture_matches(
        self,
        anchor: PosteriorBatch,
        positive: PosteriorBatch,
        negative: PosteriorBatch | None,
        generator: Generator | None,
        noise: Noise | None,
    ) -> tuple[Tensor, Tensor]:
        """Log probabilities to match the positive (B,) and not to match the negatives (B, M), for mixtures."""
        drawn = weighted_cosines(self.samples, anchor, positive, negative, generator, noise)
        pairs = drawn.log_anchor.unsqueeze(-1) + drawn.log_positive.unsqueeze(-2)
        of_components = log_mean_sigmoid(drawn.to_positive, self.a, self.b, drawn.to_positive.shape[-1])
        match = log_mean(of_components, pairs, (-2, -1))
        pairs = drawn.log_anchor[:, None, :, None] + drawn.log_negatives.unsqueeze(-2)
        mismatch = log_mean(log_mean_sigmoid(drawn.to_negatives, self.a, self.b, 0), pairs, (-2, -1))
        return match, mismatch


class _Draw(NamedTuple):
    """Samples of the posteriors of one batch, and their cosines.

    Without `noise`, positives and own negatives are not sampled as vectors: only their cosines with the anchor's sample
    are drawn, which is cheaper.
    """

    samples: int
    generator: Generator | None
    noise: Noise | None

    def anchor_samples(self, anchor: PosteriorBatch) -> Tensor:
        """(B,) -> (K, B, D)."""
        return self._samples_of(anchor, 0)

    def negative_samples(self, negative: PosteriorBatch) -> Tensor:
        """(G, M) -> (K, G, M, D)."""
        return self._samples_of(negative, 2)

    def positive_cosines(self, z: Tensor, positive: PosteriorBatch) -> Tensor:
        """Cosines of z (K, B, D) with samples of the positives: (K, B)."""
        if self.noise is None and isinstance(positive, VonMisesFisher):
            return sampled_cosines(z, positive[:, None], self.generator).squeeze(-1)
        return (z * self._samples_of(positive, 1)).sum(-1)

    def candidate_cosines(self, z: Tensor, positive: PosteriorBatch, negative: PosteriorBatch) -> Tensor:
        """Cosines of z (K, B, D) with samples of the positive and of own negatives (B, M): (K, B, 1 + M)."""
        if self.noise is None and isinstance(positive, VonMisesFisher):
            return sampled_cosines(z, candidates(positive, negative), self.generator)  # type: ignore[arg-type]
        to_negatives = (z.unsqueeze(-2) * self.negative_samples(negative)).sum(-1)
        return torch.cat([self.positive_cosines(z, positive)[..., None], to_negatives], -1)

    def _samples_of(self, q: PosteriorBatch, place: int) -> Tensor:
        """K samples of each posterior, from the noise at `place` if there is any."""
        if isinstance(q, VonMisesFisher):
            return q.rsample((self.samples,), self.generator, self.noise[place] if self.noise else None)
        return q.rsample((self.samples,), self.generator)  # each sample is of one component, drawn by its weight


def _batch_cosines(z: Tensor) -> Tensor:
    """Cosines of all pairs of anchors with the same k, (K, B, D) -> (K, B, anchors on all processes)."""
    return z @ gather_batch(z, dim=1).mT
