r"""Contrastive losses on posteriors: loss(anchor, positive, negative) -> scalar.

    anchor     B posteriors x
    positive   B posteriors x+, one drawn for each anchor
    negative   (B, M) posteriors x-; (1, M) that all anchors share; (G, M), G a divisor of B, that each B/G anchors in a
               row share; or None: the other anchors of the batch, of all processes, are the negatives

Anchors, not positives, serve as negatives because they follow P(x), which the proof in docs/theory.md asks for. All
losses average over the anchors of their process and work in float32 or more, whatever autocast says.

To add a loss, touch these places: a class here that says how an anchor compares with its positive and its negatives;
`__init__.py`; a literal twin and a row of the case table in tests/test_losses.py; docs/equations.md; CHANGELOG.md.
"""

import math

import torch
from torch import Generator, Tensor, nn

from aleator.foundation import (
    gather_batch,
    matmul_precision,
    process_count,
    process_rank,
    require,
    require_equal_batches,
)
from aleator.losses.sampled_cosines import sampled_cosines
from aleator.losses.softmax_share import crowd_cosines, crowd_log_shares, log_share, log_shares
from aleator.matching import DEFAULT_KAPPA_POS, VMFKernel, ZonalKernel, check_kernel, log_positivity
from aleator.posteriors import VonMisesFisher, log_sphere_area

Noise = tuple[Tensor, Tensor, Tensor | None]


class ContrastiveLoss(nn.Module):
    """What every loss shares: checks, full precision, and the mean over anchors of `per_anchor`."""

    def forward(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None = None,
        **options,
    ) -> Tensor:
        """The mean loss of B anchors; see the module for shapes. Losses that sample take `generator` and `noise`."""
        _check_batch(anchor, positive, negative)
        with torch.autocast(anchor.mu.device.type, enabled=False), matmul_precision("highest"):
            return self.per_anchor(anchor, positive, negative, **options).mean()

    def per_anchor(self, anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None) -> Tensor:
        """The loss of each anchor, (B,)."""
        raise NotImplementedError


