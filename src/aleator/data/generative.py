"""The generative process of the paper's controlled experiment, whose posteriors are known.

Inputs are x ~ Unif[0,1]^D. Two small networks with random weights give each input its posterior P(z|x) on the sphere
S^{D-1}: a direction mu(x) and a certainty kappa(x) (appendix "Controlled Experiment"). `pair_sampler.py` draws
contrastive pairs: inputs whose latents match.

With several modes, P(z|x) is a mixture. Each component has networks of its own, and one more gives the weights.
"""

import math
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from aleator.data.network_posteriors import network_posteriors
from aleator.data.noisy_direction import NoisyDirection
from aleator.data.pair_sampler import PairSampler, PositiveLaw
from aleator.data.soft_process import SoftProcessBatches
from aleator.foundation import one_thread, reject, require, require_at_least, require_count, require_one_of
from aleator.matching import AcceptanceKernel, NegativeLaw, ZonalKernel, check_kernel
from aleator.posteriors import VMFMixture, VonMisesFisher

Family = Literal["vmf", "gaussian", "laplace", "point"]
ProcessKappaOf = Literal["input", "mu"]
Smoothing = Literal["sphere", "published"]
RangeOf = Literal["kappa_of", "input"]

_HIDDEN = 10  # width of the hidden layers
_SAMPLES = 1000  # inputs on which a new process is scaled and checked
_REDRAWS = 100
_WEIGHT_RATIO = 4.0  # largest ratio of two weights of a mixture


