r"""Entropy and Kullback-Leibler divergence of mixtures: bounds in closed form, and estimates from samples.

Samples z of component k, and its density q_k, which is known exactly, give

    H(q) = sum_k w_k ( H(q_k) - E_k log q(z)/q_k(z) ).

Only the second part is estimated. It is constant where components do not overlap (log w_k), and 0 for one component.
The divergence is treated in the same way, with the component p_j of the other mixture that is closest to q_k:

    KL(q, p) = sum_k w_k ( KL(q_k, p_j) + E_k log q(z)/q_k(z) - E_k log p(z)/p_j(z) ).

At a point mass the ratio of densities is the weight of the point masses there.
"""

import math

import torch
from torch import Generator, Tensor
from torch.distributions import kl_divergence

from aleator.foundation import require, require_count
from aleator.posteriors.overlap import log_overlap, unit_directions
from aleator.posteriors.stratified_sampling import stratified_noise
from aleator.posteriors.vmf import PosteriorBatch, VonMisesFisher
from aleator.special import kappa_minus_log_growth

_BLOCK = 2**22  # numbers per block of samples


def entropy_bounds(q: PosteriorBatch) -> tuple[Tensor, Tensor]:
    """Lower and upper bound (...) of the entropy, from pairs of components (Kolchinsky and Tracey, Entropy 2017).

    sum_k w_k H_k - sum_k w_k log sum_j w_j exp(-d_kj) with d the Bhattacharyya distance or the KL divergence.
    """
    parts, log_weights = q.components.double(), q.log_weights.double()
    rows, columns = parts.unsqueeze(-1), parts.unsqueeze(-2)
    own = parts.entropy()
    itself = torch.eye(q.modes, dtype=torch.bool, device=q.device)
    bounds = []
    for distance in (_bhattacharyya(rows, columns), kl_divergence(rows, columns)):
        near = torch.logsumexp(log_weights[..., None, :] - torch.where(itself, 0.0, distance), -1)
        weights = log_weights.exp()
        bounds.append((weights * torch.where(weights > 0, own - near, 0.0)).sum(-1).to(q.dtype))
    return bounds[0], bounds[1]


def entropy_estimate(q: PosteriorBatch, samples: int, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Estimate of the entropy and its standard error, (...) each."""
    require_count("samples", samples, "pass 256")
    if q.modes == 1:
        entropy = q.components.entropy().squeeze(-1)
        return entropy, torch.zeros_like(entropy)
    z = q.components.rsample((samples,), noise=stratified_noise(q.components.mu, samples, generator))
    return _combine(q.log_weights, q.components.entropy(), -_log_ratio(q, q.components, z))


def kl_estimate(
    q: PosteriorBatch, p: PosteriorBatch, samples: int, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Estimate of KL(q, p) and its standard error, (...) each. The batch shapes broadcast."""
    require(q.dim == p.dim, "p", f"dimension {p.dim}", f"q has dimension {q.dim}", "pass posteriors of one dimension")
    require_count("samples", samples, "pass 1024")
    batch = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    q, p = q.expand(batch), p.expand(batch)
    divergence = kl_divergence(q.components.unsqueeze(-1), p.components.unsqueeze(-2))  # (..., K, J)
    with torch.no_grad():  # any choice of j is right; the closest leaves least to the samples
        closest = (divergence.nan_to_num(math.inf) - p.log_weights.unsqueeze(-2)).argmin(-1, keepdim=True)
    exact = divergence.gather(-1, closest).squeeze(-1)
    if q.modes == p.modes == 1:
        return exact.squeeze(-1), torch.zeros_like(exact.squeeze(-1))
    at = closest.expand(*closest.shape[:-1], p.dim)
    chosen = p.components._derive(p.components.mu.gather(-2, at), p.components.kappa.gather(-1, closest.squeeze(-1)))
    z = q.components.rsample((samples,), noise=stratified_noise(q.components.mu, samples, generator))
    return _combine(q.log_weights, exact, _log_ratio(q, q.components, z) - _log_ratio(p, chosen, z))


def _log_ratio(q: PosteriorBatch, parts: VonMisesFisher, z: Tensor) -> Tensor:
    """log q(z) - log parts(z) for samples z (N, ..., K, D) and one part for each k: (N, ..., K)."""
    each, whole = q.unsqueeze(-1), q.components.unsqueeze(-2)
    size = max(1, _BLOCK // max(1, z[0].numel() * q.modes))
    point = torch.isinf(parts.kappa)
    there = torch.isinf(whole.kappa) & (whole.mu == parts.mu.unsqueeze(-2)).all(-1)  # (..., K, components of q)
    mass = torch.where(there, q.log_weights.exp().unsqueeze(-2), 0.0).sum(-1)
    ratio = torch.cat([each.log_prob(block) - parts.log_prob(block) for block in z.split(size)])
    return torch.where(point, torch.where(point, mass, 1.0).log(), ratio)


def _combine(log_weights: Tensor, exact: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """sum_k w_k (exact_k + mean of sampled_k), and its standard error, from (..., K), (..., K) and (N, ..., K)."""
    weights = log_weights.exp()
    used = weights > 0
    each = torch.where(torch.isinf(exact), exact, exact + sampled.mean(0))
    value = (weights * torch.where(used, each, 0.0)).sum(-1)
    spread = sampled.detach().var(0) if len(sampled) > 1 else torch.full_like(sampled[0], math.inf)
    error = torch.where(used, weights.detach().square() * spread / len(sampled), 0.0).sum(-1).sqrt()
    return value, torch.where(torch.isinf(value.detach()), 0.0, error)  # what is infinite is so without an error


def _bhattacharyya(q: VonMisesFisher, p: VonMisesFisher) -> Tensor:
    """-log int sqrt(q p) dz. sqrt(q) is a vMF with half the kappa, but for its normaliser."""

    def excess(kappa: Tensor) -> Tensor:
        """log C(kappa)/2 - log C(kappa/2) - log(S)/2."""
        return kappa_minus_log_growth(q.dim / 2 - 1, kappa) / 2 - kappa_minus_log_growth(q.dim / 2 - 1, kappa / 2)

    cosine_gap = (unit_directions(q.mu) - unit_directions(p.mu)).square().sum(-1) / 2
    kappa_q, kappa_p = (torch.where(torch.isinf(k), 1.0, k) for k in (q.kappa, p.kappa))
    overlap = log_overlap(q.dim, cosine_gap, kappa_q / 2, kappa_p / 2)
    point_q, point_p = torch.isinf(q.kappa), torch.isinf(p.kappa)
    distance = torch.where(point_q | point_p, math.inf, -(overlap + excess(kappa_q) + excess(kappa_p)))
    return torch.where(point_q & point_p & (cosine_gap == 0), 0.0, distance)
