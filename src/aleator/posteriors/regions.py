"""Credible regions of highest density: the smallest regions that hold a given probability.

The region of level p is {z: q(z) >= threshold}. For one vMF it is the credible cap, and everything is exact. For a
mixture it is a union of shapes around the modes. Its threshold is the density that a sample exceeds with probability p,
found from stratified samples of every component (strata.py).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from aleator.foundation import require_count, require_probability
from aleator.posteriors.caps import log_cap_share
from aleator.posteriors.strata import stratified_angles
from aleator.special import log_sphere_area

if TYPE_CHECKING:
    from aleator.posteriors.batch import PosteriorBatch
    from aleator.posteriors.vmf import VonMisesFisher

_JITTER = 1e-13  # of squared cosines
_ROUNDING = 1e-9  # nats of log density
_ANGLE_ROUNDING = 1e-7  # of an angle that comes from a cosine
_BLOCK = 2**21  # numbers of samples at a time
_LOG_NEGLIGIBLE = math.log(1e-4)  # of density that counts in no region, against that at its edge
_HALVINGS = 44  # of an interval of log densities
# Of the samples, if no generator is given: the same posterior always has the same region. Not a number that people
# choose, because noise that made the posteriors must not come back as noise of their samples.
_SEED = 7_204_981_553


@dataclass(frozen=True)
class CredibleRegion:
    """Regions of highest density of a batch of posteriors. `PosteriorBatch.region` makes them.

    Args:
        posterior: The posteriors, batch shape (...).
        log_threshold: Log density at the edge of each region, shape (...).

    Examples:
        >>> import torch, aleator as al
        >>> q = al.VonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), 10.0)
        >>> region = q.region(0.95)
        >>> region.contains(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        tensor([ True, False])
        >>> region.caps()  # that of q.cap(0.95)
        tensor([0.7004])
        >>> region.log_area().exp()  # of an area of 4 pi
        tensor(1.8823)
    """

    posterior: "PosteriorBatch"
    log_threshold: Tensor

    def contains(self, value: Tensor) -> Tensor:
        """Whether directions lie in the regions.

        Args:
            value: Unit vectors, shape (..., D). They broadcast with the batch.

        Returns:
            Booleans, shape (...).
        """
        return self.posterior.log_prob(value) >= self.log_threshold

    def caps(self) -> Tensor:
        """Caps around the components' directions that together cover the region, as cosines.

        Inside the region some w_k vMF_k(z) is at least threshold / K, which is a cap around mu_k. For one component the
        cap is the region itself. In such a cap the other components have at most some density, each by the angle
        between its direction and the cap. What is left of the threshold is up to component k, and gives a smaller cap.

        Returns:
            Cosines, shape (..., K). 2 for a component whose cap is empty, -1 for the whole sphere.
        """
        return (1 - self._cap_gaps()).to(self.posterior.dtype)

    def log_area(self, samples: int = 1024, generator: Generator | None = None) -> Tensor:
        """Log of the area of the regions. Exact for one component. No gradients.

        The area is the mean of 1/q over samples of q that lie in the region.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: a generator of its own, so that results repeat.

        Returns:
            Logarithms, shape (...). The area of the sphere is exp(`log_sphere_area(D)`).
        """
        q = self.posterior
        if q.modes == 1:
            angle = _angle(self._cap_gaps().squeeze(-1))
            return (log_cap_share(q.dim, angle) + log_sphere_area(q.dim)).to(q.dtype)
        log_q, log_weights = _densities(q, samples, generator)
        inside = log_q >= self.log_threshold.double().unsqueeze(-1)
        return torch.logsumexp(torch.where(inside, log_weights - log_q, -math.inf), -1).to(q.dtype)

    def probability(self, samples: int = 1024, generator: Generator | None = None) -> Tensor:
        """Probability that the regions hold, estimated from samples. No gradients.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: a generator of its own, so that results repeat.

        Returns:
            Probabilities, shape (...).
        """
        log_q, log_weights = _densities(self.posterior, samples, generator)
        inside = log_q >= self.log_threshold.double().unsqueeze(-1)
        return (log_weights.exp() * inside).sum(-1).to(self.posterior.dtype)

    def _cap_gaps(self) -> Tensor:
        """1 - cosine of `caps`, float64, since the cosine of a tiny cap has no digits of it. -1 for an empty cap."""
        q = self.posterior
        parts, log_weights = q.components.detach().double(), q.log_weights.detach().double()
        threshold = self.log_threshold.double().unsqueeze(-1)
        height = parts.log_prob(parts.mu)  # at mu_k
        gap = _cap_gaps(parts.kappa, height, log_weights, threshold - math.log(q.modes))
        if q.modes > 1:
            others = _log_density_of_others(parts, log_weights + height, gap)
            left = threshold + torch.log1p(-torch.exp(others - threshold).clamp(max=1.0)) - _ROUNDING
            smaller = _cap_gaps(parts.kappa, height, log_weights, left)
            gap = torch.where(smaller < gap, smaller, gap)  # also where a point mass makes NaN of it
        return gap


def _cap_gaps(kappa: Tensor, height: Tensor, log_weights: Tensor, needed: Tensor) -> Tensor:
    """1 - cosine up to which log of weight times density, `height` at cosine 1, is at least `needed`; (..., K)."""
    gap = (height - (needed - log_weights)) / kappa
    gap = torch.where(torch.isinf(kappa), torch.where(log_weights > -math.inf, 0.0, -math.inf), gap)
    gap = torch.where(torch.isnan(gap), 2.0, gap)  # 0/0: kappa = 0 at its threshold
    return torch.where(gap < 0, -1.0, gap.clamp_max(2.0))


def _angle(gap: Tensor) -> Tensor:
    """Angle of 1 - cosine; 0 for an empty cap."""
    return 2 * torch.asin((gap.clamp(0, 2) / 2).sqrt())


def _log_density_of_others(parts: "VonMisesFisher", height: Tensor, gap: Tensor) -> Tensor:
    """Log of the sum over j != k of the most that component j can have in the cap around mu_k, (..., K)."""
    angle = torch.acos((parts.mu @ parts.mu.mT).clamp(-1, 1)) - _angle(gap).unsqueeze(-1)
    nearest = (angle - _ANGLE_ROUNDING).clamp_min(0.0).cos() - 1  # [k, j]: from mu_j to the cap
    point = torch.isinf(parts.kappa).unsqueeze(-2)
    drop = torch.where(point, torch.where(nearest < -_ROUNDING, -math.inf, 0.0), parts.kappa.unsqueeze(-2) * nearest)
    most = torch.where(height.unsqueeze(-2) == -math.inf, -math.inf, height.unsqueeze(-2) + drop)
    itself = torch.eye(most.shape[-1], dtype=torch.bool, device=most.device)
    return most.masked_fill(itself, -math.inf).logsumexp(-1)


@torch.no_grad()
def credible_region(
    q: "PosteriorBatch", p: Tensor | float, samples: int, generator: Generator | None
) -> CredibleRegion:
    """The regions of level p, which broadcasts with the batch of q."""
    level = torch.as_tensor(p, dtype=torch.float64, device=q.device)
    require_probability("p", level, "pass for example 0.95")
    shape = torch.broadcast_shapes(q.batch_shape, level.shape)
    q, level = q.expand(shape), level.expand(shape)
    if q.modes == 1:
        parts = q.components
        angle = parts.cap_angle(level.unsqueeze(-1)).double()
        kappa = parts.kappa.double()
        drop = torch.where(torch.isinf(kappa), 0.0, kappa * 2 * torch.sin(angle / 2).square())
        return CredibleRegion(q, (parts.double().log_prob(parts.mu.double()) - drop).squeeze(-1).to(q.dtype))
    flat, levels, edges = q.flatten(), level.flatten().unsqueeze(-1), []
    for part, part_level in _blocks(flat, levels, samples):
        edge = torch.empty(len(part), dtype=torch.float64, device=q.device)
        apart = _are_apart(part, part_level)
        if apart.any():
            edge[apart] = _edges_apart(part[apart].double(), part_level[apart], samples)
        if not apart.all():
            log_q, reached = _sorted_densities(part[~apart], samples, generator)
            at = (reached < part_level[~apart]).sum(-1, keepdim=True).clamp_max(log_q.shape[-1] - 1)
            edge[~apart] = log_q.gather(-1, at).squeeze(-1)
        edges.append(edge)
    return CredibleRegion(q, torch.cat(edges).view(shape).to(q.dtype))


def _are_apart(q: "PosteriorBatch", level: Tensor) -> Tensor:
    """Whether, of posteriors (B,), no component counts in the part of another in the region of level (B, 1).

    The caps of all components that hold the level hold it together, so the lowest density in them is at most that at
    the edge of the region. It is known from a bound: kappa (1 - cosine) is never more than a gamma variable.
    """
    from scipy import special

    parts, log_weights = q.components.double(), q.log_weights.double()
    height = parts.log_prob(parts.mu)
    used = log_weights > -math.inf
    drop = torch.as_tensor(special.gammaincinv((q.dim - 1) / 2, level.cpu().numpy()), device=q.device)
    lowest = torch.where(used, log_weights + height - drop, math.inf).amin(-1, keepdim=True)
    gap = _cap_gaps(parts.kappa, height, log_weights, lowest - math.log(q.modes))
    others = _log_density_of_others(parts, log_weights + height, gap)
    negligible = ((others < lowest + _LOG_NEGLIGIBLE) | (gap < 0)).all(-1)
    return negligible & torch.isfinite(parts.kappa).all(-1)


def _edges_apart(q: "PosteriorBatch", level: Tensor, samples: int) -> Tensor:
    """Log density (B,) at the edges of the regions of level (B, 1) of posteriors whose components are apart.

    Only the angle with the own direction matters, so nothing is random: the edge is between densities at angles that
    split each component into `samples` parts of equal probability.
    """
    parts, weight = q.components, q.log_weights.exp()
    height = q.log_weights + parts.log_prob(parts.mu)
    drop = parts.kappa.unsqueeze(-1) * 2 * (stratified_angles(parts, samples) / 2).sin().square()
    log_q = height.unsqueeze(-1) - drop  # (B, K, N), descending
    rising = (-log_q).contiguous()

    def count(edge: Tensor) -> Tensor:
        """How many samples of each component are above the edge (B, 1), as a tensor (B, K)."""
        edges = (-edge).unsqueeze(-1).expand(*weight.shape, 1).contiguous()
        return torch.searchsorted(rising, edges, right=True).squeeze(-1)

    low = torch.where(weight > 0, log_q[..., -1], math.inf).amin(-1, keepdim=True)
    high = log_q[..., 0].amax(-1, keepdim=True)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = (weight * count(middle)).sum(-1, keepdim=True) >= level * samples
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    inside = count(low)
    last = log_q.gather(-1, (inside - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return torch.where(inside > 0, last, math.inf).amin(-1)


@torch.no_grad()
def region_level(q: "PosteriorBatch", value: Tensor, samples: int, generator: Generator | None) -> Tensor:
    """Level of the smallest region that holds each value (..., D), which broadcasts with the batch of q."""
    if q.modes == 1:
        parts = q.components
        angle = 2 * torch.asin(((value.unsqueeze(-2) - parts.mu).double().norm(dim=-1) / 2).clamp_max(1.0))
        return parts.double().cap_angle_probability(angle).squeeze(-1).to(q.dtype)
    log_prob = q.log_prob(value).double()
    if not log_prob.numel():
        return log_prob.to(q.dtype)
    batch = log_prob.shape[log_prob.dim() - len(q.batch_shape) :]
    flat = q.expand(batch).flatten()
    values, levels = log_prob.reshape(-1, len(flat)).mT.contiguous(), []  # (B, number of values of each posterior)
    for part, part_values in _blocks(flat, values, samples):
        log_q, reached = _sorted_densities(part, samples, generator)
        above = torch.searchsorted(-log_q, -part_values)  # how many samples have a higher density
        levels.append(torch.nn.functional.pad(reached, (1, 0)).gather(-1, above))
    return torch.cat(levels).mT.reshape(log_prob.shape).to(q.dtype)


def _blocks(q: "PosteriorBatch", beside: Tensor, samples: int) -> Iterator[tuple["PosteriorBatch", Tensor]]:
    """Posteriors (B,) and a tensor (B, ...) in blocks whose samples fit into memory."""
    require_count("samples", samples, "pass 1024")
    size = max(1, _BLOCK // (samples * q.modes**2))
    return zip(q.split(size), beside.split(size), strict=True)


def _sorted_densities(q: "PosteriorBatch", samples: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """Log densities at samples in descending order, and the probability of the samples up to each; (B, N K) each."""
    log_q, log_weights = _densities(q, samples, generator)
    log_q, order = log_q.sort(-1, descending=True)
    return log_q, log_weights.exp().gather(-1, order).cumsum(-1)


@torch.no_grad()
def _densities(q: "PosteriorBatch", samples: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """Log density at `samples` samples of every component, and their log weights: (..., N K) each, float64.

    The density depends on the cosines with the K directions alone, so only these are drawn: of a sample of component k
    the angle with mu_k, stratified, and the part of its direction around mu_k that lies in the span of the others.
    """
    if generator is None:
        generator = torch.Generator(q.device).manual_seed(_SEED)
    flat = q.flatten().double() if q.batch_shape else q.unsqueeze(0).double()
    parts, log_weights = flat.components, flat.log_weights
    K = q.modes
    angle = stratified_angles(parts, samples)  # (B, K, N) with its own mu
    cosine, sine = angle.cos(), angle.sin()
    own = torch.eye(K, dtype=torch.bool, device=q.device)
    gram = torch.where(own, 1.0, parts.mu @ parts.mu.mT)
    coordinates, around = _around(parts.mu, gram, own, samples, generator)
    # Log of weight times density of all components j at samples of every k, (B, K, N, K): that at mu_j, and kappa_j
    # times the cosine less 1. A point mass has no density but at its own samples, where it is infinite.
    point = torch.isinf(parts.kappa)
    kappa = torch.where(point, 0.0, parts.kappa).unsqueeze(1)
    height = torch.where(point | (log_weights == -math.inf), -math.inf, log_weights + parts.log_prob(parts.mu))
    logs = (around @ (coordinates * kappa.unsqueeze(-1)).mT).mul_(sine.unsqueeze(-1))
    logs.addcmul_(cosine.unsqueeze(-1), (gram * kappa).unsqueeze(-2)).add_((height.unsqueeze(1) - kappa).unsqueeze(-2))
    # Of two numbers, `logsumexp` takes several times as long as `logaddexp`.
    log_sum = torch.logaddexp(logs[..., 0], logs[..., 1]) if K == 2 else torch.logsumexp(logs, -1)
    log_q = torch.where(point.unsqueeze(-1), math.inf, log_sum)
    each = (log_weights - math.log(samples)).unsqueeze(-1).expand(log_q.shape)
    shape = (*q.batch_shape, K * samples)
    return log_q.reshape(shape), each.reshape(shape)


def _around(mu: Tensor, gram: Tensor, own: Tensor, samples: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Parts of all mu that are orthogonal to mu_k, (B, K, K, d), and uniform unit vectors orthogonal to it, (K, N, d).

    In coordinates of a subspace with all mu: the uniform vectors have lost the coordinates outside of it.
    """
    K, D = mu.shape[-2:]
    noise = torch.randn(K, samples, D - 1 if D > K else D, dtype=mu.dtype, device=mu.device, generator=generator)
    if D <= K:
        noise = noise - (noise @ mu.unsqueeze(-1)) * mu.unsqueeze(-2)  # (B, K, N, D)
        parts = mu.unsqueeze(1) - gram.unsqueeze(-1) * mu.unsqueeze(-2)
        return parts, torch.nn.functional.normalize(noise, dim=-1)
    orthogonal = gram.unsqueeze(1) - gram.unsqueeze(-1) * gram.unsqueeze(-2)  # inner products, (B, K, K, K)
    # Directions may be parallel, and then the matrix has no factor but for a little more on its diagonal.
    parts = torch.linalg.cholesky(orthogonal + _JITTER * torch.eye(K, dtype=mu.dtype, device=mu.device))
    return torch.where(own.unsqueeze(-1), 0.0, parts), torch.nn.functional.normalize(noise, dim=-1)[..., :K]