class GenerativeProcess:
    """Inputs in the unit cube [0, 1]^D, with known posteriors on the unit sphere in R^D.

    Args:
        dim: D, of the inputs and of the latent space.
        kappa_range: Smallest and largest kappa(x) over 1,000 inputs.
        family: Family of the posteriors. "vmf": vMF(mu, kappa). "gaussian": mu plus noise N(0, 1/kappa) in every
            coordinate, normalised. "laplace": the same with Laplace noise of scale 1/kappa. "point": a point mass at
            mu; kappa_range is not used.
        kernel: g, which decides whether two latents match. It must increase with the cosine. Default: the paper's
            acceptance rule with kappa_pos = 20.
        seed: Decides the networks. They are the same on every device.
        device: Where the networks live and inputs are drawn.
        smoothing_steps: Adam steps that spread mu over the sphere. The published 5,000 take a few seconds.
        smoothing: What these steps aim at. "sphere": two inputs at right angles on average, so that mu covers the
            sphere. "published": the published code's aim, 1 - mu.mu'/2 = |x - x'|. In ten dimensions the two processes
            look alike. In the plane, "sphere" covers the circle and "published" an arc of about 105 degrees.
        kappa_of: What kappa is a function of. "input": kappa has a network of its own, independent of mu. "mu": kappa
            is a function of mu(x), as in the paper's ablation with a shared backbone.
        modes: K, the number of components of each posterior; more than one for the family "vmf" only. The weights of
            two components differ by a factor of 4 at most, over 1,000 inputs.
        range_of: What kappa's network is shown to set its range: what kappa is a function of ("kappa_of"), or inputs
            ("input"). The published code always shows it inputs. A kappa that is a function of mu then has another
            range, which the attribute `kappa_range` tells.

    Raises:
        ValueError: If an argument is out of range, or the kernel does not increase.

    Examples:
        >>> import torch, aleator as al
        >>> process = al.GenerativeProcess(dim=3, smoothing_steps=50)
        >>> x = process.inputs(5)
        >>> q = process.posterior(x)
        >>> x.shape, q.mu.shape, q.kappa.shape
        (torch.Size([5, 3]), torch.Size([5, 3]), torch.Size([5]))
        >>> anchor, positive = process.batches(batch_size=8)(0, torch.Generator().manual_seed(0))
        >>> anchor.shape, positive.shape
        (torch.Size([8, 3]), torch.Size([8, 3]))
    """

    def __init__(
        self,
        dim: int = 10,
        kappa_range: tuple[float, float] = (16.0, 32.0),
        family: Family = "vmf",
        kernel: ZonalKernel | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        smoothing_steps: int = 5000,
        kappa_of: ProcessKappaOf = "input",
        smoothing: Smoothing = "sphere",
        modes: int = 1,
        range_of: RangeOf = "kappa_of",
    ):
        require(dim >= 2, "dim", dim, "a sphere needs D >= 2", "pass for example 10")
        low, high = kappa_range
        way_out = 'pass for example (16.0, 32.0), or family="point" for an infinite kappa'
        require(0 < low <= high < math.inf, "kappa_range", kappa_range, "not a range of positive numbers", way_out)
        require_one_of("family", family, get_args(Family))
        require_one_of("kappa_of", kappa_of, get_args(ProcessKappaOf))
        require_one_of("smoothing", smoothing, get_args(Smoothing))
        require_one_of("range_of", range_of, get_args(RangeOf))
        require_at_least("smoothing_steps", smoothing_steps, 0, "pass 0 for none")
        require_count("modes", modes, "pass 1, or 2 for posteriors of two modes")
        way_out = 'pass family="vmf" and kappa_of="input", or modes=1'
        plain = modes == 1 or (family == "vmf" and kappa_of == "input")
        require(plain, "modes", modes, "several modes are made of vMFs with a kappa of the input", way_out)
        self.modes = modes
        self.dim, self.kappa_range, self.family = dim, (float(low), float(high)), family
        self.kernel = check_kernel(kernel) if kernel is not None else AcceptanceKernel()
        _require_increasing(self.kernel, dim)
        self.seed, self.device, self.kappa_of, self.smoothing = seed, torch.device(device), kappa_of, smoothing
        with torch.random.fork_rng(devices=[]):  # on the CPU: the same process on every device
            torch.manual_seed(seed)
            with one_thread():
                mu_net = _spread_net(dim, smoothing_steps, smoothing)
            kappa_net = _network(dim, _HIDDEN, 1).requires_grad_(False)
            x = torch.rand(_SAMPLES, dim)
            kappa_inputs = x if kappa_of == "input" else F.normalize(mu_net(x), dim=-1)
            seen = x if range_of == "input" else kappa_inputs
            self._span = _spanning(F.softplus(kappa_net(seen)), *self.kappa_range)
            if seen is not kappa_inputs:  # its range is another one then
                _, kappa = network_posteriors(x, _layers(mu_net), _layers(kappa_net), self._span, kappa_of_mu=True)
                self.kappa_range = (kappa.min().item(), kappa.max().item())
            self.mu_net, self.kappa_net = mu_net.to(self.device), kappa_net.to(self.device)
            if modes > 1:
                self.more_modes = _MoreModes(dim, modes, self.kappa_range, x, smoothing_steps, smoothing, self.device)

    def inputs(self, *shape: int, generator: Generator | None = None) -> Tensor:
        """Draw inputs x ~ Unif[0,1]^D.

        Args:
            *shape: Shape of the draws.
            generator: Random generator on the process's device. Default: torch's own.

        Returns:
            Inputs (*shape, D).
        """
        return torch.rand(*shape, self.dim, generator=generator, device=self.device)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> VonMisesFisher | VMFMixture | NoisyDirection:
        """The true posteriors of inputs.

        Args:
            x: Inputs (..., D).

        Returns:
            Posteriors of batch shape (...): von Mises-Fisher, with infinite kappa for the family "point"; for
            "gaussian" and "laplace" a `NoisyDirection`; for several modes a `VMFMixture`.
        """
        layers = _layers(self.mu_net), _layers(self.kappa_net)
        mu, kappa = network_posteriors(x, *layers, self._span, kappa_of_mu=self.kappa_of == "mu")
        if self.family == "point":
            return VonMisesFisher(mu, torch.full_like(kappa, math.inf), validate_args=False)
        if self.family == "vmf":
            first = VonMisesFisher(mu, kappa, validate_args=False)
            return first if self.modes == 1 else self.more_modes.mixture(x, first)
        return NoisyDirection(mu, kappa, self.family)

    def batches(
        self,
        batch_size: int,
        negatives: int = 0,
        positives: PositiveLaw = "ratio",
        proposals: int | None = None,
        group: int = 1,
        rule: NegativeLaw = "marginal",
    ) -> PairSampler:
        """Batches of positive pairs for `fit`.

        Args:
            batch_size: B.
            negatives: M, the number of negatives for each anchor; 0 for none.
            positives: Law of positive pairs: "ratio", "joint" (the paper's) or "partner" (the published code's). See
                the module `pair_sampler`.
            proposals: Number of proposals for a batch. Default: enough for an exact draw.
            group: Number of anchors that share their negatives. These are then encoded once.
            rule: Law of the negatives. "marginal": from P(x). "rejected-pair": inputs whose latents do not match those
                of the anchor. "rejected-latent" (the published code's): the same with the one latent of the anchor
                that found its positive; for positives "joint" and "partner". See the module `pair_sampler`.

        Returns:
            A function (step, generator) -> (x (B, D), x+ (B, D)), and negatives if there are any: x- (B / group, M, D)
            from P(x); rejected ones (B, M, D), or `SharedNegatives` if groups share their candidates.
        """
        return PairSampler(self, batch_size, negatives, positives, proposals, group, rule)

    def soft_batches(self, batch_size: int, group: int | None = None, choices: int | None = None) -> SoftProcessBatches:
        """Batches of inputs for `fit` in which every pair has its match weight, in place of one drawn positive.

        Args:
            batch_size: B, the number of inputs.
            group: Number S of consecutive inputs that are compared with each other, a divisor of B; the loss has the
                same `group`. Default: all.
            choices: Number of matches that each input chooses among the others of its group; the weights count them.
                Default: the weights are r(x, x'), by which matches would be chosen.

        Returns:
            A function (step, generator) -> `SoftBatch` of inputs (B, D) and weights (B, S).

        Raises:
            ValueError: If the family is not "vmf" or "point", the group does not divide the batch, or there are no
                choices.
        """
        return SoftProcessBatches(self, batch_size, group, choices)

    def __repr__(self) -> str:
        return (
            f"GenerativeProcess(dim={self.dim}, kappa_range={self.kappa_range}, family={self.family!r}, "
            f"kernel={self.kernel}, seed={self.seed}, device={str(self.device)!r}, kappa_of={self.kappa_of!r}, "
            f"smoothing={self.smoothing!r}, modes={self.modes})"
        )


