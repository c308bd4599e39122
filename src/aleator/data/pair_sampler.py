r"""Draw positive pairs and negatives from a process with known posteriors. Each has three laws to choose from.

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
  is not proportional to r, and does not fit the exact loss. It is the law that MCInfoNCE fits (theory, section 3).

Negatives x- follow one of the laws of `matching/odds.py`. With A = E_uniform g, a pair matches with probability
rho = A r.

- "marginal", the paper's text: x- ~ P(x). Against "ratio" positives the density ratio is r(x, x') / Z(x).
- "rejected-pair": propose x- ~ P(x), draw fresh latents of both inputs, and keep x- if they do not match. The law is
  P(x-) (1 - rho(x, x-)) / (1 - A Z(x)). For vMF posteriors no latent is drawn. Against "ratio" positives the density
  ratio is rho / (1 - rho), up to a factor that depends on x alone.
- "rejected-latent", the published code: the latent z of the anchor that found its positive also rejects its negatives.
  Given z the law is P(x-) E_{z-} [1 - g(z.z-)] / (1 - A Z(z)). For given latents of all inputs the ratio is
  g / (1 - g): exp(kappa_pos z.z'), up to a factor, for the paper's rule.

All of them are rejection samplers with a fixed number of proposals. Proposal j has a weight w_j and a uniform number
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

from aleator.data.negatives import SharedNegatives
from aleator.data.noisy_direction import NoisyDirection
from aleator.foundation import is_whole, matmul_precision, require, require_at_least, require_one_of
from aleator.matching import NegativeLaw, log_positivity
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher

if TYPE_CHECKING:
    from aleator.data.generative import GenerativeProcess

PositiveLaw = Literal["ratio", "joint", "partner"]
Truth = VonMisesFisher | VMFMixture | NoisyDirection

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
        group: Number of anchors that share their negatives. If these are rejected ones, the anchors share the
            candidates, and each takes M of those that do not match it.
        rule: Law of the negatives: "marginal", "rejected-pair" or "rejected-latent". The last one needs a latent of
            the anchor, which "joint" and "partner" have.
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
        rule: NegativeLaw = "marginal",
    ):
        require_at_least("batch_size", batch_size, 1, "pass for example 512")
        require_at_least("negatives", negatives, 0, "pass 0 for none")
        require_one_of("positives", positives, get_args(PositiveLaw))
        require_one_of("rule", rule, get_args(NegativeLaw))
        has_latent = rule != "rejected-latent" or positives != "ratio"
        way_out = 'pass positives="partner" or "joint", or rule="rejected-pair"'
        require(has_latent, "rule", rule, 'no latent of the anchor is drawn for positives="ratio"', way_out)
        least = batch_size if positives == "joint" else min(batch_size, _ANCHORS)
        enough = proposals is None or proposals >= least
        require(enough, "proposals", proposals, f"fewer than the {least} positives to choose", "leave it out")
        way_out = "pass a divisor of the batch size; 1 gives every anchor its own negatives"
        divides = is_whole(group, 1) and batch_size % group == 0
        require(divides, "group", group, f"does not divide the batch of {batch_size}", way_out)
        self.process, self.device = process, process.device
        self.batch_size, self.negatives, self.positives, self.group = batch_size, negatives, positives, group
        self.rule = rule
        self._groups = math.ceil(batch_size / _ANCHORS)
        self._anchors = math.ceil(batch_size / self._groups)  # in each group; the last group may have too many
        # kappa_range is that of 1,000 inputs; others may have a somewhat larger kappa.
        self._sharpest = 1.25 * process.kappa_range[1]
        self._terms = process.kernel.terms(process.dim, _TOLERANCE, self._sharpest, self._sharpest)
        self._log_share = float(process.kernel.log_mean(process.dim))
        self.proposals = self._count_proposals() if proposals is None else proposals
        self.candidates = self._count_candidates() if negatives and rule != "marginal" else negatives

    @torch.no_grad()
    @matmul_precision("highest")  # the pairs must not depend on the encoder's precision
    def __call__(self, step: int = 0, generator: Generator | None = None) -> tuple[Any, ...]:
        """Draw (x, x+) of shape (B, D) each, and negatives if there are any.

        Negatives from P(x) have shape (B / group, M, D). Rejected ones have shape (B, M, D) for group=1, and are
        `SharedNegatives` otherwise.
        """
        x, positive, z = (self._accepted_pairs if self.positives == "joint" else self._chosen_matches)(generator)
        if not self.negatives:
            return x, positive
        if self.rule == "marginal":
            negative = self.process.inputs(self.batch_size // self.group, self.negatives, generator=generator)
            return x, positive, negative
        return x, positive, self._rejected(x, z, generator)

    def _accepted_pairs(self, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """B pairs by the law "joint", and the anchors' latents; (B, D) each."""
        pairs = self.process.inputs(2, self.proposals, generator=generator)
        z, z_positive = self.process.posterior(pairs).sample((), generator)
        keys = _keys(self._log_matching(torch.linalg.vecdot(z, z_positive)), generator)
        chosen = keys.topk(self.batch_size, largest=False, sorted=False).indices
        return pairs[0, chosen], pairs[1, chosen], z[chosen]

    def _chosen_matches(self, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """B anchors with positives by the law "ratio" or "partner", (B, D) each, and the latents of "partner"."""
        x, candidate = self._inputs(self._anchors, self.proposals, generator=generator)
        log_w, z = self._log_weights(x, candidate, generator)
        chosen = _keys(log_w, generator).argmin(-1)
        positive = candidate.take_along_dim(chosen[..., None], 1)
        x, positive = (part.flatten(0, 1)[: self.batch_size] for part in (x, positive))
        return x, positive, None if z is None else z.flatten(0, 1)[: self.batch_size]

    def _rejected(self, x: Tensor, z: Tensor | None, generator: Generator | None) -> Tensor | SharedNegatives:
        """M candidates for each anchor that do not match it; the anchor's latents z (B, D), or None if not used."""
        groups = self.batch_size // self.group
        candidate = self.process.inputs(groups, self.candidates, generator=generator)
        log_w = self._log_mismatch(
            x.unflatten(0, (groups, -1)), None if z is None else z.unflatten(0, (groups, -1)), candidate, generator
        )
        # The M smallest keys mark M random ones of the accepted candidates, by the argument at the top.
        chosen = _keys(log_w, generator).topk(self.negatives, largest=False, sorted=False).indices  # (G, B/G, M)
        if self.group == 1:
            return candidate.take_along_dim(chosen.mT, 1)
        first = self.batch_size + self.candidates * torch.arange(groups, device=self.device)
        return SharedNegatives(candidate.flatten(0, 1), (chosen + first[:, None, None]).flatten(0, 1))

    def _inputs(self, *counts: int, generator: Generator | None) -> list[Tensor]:
        """Draw inputs for each of G groups: one tensor (G, count, D) for each count."""
        drawn = self.process.inputs(self._groups * sum(counts), generator=generator)
        parts = drawn.split([self._groups * count for count in counts])
        return [part.unflatten(0, (self._groups, -1)) for part in parts]

    def _log_weights(self, x: Tensor, candidate: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor | None]:
        """log w (..., B, N) of anchors x (..., B, D) with candidates (..., N, D), and the latents (..., B, D) used.

        w is r, or g of sampled latents. Latents of the anchors are None if each candidate meets another one.
        """
        if self.positives == "partner" or self.process.family == "point":
            # One latent for all candidates: the partner law. A point mass has one latent only, and g is r.
            q = self.process.posterior(torch.cat([x, candidate], -2))  # at once: fewer kernels
            z, z_candidate = q.sample((), generator).split((x.shape[-2], candidate.shape[-2]), -2)
            return self._log_matching(z @ z_candidate.mT), z
        q, q_candidate = self.process.posterior(x), self.process.posterior(candidate)
        if self.process.family == "vmf":
            return self._log_positivity(q, _one_component(q_candidate, generator)), None
        # r has no closed form. But accepting with probability g of fresh latents is accepting with E g.
        z_candidate = q_candidate.sample((), generator)
        return self._log_matching(_fresh_cosines(q, z_candidate, generator)), None

    def _log_mismatch(self, x: Tensor, z: Tensor | None, candidate: Tensor, generator: Generator | None) -> Tensor:
        """log w (G, B, N) of candidates (G, N, D) as negatives of anchors (G, B, D): w is 1 - rho, or 1 - g of latents.

        The latents z (G, B, D) of the anchors are needed for "rejected-latent".
        """
        q_candidate = self.process.posterior(candidate)
        if self.rule == "rejected-pair" and self.process.family == "vmf":
            log_r = self._log_positivity(self.process.posterior(x), _one_component(q_candidate, generator))
            return _log_rest(log_r + self._log_share)
        z_candidate = q_candidate.sample((), generator)
        if self.rule == "rejected-latent":
            assert z is not None
            cosine = z @ z_candidate.mT
        else:
            cosine = _fresh_cosines(self.process.posterior(x), z_candidate, generator)
        return _log_rest(self._log_matching(cosine))

    def _log_positivity(self, q: Truth, q_candidate: Truth) -> Tensor:
        """log r (..., B, N) of anchors (..., B) with candidates (..., N)."""
        assert isinstance(q, PosteriorBatch)
        assert isinstance(q_candidate, PosteriorBatch)
        return log_positivity(q[..., :, None], q_candidate[..., None, :], self.process.kernel, self._terms)

    def _log_matching(self, cosine: Tensor) -> Tensor:
        """log g of latents with these cosines."""
        return self.process.kernel.log_values(self.process.dim, cosine)

    def _log_bound(self, q: Truth) -> Tensor:
        """Upper bound (B,) of log w for each anchor."""
        if self.positives == "ratio" and isinstance(q, PosteriorBatch) and self.process.family == "vmf":
            # g increases with the cosine, so r is largest for the sharpest posterior at the anchor's own mu. For a
            # mixture, this bounds the r of each of its components.
            parts = q.components
            best = VonMisesFisher(parts.mu, torch.full_like(parts.kappa, self._sharpest), validate_args=False)
            return torch.logsumexp(log_positivity(parts, best, self.process.kernel) + q.log_weights, -1)
        return self._log_matching(torch.ones_like(q.mean[..., 0] if isinstance(q, PosteriorBatch) else q.kappa))

    @torch.no_grad()
    def _count_proposals(self) -> int:
        """Estimate how many proposals let every anchor accept one, in all but 1e-9 of the batches."""
        generator = torch.Generator(self.device).manual_seed(self.process.seed)
        if self.positives == "joint":
            pairs = self.process.posterior(self.process.inputs(2, 2**14, generator=generator))
            log_w = self._log_matching(torch.linalg.vecdot(*pairs.sample((), generator)))
            rate = (log_w - self._log_bound(pairs[0])).exp().mean().item()
            # Chernoff: with m acceptances expected, fewer than m - s occur with probability below exp(-s^2 / 2m).
            # The rate is an estimate, so make a tenth more.
            s2 = -2 * math.log(_FAILURE)
            m = ((math.sqrt(s2) + math.sqrt(s2 + 4 * self.batch_size)) / 2) ** 2
            return math.ceil(1.1 * m / rate)
        x, candidate = (self.process.inputs(n, generator=generator) for n in (512, 1024))
        log_w, _ = self._log_weights(x, candidate, generator)
        rates = (log_w - self._log_bound(self.process.posterior(x))[:, None]).exp().mean(1)
        needed = math.log(self.batch_size / _FAILURE) / max(rates.min().item(), 1e-9)
        # At least 4 B: anchors share the candidates, and should seldom share a positive.
        return max(4 * self._anchors, min(math.ceil(needed), _MOST_CANDIDATES))

    @torch.no_grad()
    def _count_candidates(self) -> int:
        """Estimate how many candidates let every anchor reject M of them, in all but 1e-9 of the batches."""
        problem = "its values must be probabilities of a match, at most 1"
        largest = self._log_matching(torch.ones((), dtype=torch.float64)).item()
        require(largest <= 1e-12, "kernel", self.process.kernel, problem, "scale it, or pass rule='marginal'")
        generator = torch.Generator(self.device).manual_seed(self.process.seed + 1)
        x, candidate = (self.process.inputs(1, n, generator=generator) for n in (1024, 1024))
        z = self.process.posterior(x).sample((), generator)
        # The smallest rate of a sample, and a margin for anchors that have a smaller one.
        rate = 0.95 * self._log_mismatch(x, z, candidate, generator).exp().mean(-1).min().item()
        least, count = math.log(self.batch_size / _FAILURE), self.negatives + 1
        while count < _MOST_CANDIDATES and _surplus(self.negatives / count, rate) * count < least:
            count += 1
        return count


def _one_component(q: Truth, generator: Generator | None) -> Truth:
    """One component of each mixture, drawn by its weight.

    r is the mean over the components of a candidate. Accepting with a random probability is accepting with its mean, as
    for fresh latents, and costs a factor less than comparing all components.
    """
    return q.draw_components((), generator) if isinstance(q, VMFMixture) else q


def _keys(log_w: Tensor, generator: Generator | None) -> Tensor:
    """log u - log w. u has 53 random bits: with 24, too many u would be 0 and be smallest whatever their w."""
    u = torch.rand(log_w.shape, generator=generator, dtype=torch.float64, device=log_w.device)
    return u.log_().sub_(log_w)


def _fresh_cosines(q: Truth, z_candidate: Tensor, generator: Generator | None) -> Tensor:
    """Cosines (..., B, N) of latents of the candidates (..., N, D) with a new latent of the anchor for each of them."""
    z = q.sample((z_candidate.shape[-2],), generator)  # (N, ..., B, D)
    return torch.einsum("n...bd,...nd->...bn", z, z_candidate)


def _log_rest(log_probability: Tensor) -> Tensor:
    """log(1 - p) of log p. Rounding may make p slightly larger than 1."""
    return torch.log(-torch.expm1(log_probability.clamp_max(0.0)))


def _surplus(share: float, rate: float) -> float:
    """Chernoff's exponent: of n candidates fewer than share * n are accepted with probability below exp(-n surplus).

    It is the Kullback-Leibler divergence of two coins, if share < rate.
    """
    if share >= rate:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - rate)) if rate < 1 else math.inf
    return share * math.log(share / rate) + rest