class _SimilarityLoss(ContrastiveLoss):
    """-log( e^s(x,x+) / (e^s(x,x+) + sum_m e^s(x,x_m-)) ) for a similarity s of two posteriors, which broadcast."""

    group: int | None = None

    def similarity(self, q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
        raise NotImplementedError

    def per_anchor(self, anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None) -> Tensor:
        if negative is not None and len(negative) == len(anchor):  # one call for all that an anchor meets
            met = self.similarity(anchor[:, None], _together(positive, negative))
            return torch.logsumexp(met, 1) - met[:, 0]
        own = self.similarity(anchor, positive)
        if negative is not None and len(negative) == 1:
            others = self.similarity(anchor[:, None], negative)
        elif negative is not None:
            crowd = _in_groups(anchor, len(negative))
            others = self.similarity(crowd[:, :, None], negative[:, None, :]).flatten(0, 1)
        elif self.group is not None:
            crowd = _in_groups(anchor, len(anchor) // self.group)
            others = (self.similarity(crowd[:, :, None], crowd[:, None, :]) + _diagonal(crowd.mu[0])).flatten(0, 1)
        else:
            crowd = VonMisesFisher(gather_batch(anchor.mu), gather_batch(anchor.kappa), validate_args=False)
            others = self.similarity(anchor[:, None], crowd[None, :]) + _not_itself(anchor)
        return torch.logsumexp(torch.cat([own[:, None], others], 1), 1) - own


class InfoNCE(_SimilarityLoss):
    """The similarity of the modes alone, s = kappa_pos mu.mu'; kappa plays no part (van den Oord et al. 2018)."""

    def __init__(self, kappa_pos: float = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__()
        self.kernel = VMFKernel(kappa_pos, requires_grad)

    def similarity(self, q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
        # In float64, so that a GPU's TF32 cannot round the cosines to ten bits.
        return self.kernel.log_values(q1.dim, _cosine(q1.mu.double(), q2.mu.double())).to(q1.mu.dtype)


class ExactInfoNCE(_SimilarityLoss):
    """s = log r, expected positivity in closed form: the paper's loss without Monte Carlo, its bias or its cost.

    With negatives from P(x) it is the cross-entropy of naming the positive, minimised by the true posteriors for every
    number of negatives (docs/theory.md).

    Args:
        kernel: what counts as a match; `AcceptanceKernel` for data accepted by the paper's rule.
        terms: how many terms of the series to sum; by default as many as the kernel ever needs. On a
            GPU, where looking at the batch would cost a synchronisation, fewer are enough when kappa stays small.
        group: of negatives taken from the batch, how many anchors share theirs; by default all. The cost grows with it,
            what is learned from a pair hardly does once it is several times the largest r (docs/understanding.md).
    """

    def __init__(self, kernel: ZonalKernel | None = None, terms: int | None = None, group: int | None = None):
        super().__init__()
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())
        require(group is None or group >= 2, "group", group, "an anchor alone has no negatives", "pass for example 128")
        self.terms, self.group = terms, group

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it: not where the host has a part in each step.

        It counts the terms of a kernel that is learned, and for all but the vMF's works out their coefficients.
        """
        on_device = self.terms is not None and isinstance(self.kernel, VMFKernel)
        return on_device or self.kernel.cache_key() is not None

    def per_anchor(self, anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None) -> Tensor:
        require(
            negative is not None or self.group is None or len(anchor) % self.group == 0,
            "group",
            self.group,
            f"does not divide the batch of {len(anchor)}",
            "pass a divisor of the batch size, or leave it out",
        )
        return super().per_anchor(anchor, positive, negative)

    def similarity(self, q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
        return log_positivity(q1, q2, self.kernel, self.terms)


class ELK(_SimilarityLoss):
    """s = kappa_pos log int q q' dz, the expected likelihood kernel in InfoNCE, with the paper's 1/M (appendix B)."""

    def __init__(self, kappa_pos: float = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__()
        self.scale = VMFKernel(kappa_pos, requires_grad)
        self.kernel = VMFKernel(math.inf)

    def similarity(self, q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
        likelihood = log_positivity(q1, q2, self.kernel) - log_sphere_area(q1.dim)
        return self.scale.concentration(likelihood) * likelihood

    def per_anchor(self, anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None) -> Tensor:
        return super().per_anchor(anchor, positive, negative) - math.log(_negative_count(anchor, negative))


class _SampledLoss(ContrastiveLoss):
    """Losses that compare K samples of each posterior."""

    def __init__(self, samples: int):
        super().__init__()
        require(
            isinstance(samples, int) and samples >= 1,
            "samples",
            samples,
            "a positive integer is needed",
            "pass 16",
        )
        self.samples = samples

    def cosines(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None,
        generator: Generator | None,
        noise: Noise | None,
    ) -> tuple[Tensor, Tensor]:
        """z_k.z_k+ as (K, B) and z_k.z_mk- as (K, B, M); for negatives from the batch (K, B, all anchors)."""
        if negative is not None and len(negative) == len(anchor):
            own, others = self.met(anchor, positive, negative, generator, noise).split((1, negative.batch_shape[1]), -1)
            return own.squeeze(-1), others
        z, own = self.latents(anchor, positive, generator, noise)
        if negative is None:
            return own, z @ gather_batch(z, dim=1).mT
        return own, crowd_cosines(z, self.draw(negative, 2, generator, noise))

    def met(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher,
        generator: Generator | None,
        noise: Noise | None,
    ) -> Tensor:
        """(z_k.z_k+, z_k.z_1k-, ...) for anchors with negatives of their own, (K, B, 1 + M)."""
        if noise is None:
            z = self.draw(anchor, 0, generator, noise)
            return sampled_cosines(z, _together(positive, negative), generator)
        z, own = self.latents(anchor, positive, generator, noise)
        return torch.cat([own[..., None], (z.unsqueeze(-2) * self.draw(negative, 2, generator, noise)).sum(-1)], -1)

    def latents(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, generator: Generator | None, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """z_k (K, B, D) and z_k.z_k+ (K, B); a positive's sample meets no other, so that it need not be formed."""
        z = self.draw(anchor, 0, generator, noise)
        if noise is None:
            return z, sampled_cosines(z, positive[:, None], generator).squeeze(-1)
        return z, (z * self.draw(positive, 1, generator, noise)).sum(-1)

    def draw(self, q: VonMisesFisher, place: int, generator: Generator | None, noise: Noise | None) -> Tensor:
        """K samples of each posterior, from the noise at its place where noise is given."""
        return q.rsample((self.samples,), generator, noise[place] if noise else None)


class MCInfoNCE(_SampledLoss):
    """The paper's Monte-Carlo loss: -log 1/K sum_k g(z_k.z_k+) / (1/M g(z_k.z_k+) + 1/M sum_m g(z_k.z_mk-)).

    g is the kernel, exp(kappa_pos t) for `VMFKernel`. The estimate is biased, as the paper says: overconfident for few
    samples. `ExactInfoNCE` is not.
    """

    def __init__(self, kernel: ZonalKernel | None = None, samples: int = 16):
        super().__init__(samples)
        self.kernel = check_kernel(kernel if kernel is not None else VMFKernel())

    def per_anchor(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        if negative is None:
            own, others = self.cosines(anchor, positive, negative, generator, noise)
            log_own, log_others = (self.kernel.log_values(anchor.dim, t).to(own.dtype) for t in (own, others))
            share = log_share(log_own, log_others + _not_itself(anchor))  # (K, B)
        elif len(negative) < len(anchor):
            z, own = self.latents(anchor, positive, generator, noise)
            share = crowd_log_shares(z, own, self.draw(negative, 2, generator, noise), self.kernel)
        else:
            share = log_shares(self.met(anchor, positive, negative, generator, noise), anchor.dim, self.kernel)
        mean = torch.logsumexp(share, 0) - math.log(self.samples)
        return -mean - math.log(_negative_count(anchor, negative))


class HIB(_SampledLoss):
    """Hedged instance embeddings (Oh et al. 2018) on the sphere, as in the paper's appendix B:

    -log mean_k s(a z_k.z_k+ + b) - 1/M sum_m log mean_k (1 - s(a z_k.z_mk- + b)), s the sigmoid.
    """

    def __init__(self, a: float = 1.0, b: float = 0.0, samples: int = 16, requires_grad: bool = False):
        super().__init__(samples)
        for name, value in (("a", a), ("b", b)):
            require(math.isfinite(value), name, value, "not a finite number", "pass for example 1.0 and 0.0")
        self.a = nn.Parameter(torch.tensor(float(a)), requires_grad)
        self.b = nn.Parameter(torch.tensor(float(b)), requires_grad)

    def per_anchor(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None,
        generator: Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        own, others = self.cosines(anchor, positive, negative, generator, noise)

        def log_mean_sigmoid(x: Tensor) -> Tensor:
            return torch.logsumexp(nn.functional.logsigmoid(x), 0) - math.log(self.samples)

        match = log_mean_sigmoid(self.a * own + self.b)
        mismatch = log_mean_sigmoid(-(self.a * others + self.b))  # (B, M): 1 - s(x) = s(-x)
        if negative is None:
            mismatch = mismatch.masked_fill(_not_itself(anchor) < 0, 0.0)
        return -match - mismatch.sum(-1) / _negative_count(anchor, negative)


def _cosine(mu1: Tensor, mu2: Tensor) -> Tensor:
    """Inner products over the last dimension; as one matrix product where every row meets every row."""
    if mu1.dim() == mu2.dim() == 3 and mu1.shape[1] == 1 and mu2.shape[0] == 1:
        return mu1[:, 0] @ mu2[0].mT
    return (mu1 * mu2).sum(-1)


def _together(positive: VonMisesFisher, negative: VonMisesFisher) -> VonMisesFisher:
    """Positives (B,) and negatives (B, M) as (B, 1 + M)."""
    mu = torch.cat([positive.mu[:, None], negative.mu], 1)
    return VonMisesFisher(mu, torch.cat([positive.kappa[:, None], negative.kappa], 1), validate_args=False)


def _in_groups(q: VonMisesFisher, groups: int) -> VonMisesFisher:
    """Posteriors (B,) as (G, B/G)."""
    size = (groups, -1)
    return VonMisesFisher(q.mu.unflatten(0, size), q.kappa.unflatten(0, size), validate_args=False)


def _not_itself(anchor: VonMisesFisher) -> Tensor:
    """(B, all anchors): -inf where an anchor meets itself, 0 elsewhere."""
    return _diagonal(anchor.mu, process_count(), process_rank())


def _diagonal(rows: Tensor, parts: int = 1, own: int = 0) -> Tensor:
    """(N, parts N) for N rows: -inf on the diagonal of their own part, 0 elsewhere."""
    size = len(rows)
    mask = torch.zeros(size, size * parts, dtype=rows.dtype, device=rows.device)
    mask.diagonal(own * size).fill_(-math.inf)
    return mask


def _negative_count(anchor: VonMisesFisher, negative: VonMisesFisher | None) -> int:
    return len(anchor) * process_count() - 1 if negative is None else negative.batch_shape[1]


def _check_batch(anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None) -> None:
    given = {"anchor": anchor, "positive": positive} | ({} if negative is None else {"negative": negative})
    for name, q in given.items():
        require(
            isinstance(q, VonMisesFisher),
            name,
            type(q).__name__,
            "not a posterior",
            "pass what an Encoder returns",
        )
    shape = tuple(anchor.batch_shape)
    require(len(shape) == 1, "anchor", shape, "expected batch shape (B,)", "flatten the batch")
    require(shape[0] > 0, "anchor", shape, "an empty batch has no loss", "skip it")
    require(
        tuple(positive.batch_shape) == shape,
        "positive",
        tuple(positive.batch_shape),
        f"expected batch shape {shape}, one positive per anchor",
        "draw a positive for each anchor",
    )
    for name, q in given.items():
        require(
            q.dim == anchor.dim,
            name,
            f"dimension {q.dim}",
            f"the anchors have {anchor.dim}",
            "use one encoder",
        )
    if negative is not None:
        negatives = tuple(negative.batch_shape)
        require(
            len(negatives) == 2 and min(negatives) > 0 and shape[0] % negatives[0] == 0,
            "negative",
            negatives,
            f"expected batch shape ({shape[0]}, M), or (G, M) for G groups of anchors, G a divisor, with M >= 1",
            "pass None to take negatives from the batch",
        )
        return
    require(
        shape[0] * process_count() > 1,
        "anchor",
        shape,
        "one item has no negatives in its batch",
        "use a larger batch or pass negatives",
    )
    require_equal_batches(shape[0], anchor.mu.device)
