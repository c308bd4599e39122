r"""Mixtures of von Mises-Fisher distributions: posteriors with several modes.

    q(z) = sum_k w_k vMF(z; mu_k, kappa_k),     w_k >= 0,  sum_k w_k = 1

One vMF is the mixture of one component. What is linear in q is exact: density, mean, the overlap of two posteriors.
Entropy, KL and credible regions have no closed form; mixture_entropy.py and vmf.py compute them from samples of every
component.

**How samples move with the weights:** implicit reparameterisation on the sphere. If the weight w_k grows, the density
changes by vMF_k dw_k. Samples follow this change if they move with a velocity v_k whose flow q v_k satisfies the
continuity equation, div(q v_k) = -(vMF_k - 1/S). S is the area of the sphere. The
constant makes the flow vanish at the antipode of mu_k; it cancels, because the changes of all weights sum to zero. The
right side depends only on the angle theta from mu_k, so the flow points along theta, and the divergence theorem on a
cap gives it in closed form:

    v_k(z) = - (P_k(theta) - P_0(theta)) / (S' sin(theta)^(D-2) q(z)) e_theta.

P_k is the probability of the cap of angle theta under component k, P_0 its share of the sphere, S' the area of the
sphere in D-1 dimensions. Implicit reparameterisation: Figurnov, Mohamed, Mnih, NeurIPS 2018.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints, register_kl

from aleator.foundation import require, require_float, without_autocast
from aleator.posteriors.caps import cap_mass
from aleator.posteriors.mixture_entropy import entropy_bounds, entropy_estimate, kl_estimate
from aleator.posteriors.moments import closest_parameters
from aleator.posteriors.overlap import log_overlap, unit_directions
from aleator.posteriors.vmf import PosteriorBatch, VonMisesFisher
from aleator.special import log_sphere_area, one_minus_bessel_ratio

_LEAPS = 200  # at most, from the mode of each component towards the mode of the mixture; five are usual
_SETTLED = 1e-12  # distance of a leap after which the mode is found
_KL_SAMPLES = 1024


class VMFMixture(PosteriorBatch):
    """Mixtures of von Mises-Fisher distributions: K directions, each with a concentration and a weight.

    Everything follows the dtype and device of the components. Methods are differentiable in weights, directions and
    concentrations unless they say otherwise. Components have no order: exchanging two of them gives the same posterior.

    Args:
        log_weights: Logarithms of the weights up to a constant, shape (..., K); the softmax makes the weights. -inf is
            a weight of 0.
        components: The components, batch shape (..., K). The batch shapes broadcast.
        validate_args: Check the arguments here and in the methods. Default: yes, unless Python runs with -O. False
            skips all checks of values; a check makes the CPU wait for a GPU.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit, or no weight of a posterior is positive.

    Examples:
        A cat or a dog, and nothing between:

        >>> import torch, aleator as al
        >>> parts = al.VonMisesFisher(torch.eye(3)[:2], 50.0)
        >>> q = al.VMFMixture(torch.tensor([0.75, 0.25]).log(), parts)
        >>> q
        VMFMixture(batch_shape=(), modes=2, dim=3, dtype=torch.float32)
        >>> q.mean
        tensor([0.7350, 0.2450, 0.0000])
        >>> q.log_prob(torch.eye(3)[:2])
        tensor([1.7865, 0.6879])
        >>> q.region(0.95).contains(torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]]))
        tensor([ True, False])
    """

    arg_constraints = {"log_weights": constraints.real_vector}  # noqa: RUF012 (torch's own convention)
    support = VonMisesFisher.support
    has_rsample = True
    _trailing = (1, 2, 1)

    def __init__(self, log_weights: Tensor, components: VonMisesFisher, validate_args: bool | None = None):
        validate = Distribution._validate_args if validate_args is None else validate_args
        if validate:
            _require_valid(log_weights, components)
        batch = torch.broadcast_shapes(log_weights.shape, components.batch_shape)
        log_weights = log_weights.log_softmax(-1)
        if log_weights.shape != batch or components.batch_shape != batch:
            log_weights, components = log_weights.expand(batch), components.expand(batch)
        self._set(log_weights, components, validate)

    def _set(self, log_weights: Tensor, components: VonMisesFisher, validate: bool) -> None:
        self._log_weights, self._components = log_weights, components
        # The base class would check the arguments again, and its errors would not say what is wrong.
        super().__init__(log_weights.shape[:-1], components.event_shape, validate_args=False)
        self._validate_args = validate

    @property
    def modes(self) -> int:
        """K, the number of components of each posterior."""
        return self.log_weights.shape[-1]

    @property
    def log_weights(self) -> Tensor:
        """Logarithms of the weights, which sum to 1, shape (..., K)."""
        return self._log_weights

    @property
    def components(self) -> VonMisesFisher:
        """The components, batch shape (..., K)."""
        return self._components

    @property
    def weights(self) -> Tensor:
        """Weights of the components, shape (..., K); they sum to 1."""
        return self.log_weights.exp()

    @property
    def certainty(self) -> Tensor:
        """One number that orders posteriors: log(S int q^2 dz), shape (...), exact. 0 for the uniform distribution.

        S is the area of the sphere. Two modes of equal weights that are far apart have log 2 less than one of them.
        """
        mu, kappa = unit_directions(self.components.mu), self.components.kappa.double()
        itself = torch.eye(self.modes, dtype=torch.bool, device=mu.device)
        gap = torch.where(itself, 0.0, 1 - mu @ mu.mT)
        both = self.log_weights[..., :, None] + self.log_weights[..., None, :]
        overlap = log_overlap(self.dim, gap, kappa[..., :, None], kappa[..., None, :])
        return torch.logsumexp(log_weighted(both.double(), overlap).flatten(-2), -1).to(self.dtype)

    @property
    def mean(self) -> Tensor:
        """E z = sum_k w_k A_1(kappa_k) mu_k, shape (..., D). It lies inside the sphere."""
        return (self.weights.unsqueeze(-1) * self.components.mean).sum(-2)

    @property
    @torch.no_grad()
    def mode(self) -> Tensor:
        """The most likely direction, shape (..., D). No gradients.

        From the mode of each component, the density is climbed by z <- sum_k w_k vMF_k(z) kappa_k mu_k, normalised,
        which never lowers it. Two such steps tell how far to leap (Varadhan and Roland, Scandinavian Journal of
        Statistics 2008); a leap that ends lower is not taken. The highest end is the mode.
        """
        q = self.detach().double().reshape(-1)
        z = q.components.mu.clone()  # (B, K, D)
        climbing = torch.arange(len(q) if self.modes > 1 else 0, device=self.device)
        for _ in range(_LEAPS):
            if not len(climbing):
                break
            before = z[climbing]
            z[climbing] = _leap(q[climbing], before)
            climbing = climbing[(z[climbing] - before).abs().amax((-2, -1)) > _SETTLED]
        height = torch.stack([_log_density(q, q.components.mu), _log_density(q, z)])  # (2, B, K)
        point = torch.isinf(q.components.kappa)
        height = torch.where(point, 1e300 * q.weights, height)  # of point masses the heaviest
        height = torch.where(q.log_weights == -math.inf, -math.inf, height)
        z = torch.where((height[1] > height[0]).unsqueeze(-1), z, q.components.mu)
        best = height.amax(0).argmax(-1)
        return z[torch.arange(len(q), device=self.device), best].reshape(*self.batch_shape, self.dim).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density with respect to the area of the sphere.

        Args:
            value: Unit vectors, shape (..., D). They broadcast with the batch.

        Returns:
            Log density, shape (...). inf at a point mass.
        """
        return torch.logsumexp(log_weighted(self.log_weights, self.components.log_prob(value.unsqueeze(-2))), -1)

    def entropy_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bound of the entropy in closed form (Kolchinsky and Tracey, Entropy 2017).

        Both are exact for one component and for components that do not overlap. They differ by less than log K.

        Returns:
            Lower and upper bound, shape (...) each.
        """
        return entropy_bounds(self)

    def entropy(self, samples: int = 256, generator: Generator | None = None) -> Tensor:
        """Differential entropy, -E log q(z), estimated from samples. `entropy_estimate` tells the error as well.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Entropy, shape (...). Exact for one component.
        """
        return self.entropy_estimate(samples, generator)[0]

    def entropy_estimate(self, samples: int = 256, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Unbiased estimate of the entropy, with its standard error. Differentiable.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Entropy and standard error, shape (...) each. Where components do not overlap, the error is about 0.
        """
        return entropy_estimate(self, samples, generator)

    def rsample(self, sample_shape: Sequence[int] = Size(), generator: Generator | None = None) -> Tensor:
        """Samples with unbiased gradients in directions, concentrations and weights.

        A sample belongs to one component and moves with it. If a weight grows, probability flows towards its component,
        and each sample moves with the flow (`move_with_weights`). The flow is fast where the density is low. So between
        modes that are far apart, gradients in the weights vary much. `weighted_rsample` has no such variance.

        Args:
            sample_shape: How many samples of each posterior.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Unit vectors, shape (*sample_shape, ..., D).
        """
        z = self.draw_components(sample_shape, generator).rsample(generator=generator)
        if torch.is_grad_enabled() and self.log_weights.requires_grad and self.modes > 1:
            return move_with_weights(self, z)
        return z

    def draw_components(
        self, sample_shape: Sequence[int] = Size(), generator: Generator | None = None
    ) -> VonMisesFisher:
        """One component of each posterior, drawn by its weight.

        Args:
            sample_shape: How many of each posterior.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Posteriors of one mode, batch shape (*sample_shape, ...).
        """
        shape = Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            steps = self.weights.cumsum(-1)[..., :-1]
            u = torch.empty(shape, dtype=self.dtype, device=self.device).uniform_(generator=generator)
            chosen = (u.unsqueeze(-1) >= steps).sum(-1, keepdim=True)  # of weights 0.2, 0.8: 0 below 0.2, 1 above
        kappa = self.components.kappa.expand(*shape, self.modes).gather(-1, chosen).squeeze(-1)
        at = chosen.unsqueeze(-1).expand(*shape, 1, self.dim)
        mu = self.components.mu.expand(*shape, self.modes, self.dim).gather(-2, at).squeeze(-2)
        return VonMisesFisher(mu, kappa, validate_args=False)

    def weighted_rsample(
        self,
        sample_shape: Sequence[int] = Size(),
        generator: Generator | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Samples of every component, with their log weights: the sampling to estimate expectations with.

        E f(z) is estimated by the mean over samples of sum_k w_k f(z_k). All gradients are unbiased. Those in the
        weights have little variance, because the weights enter directly.

        Args:
            sample_shape: How many samples of each component.
            generator: Source of randomness. Default: torch's global generator.
            noise: Standard normal numbers of the shape of the samples, instead of random ones.

        Returns:
            Unit vectors, shape (*sample_shape, ..., K, D), and log weights, shape (..., K).
        """
        return self.components.rsample(sample_shape, generator, noise), self.log_weights

    def prune(self, least: float = 1e-3) -> "VMFMixture":
        """Set weights below `least` to zero, and drop components that no posterior of the batch uses.

        Args:
            least: Smallest weight to keep, below 1/K, so that one is always kept.

        Returns:
            Posteriors of as many modes as the richest of them needs. The heaviest component comes first.
        """
        small = 0 <= least < 1 / self.modes
        require(small, "least", least, f"not in [0, 1/{self.modes})", "pass for example 1e-3")
        order = self.log_weights.detach().argsort(dim=-1, descending=True, stable=True)
        kept = self._reordered(order)
        used = kept.weights.detach() >= least
        # The shape of the result depends on the values, so this waits for a GPU.
        count = max(1, int(used.flatten(0, -2).any(0).sum())) if used.dim() > 1 else int(used.sum())
        log_weights = torch.where(used, kept.log_weights, -math.inf)[..., :count].log_softmax(-1)
        return kept._derive(log_weights, kept.components.mu[..., :count, :], kept.components.kappa[..., :count])

    def closest_vmf(self) -> VonMisesFisher:
        """The single vMF that is closest: that with the same mean, which minimises KL(q, vMF). No gradients in kappa.

        Returns:
            Posteriors of one mode with the same batch shape.
        """
        shortfall = one_minus_bessel_ratio(self.dim / 2 - 1, self.components.kappa.double())
        mu, kappa = closest_parameters(self.components.mu, shortfall, self.log_weights.double().exp())
        return VonMisesFisher(mu.to(self.dtype), kappa.to(self.dtype), validate_args=False)

    def detach_kappa(self) -> "VMFMixture":
        return self._derive(self.log_weights, self.components.mu, self.components.kappa.detach())

    def scale_kappa(self, factor: Tensor | float) -> "VMFMixture":
        q = self._fitting("factor", factor)
        if isinstance(factor, Tensor) and factor.dim():
            factor = factor.expand(q.batch_shape).unsqueeze(-1).expand(q.components.batch_shape)
        return q._with(q.components.scale_kappa(factor))

    def rotate(self, rotation: Tensor) -> "VMFMixture":
        return self._with(self.components.rotate(rotation))

    def __repr__(self) -> str:
        return (
            f"VMFMixture(batch_shape={tuple(self.batch_shape)}, modes={self.modes}, dim={self.dim}, dtype={self.dtype})"
        )

    def _component_log_prob(self, value: Tensor) -> Tensor:
        """Log densities of all components at values (..., N, D): (..., N, K), float64, without checks."""
        parts = VonMisesFisher(self.components.mu.double(), self.components.kappa.double(), validate_args=False)
        return parts.unsqueeze(-2).log_prob(value.unsqueeze(-2))

    def _reordered(self, order: Tensor) -> "VMFMixture":
        """The same posteriors with their components in another order (..., K)."""
        mu, kappa = self.components.mu, self.components.kappa
        at = order.unsqueeze(-1).expand(mu.shape)
        return self._derive(self.log_weights.gather(-1, order), mu.gather(-2, at), kappa.gather(-1, order))

    def _with(self, components: VonMisesFisher) -> "VMFMixture":
        return self._derive(self.log_weights, components.mu, components.kappa)

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.log_weights, self.components.mu, self.components.kappa

    def _places(self) -> Tensor:
        return self.log_weights[..., 0]

    def _derive(self, *tensors: Tensor) -> "VMFMixture":
        log_weights, mu, kappa = tensors
        new = object.__new__(type(self))
        new._set(log_weights, self.components._derive(mu, kappa), self._validate_args)
        return new


def _leap(q: VMFMixture, z: Tensor) -> Tensor:
    """Uphill from directions z (B, K, D), by two steps, or further along the curve they begin if that is higher."""
    first = _step(q, z)
    second = _step(q, first)
    change, bend = first - z, second - 2 * first + z
    factor = (change.norm(dim=-1) / bend.norm(dim=-1).clamp_min(1e-300)).clamp(1.0, 1e6).unsqueeze(-1)
    leap = torch.nn.functional.normalize(z + 2 * factor * change + factor.square() * bend, dim=-1)
    return torch.where((_log_density(q, leap) > _log_density(q, second)).unsqueeze(-1), leap, second)


@without_autocast
def _step(q: VMFMixture, z: Tensor) -> Tensor:
    """sum_k w_k vMF_k(z) kappa_k mu_k, normalised, which is never less likely than z; (B, K, D)."""
    parts, log_weights = q.components, q.log_weights
    pull = log_weighted(log_weights[..., None, :], q._component_log_prob(z)) + parts.kappa.log()[..., None, :]
    point = torch.isinf(parts.kappa)
    pull = torch.where(point[..., None, :], -math.inf, pull)  # a point mass pulls nothing that is not at it
    share = torch.softmax(pull, -1).nan_to_num(0.0)
    moved = torch.nn.functional.normalize(share @ parts.mu, dim=-1)
    stays = point | (moved.norm(dim=-1) < 0.5) | (log_weights == -math.inf)
    return torch.where(stays.unsqueeze(-1), z, moved)


def _log_density(q: VMFMixture, z: Tensor) -> Tensor:
    """Log density (B, K) at directions z (B, K, D); that of point masses counts nowhere but at them."""
    log_prob = q._component_log_prob(z) + q.log_weights[..., None, :]
    return torch.logsumexp(log_prob.nan_to_num(-math.inf), -1)


def log_weighted(log_weights: Tensor, log_values: Tensor) -> Tensor:
    """Log of weight times value; that of 0 for a weight of 0, also where the value is infinite."""
    return log_weights + torch.where(log_weights == -math.inf, 0.0, log_values)


def _require_valid(log_weights: Any, components: Any) -> None:
    """Raise unless the arguments are the parameters of mixtures."""
    is_vmf = isinstance(components, VonMisesFisher)
    require(is_vmf, "components", type(components).__name__, "not posteriors of one mode", "pass VonMisesFisher(mu, k)")
    require_float("log_weights", log_weights)
    shape, parts = tuple(log_weights.shape), tuple(components.batch_shape)
    problem = f"does not fit components of batch shape {parts}, whose last dimension counts the components"
    fits = len(shape) > 0 and len(parts) > 0 and shape[-1] == parts[-1] > 0
    require(fits, "log_weights", shape, problem, "pass shapes (..., K) of both")
    try:
        torch.broadcast_shapes(shape, parts)
    except RuntimeError:
        require(False, "log_weights", shape, problem, "pass shapes (..., K) of both")
    dtype, device = components.dtype, components.device
    require(log_weights.dtype == dtype, "log_weights", log_weights.dtype, f"components have {dtype}", "cast one")
    require(log_weights.device == device, "log_weights", log_weights.device, f"components are on {device}", "move one")
    some = (log_weights > -math.inf).any(-1) & (log_weights < math.inf).all(-1)  # NaN fails as well
    problem = "not the log weights of a mixture"
    require(some, "log_weights", log_weights, problem, "pass finite numbers; -inf for a weight of 0, but not for all")


@register_kl(VMFMixture, VMFMixture)
@register_kl(VMFMixture, VonMisesFisher)
@register_kl(VonMisesFisher, VMFMixture)
def _kl(q: PosteriorBatch, p: PosteriorBatch) -> Tensor:
    """E_q log q/p, estimated from 1,024 samples of each component of q; exact for one component each; (...)."""
    return kl_estimate(q, p, _KL_SAMPLES)[0]


def move_with_weights(q: VMFMixture, z: Tensor) -> Tensor:
    """The samples z (..., D) of q, unchanged, with gradients in the weights."""
    with torch.no_grad():
        velocity = weight_velocities(q, z.detach())
    weights = q.weights
    return z + ((weights - weights.detach()).unsqueeze(-1) * velocity).sum(-2)


def weight_velocities(q: VMFMixture, z: Tensor) -> Tensor:
    """v_k at z (..., D), which broadcasts with the batch of q: (..., K, D)."""
    mu, kappa = q.components.mu.double(), q.components.kappa.double()
    at = z.double().unsqueeze(-2)
    angle = 2 * torch.asin(((at - mu).norm(dim=-1) / 2).clamp_max(1.0))  # (..., K)
    sine = torch.sin(angle).clamp_min(1e-30)
    wide = kappa.expand(angle.shape)
    excess = cap_mass(q.dim, wide, angle) - cap_mass(q.dim, torch.zeros_like(wide), angle)
    log_q = q.log_prob(z).double().unsqueeze(-1)
    speed = -excess * torch.exp(-log_sphere_area(q.dim - 1) - (q.dim - 2) * sine.log() - log_q)
    outwards = (torch.cos(angle).unsqueeze(-1) * at - mu) / sine.unsqueeze(-1)
    return (speed.unsqueeze(-1) * outwards).to(z.dtype)
