r"""Positive pairs of a process with known posteriors, by one of three laws.

A pair (x, x+) is positive if its latents match, which a zonal kernel g(z.z+) decides. Below, P is the law of inputs,
r(x, x+) = E g(z.z+) / E_uniform g the expected positivity (`matching/positivity.py`), and Z(x) = E_{x+ ~ P} r(x, x+).
Three laws of positive pairs look alike, but differ as soon as the marginal of the latents is not uniform. Here it
never is.

- "joint", the paper's appendix. Propose (x, x+) ~ P P, draw latents (z, z+), and accept the pair with probability
  g / max g. The law is P(x) P(x+) r(x, x+) / E Z. Anchors follow P(x) Z(x) / E Z, not P(x): inputs with many matches
  come up more often. So the other anchors of a batch are not draws from P(x); negatives must be drawn from P(x).
- "ratio". Draw x ~ P(x), then x+ in proportion to P(x+) r(x, x+). This is the conditional law of "joint",
  P(x+|x) = P(x+) r(x, x+) / Z(x). Anchors follow P(x), so they can serve each other as negatives. For vMF posteriors
  r has a closed form, and no latent is drawn.
- "partner", the published code. Draw x ~ P(x) and one latent z for it, then find a partner for this z. The
  conditional law is E_z [P(x+) E_{z+} g(z.z+) / Z(z)] with Z(z) = E g(z.z+). It divides inside the expectation, so it
  is not proportional to r. For comparison only.

All three are rejection samplers with a fixed number of proposals. Proposal j has a weight w_j and a uniform number
u_j, and it is accepted if u_j < w_j / bound. Given that, u_j bound / w_j is uniform on [0, 1], whatever the proposal.
So the smallest u_j / w_j marks a uniformly random one of the accepted proposals: an exact draw. It is also the
smallest over all proposals, so drawing needs no mask, no loop and no bound. The bound only decides how many proposals
are made, so that one is accepted almost surely. If none is, the smallest u_j / w_j is still a draw nearly in
proportion to w. Shapes are fixed and nothing waits for the device, so a CUDA graph can hold a draw.
"""

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Generator, Tensor

from aleator.foundation import matmul_precision, require, require_at_least, require_one_of
from aleator.matching import log_positivity
from aleator.posteriors import VonMisesFisher

if TYPE_CHECKING:
    from aleator.data.generative import GenerativeProcess

PositiveLaw = Literal["ratio", "joint", "partner"]

_TOLERANCE = 1e-8  # relative to the largest r: truncation error of the series in an acceptance probability
_FAILURE = 1e-9  # probability, for a batch, that an anchor accepts none of its candidates
_MOST_CANDIDATES = 2**14  # with more needed (a sharp kernel), draws are nearly and not exactly in proportion
_ANCHORS = 128  # anchors that share their candidates: more would cost the square of the batch and gain nothing