class _MoreModes:
    """The components of a process after the first, and the weights of all."""

    def __init__(
        self,
        dim: int,
        modes: int,
        kappa_range: tuple[float, float],
        sample: Tensor,
        smoothing_steps: int,
        smoothing: Smoothing,
        device: torch.device,
    ):
        self.components = []
        for _ in range(modes - 1):
            with one_thread():
                mu_net = _spread_net(dim, smoothing_steps, smoothing)
            kappa_net = _network(dim, _HIDDEN, 1).requires_grad_(False)
            span = _spanning(F.softplus(kappa_net(sample)), *kappa_range)
            self.components.append((mu_net.to(device), kappa_net.to(device), span))
        self.weight_net = _network(dim, _HIDDEN, modes).requires_grad_(False)
        u = self.weight_net(sample)
        low, high = u.amin(0), u.amax(0)
        self._scale = (math.log(_WEIGHT_RATIO) / (high - low)).to(device)
        self._middle = ((high + low) / 2).to(device)
        self.weight_net.to(device)

    def mixture(self, x: Tensor, first: VonMisesFisher) -> VMFMixture:
        """The mixture of the first component and the others at inputs x (..., D)."""
        parts = [first]
        for mu_net, kappa_net, span in self.components:
            mu, kappa = network_posteriors(x, _layers(mu_net), _layers(kappa_net), span)
            parts.append(VonMisesFisher(mu, kappa, validate_args=False))
        log_weights = (self.weight_net(x) - self._middle) * self._scale
        return VMFMixture(log_weights, VonMisesFisher.stack(parts, -1), validate_args=False)


def _network(*widths: int) -> nn.Sequential:
    """Linear layers with leaky ReLUs between them."""
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1]), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


def _layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer of a network."""
    return [(layer.weight, layer.bias) for layer in network if isinstance(layer, nn.Linear)]


def _spread_net(dim: int, steps: int, smoothing: Smoothing) -> nn.Sequential:
    """A network D-10-10-D for mu before normalisation, trained to keep distances between inputs.

    The network is redrawn until two of 1,000 inputs are at least 60 degrees apart.
    """
    misfit = _sphere_misfit if smoothing == "sphere" else _published_misfit
    for _ in range(_REDRAWS):
        net = _network(dim, _HIDDEN, _HIDDEN, dim)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
        for _ in range(steps):
            x = torch.rand(64, dim)
            mu = F.normalize(net(x), dim=-1)
            loss = misfit(torch.cdist(x, x), mu @ mu.T, dim)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        net.requires_grad_(False)
        mu = F.normalize(net(torch.rand(_SAMPLES, dim)), dim=-1)
        if (mu @ mu.T).min() <= 0.5:
            return net
    problem = f"{_REDRAWS} random networks in {dim} dimensions all sent every input to one side of the sphere"
    reject("smoothing_steps", steps, problem, "pass 500 or more, so that training spreads them out")


def _sphere_misfit(distance: Tensor, cosine: Tensor, dim: int) -> Tensor:
    """Error of 1 - mu.mu' = |x - x'|^2 / E |x - x'|^2 with E |x - x'|^2 = D/6, as far as the sphere allows.

    Two inputs are then at right angles on average, like two uniform latents.
    """
    return F.mse_loss(1 - cosine, (distance.square() * (6 / dim)).clamp_max(2.0))


def _published_misfit(distance: Tensor, cosine: Tensor, dim: int) -> Tensor:
    """The published code's aim: 1 - mu.mu'/2 = |x - x'|, over pairs of inputs, the nearer the more important."""
    pairs = _pairs(len(distance))
    apart = 1 - cosine.take(pairs) / 2
    return ((distance.take(pairs) - apart).square() * (math.sqrt(2) - apart.detach()) ** 4).mean()


@lru_cache(maxsize=4)
def _pairs(n: int) -> Tensor:
    """Places (n (n + 1) / 2,) in a flattened (n, n) matrix: each pair once, and each input with itself."""
    i, j = torch.tril_indices(n, n)
    return i * n + j


def _spanning(value: Tensor, low: float, high: float) -> tuple[float, float]:
    """(a, b) such that exp(a value + b) spans [low, high] over these values."""
    smallest, largest = value.min().item(), value.max().item()
    scale = math.log(high / low) / (largest - smallest)
    return scale, math.log(high) - scale * largest


def _require_increasing(kernel: ZonalKernel, dim: int) -> None:
    with torch.no_grad():
        values = kernel.log_values(dim, torch.linspace(-1, 1, 1001, dtype=torch.float64))
    increasing = bool((values[1:] >= values[:-1] - 1e-12).all()) and math.isfinite(values[-1])
    way_out = "pass AcceptanceKernel(20.0) or VMFKernel(20.0)"
    require(increasing, "kernel", kernel, "must increase with the cosine and be finite at 1", way_out)
