r"""The paper's controlled experiment: a process whose posteriors are known, and contrastive pairs from it.

Inputs are x ~ Unif[0,1]^D. Two small networks with random weights give each input its posterior P(z|x) on
the sphere S^{D-1}: a direction mu(x) and a certainty kappa(x) (appendix "Controlled Experiment").

A pair is positive where its latents match, which a zonal kernel g(z.z+) decides. Three laws of positive pairs
look alike and are not as soon as the latents' marginal is not uniform, which here it never is. With the
expected positivity r(x, x+) = E g(z.z+) / E_uniform g (positivity.py) and Z(x) = E_{x+ ~ P} r(x, x+):

- "joint", the paper's appendix: propose (x, x+) ~ P P, draw (z, z+), accept the pair with probability
  g/max g. Its law is P(x) P(x+) r(x, x+) / E Z. Anchors then follow P(x) Z(x) / E Z rather than P(x): whoever
  has many matches comes up more often. So negatives must be drawn from P(x), which the other anchors are not.
- "ratio": x ~ P(x), then x+ in proportion to P(x+) r(x, x+): the conditional law P(x+|x) = P(x+) r / Z(x) of
  "joint". Anchors follow P(x), so they may serve each other as negatives. For vMF posteriors no latent is
  drawn at all.
- "partner", the published code: x ~ P(x), one z for the anchor, then a partner found for that z. Its
  conditional law E_z [P(x+) E_{z+} g(z.z+) / Z(z)], with Z(z) = E g(z.z+), divides inside the expectation and
  is not proportional to r. For comparison only.

All three are rejection samplers with a fixed number of proposals and one idea. Proposal j is accepted where
u_j < w_j/bound, u_j uniform. Given that, u_j bound/w_j is uniform on [0, 1] whatever the proposal was, so the
smallest u_j/w_j marks a uniformly random one of those accepted: an exact draw. It is also the smallest over
all proposals, so at run time there is no mask, no loop and no bound. The bound only says how many proposals
make sure that one is accepted; should none be, the smallest u_j/w_j is still a draw nearly in proportion to w.
Shapes are static and nothing waits for the device, so a draw can be captured in a CUDA graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from aleator.foundation import matmul_precision, one_thread, require, require_one_of
from aleator.matching import AcceptanceKernel, ZonalKernel, check_kernel, log_positivity
from aleator.posteriors import VonMisesFisher

FAMILIES = ("vmf", "gaussian", "laplace", "point")
POSITIVES = ("ratio", "joint", "partner")
KAPPA_OF = ("input", "mu")

_HIDDEN = 10
_SAMPLES = 1000  # inputs on which a process is scaled and judged
_REDRAWS = 100
_TOLERANCE = 1e-8  # of the largest r: what the series may leave out of an acceptance probability
_FAILURE = 1e-9  # of a batch: the probability that an anchor accepts none of its candidates
_MOST_CANDIDATES = 2**14  # beyond this, a sharp kernel's draws are nearly rather than exactly in proportion
_ANCHORS = 128  # that share their candidates: more would cost the square of the batch and gain nothing


class GenerativeProcess:
    """Inputs in the unit cube with known posteriors on the sphere of the same dimension.

    Args:
        dim: D, of the inputs and of the latent space.
        kappa_range: smallest and largest kappa(x), over 1,000 inputs.
        family: of the posteriors. "vmf": vMF(mu, kappa). "gaussian": mu plus N(0, 1/kappa) in every
            coordinate, normalised. "laplace": the same with Laplace noise of scale 1/kappa. "point": a point
            mass at mu, whatever kappa_range says.
        kernel: g, which decides whether two latents match; by default the paper's acceptance rule with
            kappa_pos = 20. It must increase with the cosine.
        seed: decides the networks, on every device alike.
        device: where the networks live and inputs are drawn.
        smoothing_steps: Adam steps that spread mu out over the sphere; 5,000 as published take a few seconds.
        kappa_of: "input": kappa has a network of its own, and knows nothing of mu. "mu": kappa is a function of mu(x),
            as in the paper's ablation with a shared backbone.
    """

    def __init__(
        self,
        dim: int = 10,
        kappa_range: tuple[float, float] = (16.0, 32.0),
        family: str = "vmf",
        kernel: ZonalKernel | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        smoothing_steps: int = 5000,
        kappa_of: str = "input",
    ):
        require(dim >= 2, "dim", dim, "a sphere needs D >= 2", "pass for example 10")
        low, high = kappa_range
        require(
            0 < low <= high < math.inf,
            "kappa_range",
            kappa_range,
            "not a range of positive numbers",
            'pass for example (16.0, 32.0), or family="point" for an infinite kappa',
        )
        require_one_of("family", family, FAMILIES)
        require_one_of("kappa_of", kappa_of, KAPPA_OF)
        require(smoothing_steps >= 0, "smoothing_steps", smoothing_steps, "negative", "pass 0 for none")
        self.dim, self.kappa_range, self.family = dim, (float(low), float(high)), family
        self.kernel = check_kernel(kernel) if kernel is not None else AcceptanceKernel()
        _require_increasing(self.kernel, dim)
        self.seed, self.device, self.kappa_of = seed, torch.device(device), kappa_of
        with torch.random.fork_rng(devices=[]):  # on the CPU: the same process whatever the device
            torch.manual_seed(seed)
            with one_thread():
                mu_net = _spread_net(dim, smoothing_steps)
            kappa_net = _network(dim, _HIDDEN, 1).requires_grad_(False)
            x = torch.rand(_SAMPLES, dim)
            given = x if kappa_of == "input" else F.normalize(mu_net(x), dim=-1)
            self._scale, self._shift = _spanning(F.softplus(kappa_net(given)), *self.kappa_range)
            self.mu_net, self.kappa_net = mu_net.to(self.device), kappa_net.to(self.device)

    def inputs(self, *shape: int, generator: Generator | None = None) -> Tensor:
        """x ~ Unif[0,1]^D; (*shape, D)."""
        return torch.rand(*shape, self.dim, generator=generator, device=self.device)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> "VonMisesFisher | NoisyDirection":
        """The true posteriors of inputs (..., D); batch shape (...)."""
        mu = F.normalize(self.mu_net(x), dim=-1)
        if self.family == "point":
            return VonMisesFisher(mu, torch.full_like(mu[..., 0], math.inf), validate_args=False)
        u = self.kappa_net(x if self.kappa_of == "input" else mu).squeeze(-1)
        kappa = torch.exp(self._scale * F.softplus(u) + self._shift)
        if self.family == "vmf":
            return VonMisesFisher(mu, kappa, validate_args=False)
        return NoisyDirection(mu, kappa, self.family)

    def batches(
        self,
        batch_size: int,
        negatives: int = 0,
        positives: str = "ratio",
        proposals: int | None = None,
        group: int = 1,
    ) -> "PairSampler":
        """A source of batches for `fit`: (x (B, D), x+ (B, D)), and x- (B, M, D) ~ P(x) if M negatives.

        Args:
            positives: by which law; "ratio", "joint" or "partner".
            proposals: how many to look at for a batch; by default enough for an exact draw.
            group: how many anchors share their negatives, x- (B/group, M, D), which are then encoded and sampled once.
        """
        return PairSampler(self, batch_size, negatives, positives, proposals, group)

    def __repr__(self) -> str:
        return (
            f"GenerativeProcess(dim={self.dim}, kappa_range={self.kappa_range}, family={self.family!r}, "
            f"kernel={self.kernel}, seed={self.seed}, device={str(self.device)!r}, kappa_of={self.kappa_of!r})"
        )


@dataclass(frozen=True)
class NoisyDirection:
    """The direction of mu plus noise: no vMF, to see what becomes of a model that takes it for one.

    mu (..., D) unit; kappa (...); family "gaussian" (variance 1/kappa) or "laplace" (scale 1/kappa).
    """

    mu: Tensor
    kappa: Tensor
    family: str

    @property
    def mode(self) -> Tensor:
        return self.mu

    def sample(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        """Latents (*sample_shape, ..., D), on the sphere."""
        noise = self.mu.new_empty(*sample_shape, *self.mu.shape)
        if self.family == "gaussian":
            scaled = noise.normal_(generator=generator) / self.kappa.sqrt().unsqueeze(-1)
        else:  # the difference of two exponential variables is a Laplace variable
            noise.exponential_(generator=generator)
            noise -= torch.empty_like(noise).exponential_(generator=generator)
            scaled = noise / self.kappa.unsqueeze(-1)
        return F.normalize(self.mu + scaled, dim=-1)

    def spread(self, samples: int = 4096, generator: Generator | None = None) -> Tensor:
        """E |1 - mu.z|, the average cosine distance from the mode, from samples; (...)."""
        total, block = torch.zeros_like(self.kappa), 64
        for start in range(0, samples, block):
            z = self.sample((min(block, samples - start),), generator)
            total += (1 - torch.linalg.vecdot(z, self.mu)).sum(0)
        return total / samples

    def __getitem__(self, index: Any) -> "NoisyDirection":
        return NoisyDirection(self.mu[index], self.kappa[index], self.family)


class PairSampler:
    """Positive pairs of a process by one of the three laws; see `GenerativeProcess.batches`.

    Called as sampler(step, generator): the step is not used, and generator=None means torch's own, as is
    easiest in a CUDA graph. `proposals` says how many proposals a draw looks at: pairs for "joint", else
    candidates that a group of up to 128 anchors shares. Each x+ follows its law, but two anchors of a group may get
    the same one: in D = 10 the mean of B positives has a variance 32 % above that of independent ones for 2 B
    candidates, 17 % for 4 B (the least by default) and 8 % for 8 B.
    """

    capturable = True

    def __init__(
        self,
        process: GenerativeProcess,
        batch_size: int,
        negatives: int = 0,
        positives: str = "ratio",
        proposals: int | None = None,
        group: int = 1,
    ):
        require(batch_size >= 1, "batch_size", batch_size, "an empty batch", "pass for example 512")
        require(negatives >= 0, "negatives", negatives, "negative", "pass 0 for none")
        require_one_of("positives", positives, POSITIVES)
        least = batch_size if positives == "joint" else min(batch_size, _ANCHORS)
        require(
            proposals is None or proposals >= least,
            "proposals",
            proposals,
            f"fewer than the {least} positives to choose",
            "leave it out",
        )
        require(
            group >= 1 and batch_size % group == 0,
            "group",
            group,
            f"does not divide the batch of {batch_size}",
            "pass a divisor of the batch size; 1 gives every anchor its own negatives",
        )
        self.process, self.device = process, process.device
        self.batch_size, self.negatives, self.positives, self.group = batch_size, negatives, positives, group
        self._groups = math.ceil(batch_size / _ANCHORS)
        self._anchors = math.ceil(batch_size / self._groups)  # of each group: the last may have some too many
        # The largest kappa of 1,000 inputs is not quite the largest of all.
        self._sharpest = 1.25 * process.kappa_range[1]
        self._terms = process.kernel.terms(process.dim, _TOLERANCE, self._sharpest, self._sharpest)
        self.proposals = self._count_proposals() if proposals is None else proposals

    @torch.no_grad()
    @matmul_precision("highest")  # whatever the encoder's precision, the pairs are those of this process
    def __call__(self, step: int = 0, generator: Generator | None = None) -> tuple[Any, ...]:
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
        """So many inputs for each group, several times; (G, count, D) each."""
        drawn = self.process.inputs(self._groups * sum(counts), generator=generator)
        parts = drawn.split([self._groups * count for count in counts])
        return [part.unflatten(0, (self._groups, -1)) for part in parts]

    def _log_weights(self, x: Tensor, candidate: Tensor, generator: Generator | None) -> Tensor:
        """log w of anchors (..., B, D) with candidates (..., N, D): log r, or log g of latents; (..., B, N)."""
        process = self.process
        q, q_candidate = process.posterior(x), process.posterior(candidate)
        if self.positives == "ratio" and process.family == "vmf":
            assert isinstance(q, VonMisesFisher)
            assert isinstance(q_candidate, VonMisesFisher)
            return log_positivity(q[..., :, None], q_candidate[..., None, :], process.kernel, self._terms)
        z_candidate = q_candidate.sample((), generator)
        if self.positives == "partner" or process.family == "point":
            # One latent for all candidates: the partner law. Of a point mass there is only one, and g is r.
            cosine = q.sample((), generator) @ z_candidate.mT
        else:
            # r has no closed form, but to accept with probability g of fresh latents is to accept with E g.
            z = q.sample((candidate.shape[-2],), generator)  # (N, ..., B, D): for every candidate a new latent
            cosine = torch.einsum("n...bd,...nd->...bn", z, z_candidate)
        return process.kernel.log_values(process.dim, cosine)

    def _log_pair_weights(self, x: Tensor, positive: Tensor, generator: Generator | None) -> Tensor:
        """log g(z.z+) for fresh latents of the pairs (N, D), (N, D); (N,)."""
        z, z_positive = self.process.posterior(torch.stack([x, positive])).sample((), generator)
        return self.process.kernel.log_values(self.process.dim, torch.linalg.vecdot(z, z_positive))

    def _log_bound(self, x: Tensor) -> Tensor:
        """An upper bound of log w for each anchor; (B,)."""
        process, q = self.process, self.process.posterior(x)
        if self.positives == "ratio" and isinstance(q, VonMisesFisher) and process.family == "vmf":
            # g increases, so r is largest for a posterior at the anchor's own mu, and the sharper the larger.
            best = VonMisesFisher(q.mu, torch.full_like(q.kappa, self._sharpest), validate_args=False)
            return log_positivity(q, best, process.kernel)
        return process.kernel.log_values(process.dim, torch.ones_like(q.kappa))

    @torch.no_grad()
    def _count_proposals(self) -> int:
        """How many it takes for all anchors to accept one but for 1e-9 of the batches, by a first look."""
        generator = torch.Generator(self.device).manual_seed(self.process.seed)
        if self.positives == "joint":
            x, positive = self.process.inputs(2, 2**14, generator=generator)
            rate = (self._log_pair_weights(x, positive, generator) - self._log_bound(x)).exp().mean().item()
            # Chernoff: of m expected, m - s are accepted but for exp(-s^2/2m). m is estimated: a tenth more.
            s2 = -2 * math.log(_FAILURE)
            m = ((math.sqrt(s2) + math.sqrt(s2 + 4 * self.batch_size)) / 2) ** 2
            return math.ceil(1.1 * m / rate)
        x, candidate = self.process.inputs(512 + 1024, generator=generator).split((512, 1024))
        rates = (self._log_weights(x, candidate, generator) - self._log_bound(x)[:, None]).exp().mean(1)
        needed = math.log(self.batch_size / _FAILURE) / max(rates.min().item(), 1e-9)
        # More than a draw needs, so that anchors, which share the candidates, seldom share a positive.
        return max(4 * self._anchors, min(math.ceil(needed), _MOST_CANDIDATES))


def _keys(log_w: Tensor, generator: Generator | None) -> Tensor:
    """log u - log w. u has 53 random bits: with 24, too many would be exactly 0 and win whatever their w."""
    u = torch.rand(log_w.shape, generator=generator, dtype=torch.float64, device=log_w.device)
    return u.log_().sub_(log_w)


def _network(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1]), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


def _spread_net(dim: int, steps: int) -> nn.Sequential:
    """mu before normalisation, D-10-10-D; redrawn until two of 1,000 inputs are at least 60 degrees apart.

    Trained to keep distances, at the scale that puts two inputs at right angles on average, where two uniform
    latents are: 1 - mu.mu' = |x - x'|^2 / E |x - x'|^2 with E |x - x'|^2 = D/6, as far as the sphere allows.
    """
    for _ in range(_REDRAWS):
        net = _network(dim, _HIDDEN, _HIDDEN, dim)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
        for _ in range(steps):
            x = torch.rand(64, dim)
            mu = F.normalize(net(x), dim=-1)
            target = (torch.cdist(x, x).square() * (6 / dim)).clamp_max(2.0)
            loss = F.mse_loss(1 - mu @ mu.T, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        net.requires_grad_(False)
        mu = F.normalize(net(torch.rand(_SAMPLES, dim)), dim=-1)
        if (mu @ mu.T).min() <= 0.5:
            return net
    require(
        False,
        "smoothing_steps",
        steps,
        f"{_REDRAWS} random networks in {dim} dimensions all sent every input to one side of the sphere",
        "pass 500 or more, so that training spreads them out",
    )
    return net


def _spanning(value: Tensor, low: float, high: float) -> tuple[float, float]:
    """(a, b) such that kappa = exp(a value + b) spans [low, high] over these values."""
    smallest, largest = value.min().item(), value.max().item()
    scale = math.log(high / low) / (largest - smallest)
    return scale, math.log(high) - scale * largest


def _require_increasing(kernel: ZonalKernel, dim: int) -> None:
    with torch.no_grad():
        values = kernel.log_values(dim, torch.linspace(-1, 1, 1001, dtype=torch.float64))
    require(
        bool((values[1:] >= values[:-1] - 1e-12).all()) and math.isfinite(values[-1]),
        "kernel",
        kernel,
        "must increase with the cosine and be finite at 1",
        "pass AcceptanceKernel(20.0) or VMFKernel(20.0)",
    )