class PairSampler:
    """Batches of positive pairs of a process; `GenerativeProcess.batches` makes one.

    Call it as sampler(step, generator). The step is not used. With generator=None, torch's own generator is used,
    which is simplest in a CUDA graph.

    For "ratio" and "partner", a group of up to 128 anchors shares its candidates. Each x+ follows its law, but two
    anchors of a group may get the same x+. In D = 10 the mean of B positives then has a variance 32 % above that of
    independent ones for 2 B candidates, 17 % for 4 B (the smallest default) and 8 % for 8 B.

    Args:
        process: The process.
        batch_size: B.
        negatives: M, the number of negatives for each anchor; 0 for none.
        positives: Law of positive pairs: "ratio", "joint" or "partner".
        proposals: Proposals of a draw: pairs for "joint", else candidates of a group. Default: enough for an exact
            draw.
        group: Number of anchors that share their negatives.
    """

    capturable = True

    def __init__(
        self,
        process: "GenerativeProcess",
        batch_size: int,
        negatives: int = 0,
        positives: PositiveLaw = "ratio",
        proposals: int | None = None,
        group: int = 1,
    ):
        require_at_least("batch_size", batch_size, 1, "pass for example 512")
        require_at_least("negatives", negatives, 0, "pass 0 for none")
        require_one_of("positives", positives, get_args(PositiveLaw))
        least = batch_size if positives == "joint" else min(batch_size, _ANCHORS)
        enough = proposals is None or proposals >= least
        require(enough, "proposals", proposals, f"fewer than the {least} positives to choose", "leave it out")
        way_out = "pass a divisor of the batch size; 1 gives every anchor its own negatives"
        divides = group >= 1 and batch_size % group == 0
        require(divides, "group", group, f"does not divide the batch of {batch_size}", way_out)
        self.process, self.device = process, process.device
        self.batch_size, self.negatives, self.positives, self.group = batch_size, negatives, positives, group
        self._groups = math.ceil(batch_size / _ANCHORS)
        self._anchors = math.ceil(batch_size / self._groups)  # in each group; the last group may have too many
        # kappa_range is that of 1,000 inputs; others may have a somewhat larger kappa.
        self._sharpest = 1.25 * process.kappa_range[1]
        self._terms = process.kernel.terms(process.dim, _TOLERANCE, self._sharpest, self._sharpest)
        self.proposals = self._count_proposals() if proposals is None else proposals

    @torch.no_grad()
    @matmul_precision("highest")  # the pairs must not depend on the encoder's precision
    def __call__(self, step: int = 0, generator: Generator | None = None) -> tuple[Any, ...]:
        """Draw (x, x+) of shape (B, D) each, and negatives (B / group, M, D) if there are any."""
        if self.positives == "joint":
            x, positive = self.process.inputs(2, self.proposals, generator=generator)
            keys = _keys(self._log_pair_weights(x, positive, generator), generator)
            chosen = keys.topk(self.batch_size, largest=False, sorted=False).indices
            x, positive = x[chosen], positive[chosen]
        else:
            x, candidate = self._inputs(self._anchors, self.proposals, generator=generator)
            chosen = _keys(self._log_weights(x, candidate, generator), generator).argmin(-1)
            positive = candidate.take_along_dim(chosen[..., None], 1)
            x, positive = (part.flatten(0, 1)[: self.batch_size] for part in (x, positive))
        if not self.negatives:
            return x, positive
        return x, positive, self.process.inputs(self.batch_size // self.group, self.negatives, generator=generator)

    def _inputs(self, *counts: int, generator: Generator | None) -> list[Tensor]:
        """Draw inputs for each of G groups: one tensor (G, count, D) for each count."""
        drawn = self.process.inputs(self._groups * sum(counts), generator=generator)
        parts = drawn.split([self._groups * count for count in counts])
        return [part.unflatten(0, (self._groups, -1)) for part in parts]

    def _log_weights(self, x: Tensor, candidate: Tensor, generator: Generator | None) -> Tensor:
        """log w (..., B, N) of anchors (..., B, D) with candidates (..., N, D): log r, or log g of sampled latents."""
        process = self.process
        q, q_candidate = process.posterior(x), process.posterior(candidate)
        if self.positives == "ratio" and process.family == "vmf":
            assert isinstance(q, VonMisesFisher)
            assert isinstance(q_candidate, VonMisesFisher)
            return log_positivity(q[..., :, None], q_candidate[..., None, :], process.kernel, self._terms)
        z_candidate = q_candidate.sample((), generator)
        if self.positives == "partner" or process.family == "point":
            # One latent for all candidates: the partner law. A point mass has one latent only, and g is r.
            cosine = q.sample((), generator) @ z_candidate.mT
        else:
            # r has no closed form. But accepting with probability g of fresh latents is accepting with E g.
            z = q.sample((candidate.shape[-2],), generator)  # (N, ..., B, D): a new latent for every candidate
            cosine = torch.einsum("n...bd,...nd->...bn", z, z_candidate)
        return process.kernel.log_values(process.dim, cosine)

    def _log_pair_weights(self, x: Tensor, positive: Tensor, generator: Generator | None) -> Tensor:
        """log g(z.z+), (N,), for fresh latents of the pairs (N, D), (N, D)."""
        z, z_positive = self.process.posterior(torch.stack([x, positive])).sample((), generator)
        return self.process.kernel.log_values(self.process.dim, torch.linalg.vecdot(z, z_positive))

    def _log_bound(self, x: Tensor) -> Tensor:
        """Upper bound (B,) of log w for each anchor."""
        process, q = self.process, self.process.posterior(x)
        if self.positives == "ratio" and isinstance(q, VonMisesFisher) and process.family == "vmf":
            # g increases with the cosine, so r is largest for the sharpest posterior at the anchor's own mu.
            best = VonMisesFisher(q.mu, torch.full_like(q.kappa, self._sharpest), validate_args=False)
            return log_positivity(q, best, process.kernel)
        return process.kernel.log_values(process.dim, torch.ones_like(q.kappa))

    @torch.no_grad()
    def _count_proposals(self) -> int:
        """Estimate how many proposals let every anchor accept one, in all but 1e-9 of the batches."""
        generator = torch.Generator(self.device).manual_seed(self.process.seed)
        if self.positives == "joint":
            x, positive = self.process.inputs(2, 2**14, generator=generator)
            rate = (self._log_pair_weights(x, positive, generator) - self._log_bound(x)).exp().mean().item()
            # Chernoff: with m acceptances expected, fewer than m - s occur with probability below exp(-s^2 / 2m).
            # The rate is an estimate, so make a tenth more.
            s2 = -2 * math.log(_FAILURE)
            m = ((math.sqrt(s2) + math.sqrt(s2 + 4 * self.batch_size)) / 2) ** 2
            return math.ceil(1.1 * m / rate)
        x, candidate = self.process.inputs(512 + 1024, generator=generator).split((512, 1024))
        rates = (self._log_weights(x, candidate, generator) - self._log_bound(x)[:, None]).exp().mean(1)
        needed = math.log(self.batch_size / _FAILURE) / max(rates.min().item(), 1e-9)
        # At least 4 B: anchors share the candidates, and should seldom share a positive.
        return max(4 * self._anchors, min(math.ceil(needed), _MOST_CANDIDATES))


def _keys(log_w: Tensor, generator: Generator | None) -> Tensor:
    """log u - log w. u has 53 random bits: with 24, too many u would be 0 and be smallest whatever their w."""
    u = torch.rand(log_w.shape, generator=generator, dtype=torch.float64, device=log_w.device)
    return u.log_().sub_(log_w)
