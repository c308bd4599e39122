"""How close learned mixtures are to the true ones: matched components, and the distance of the densities."""

from itertools import permutations

import torch
from torch import Generator, Tensor

from aleator.foundation import require
from aleator.posteriors import PosteriorBatch, VMFMixture


def match_components(learned: PosteriorBatch, true: PosteriorBatch) -> VMFMixture:
    """The learned mixtures with their components in the order of the true ones.

    Components have no order of their own. Of all orders, each posterior takes the one with the smallest sum of
    distances between directions, where a component counts by the mean of its two weights.

    Args:
        learned: Posteriors, batch shape (B,), in the space of the true ones; see `aligning_rotation`.
        true: Posteriors of as many components, batch shape (B,).

    Returns:
        The same posteriors as `learned`. Component k belongs to component k of `true`.

    Raises:
        ValueError: If the numbers of components differ, or are more than 6.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import match_components
        >>> parts = al.VonMisesFisher(torch.eye(3)[:2], torch.tensor([5.0, 50.0]))
        >>> true = al.VMFMixture(torch.zeros(1, 2), parts)
        >>> swapped = al.VMFMixture(torch.zeros(1, 2), parts[[1, 0]])
        >>> match_components(swapped, true).components.kappa
        tensor([[ 5., 50.]])
    """
    modes = true.modes
    require(learned.modes == modes, "learned", f"{learned.modes} modes", f"the truth has {modes}", "pass as many")
    require(modes <= 6, "true", f"{modes} modes", "too many orders to try", "pass at most 6")
    orders = torch.tensor(list(permutations(range(modes))), device=true.device)  # (P, K)
    distance = 1 - true.components.mu.double() @ learned.components.mu.double().mT  # (B, K, K')
    weight = (true.log_weights.exp()[:, :, None] + learned.log_weights.exp()[:, None, :]).double() / 2
    cost = (distance * weight)[:, torch.arange(modes, device=true.device), orders].sum(-1)  # (B, P)
    order = orders[cost.argmin(-1)]
    parts, at = learned.components, order.unsqueeze(-1).expand(-1, -1, learned.dim)
    matched = type(parts)(parts.mu.gather(1, at), parts.kappa.gather(1, order), validate_args=False)
    return VMFMixture(learned.log_weights.gather(1, order), matched, validate_args=False)


@torch.no_grad()
def total_variation(
    q: PosteriorBatch, p: PosteriorBatch, samples: int = 256, generator: Generator | None = None
) -> Tensor:
    """Distance of densities, half the integral of |q - p|: 0 if they are equal, 1 if they do not overlap.

    It is E_p max(0, 1 - q/p), estimated from samples of every component of p.

    Args:
        q: Posteriors, batch shape (B,).
        p: Posteriors, batch shape (B,), of any number of modes.
        samples: Number of samples of each component.
        generator: Source of randomness. Default: torch's global generator.

    Returns:
        Distances, shape (B,).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import total_variation
        >>> q = al.VonMisesFisher(torch.eye(3), 1000.0)
        >>> total_variation(q, q), total_variation(q, q.roll(1, 0))
        (tensor([0., 0., 0.]), tensor([1., 1., 1.]))
    """
    weights, total = p.log_weights.exp(), torch.zeros_like(p.log_weights)
    block = max(1, 2**21 // max(1, p.components.mu.numel()))
    for start in range(0, samples, block):
        z = p.components.sample((min(block, samples - start),), generator)  # (S, B, K, D)
        log_ratio = q.unsqueeze(-1).log_prob(z) - p.unsqueeze(-1).log_prob(z)
        total += (1 - log_ratio.exp()).clamp_min(0).sum(0)
    return (weights * total / samples).sum(-1)
