"""Mixtures that several tests use, and grids on circle and sphere to integrate over."""

import math

import numpy as np
import torch
from torch import Tensor

from aleator import VMFMixture, VonMisesFisher
from tests import reference
from tests.posteriors.cases import random_directions


def mixture(
    *shape: int, modes: int = 2, dim: int = 3, low: float = 1.0, high: float = 30.0, seed: int = 0, dtype=torch.float64
) -> VMFMixture:
    """Random mixtures, whose parameters are leaves of a graph."""
    generator = torch.Generator().manual_seed(seed)
    mu = random_directions(*shape, modes, dim, seed=seed, dtype=dtype)
    kappa = low * (high / low) ** torch.rand(*shape, modes, dtype=torch.float64, generator=generator)
    logits = torch.randn(*shape, modes, generator=generator, dtype=torch.float64).to(dtype)
    parts = VonMisesFisher(mu.requires_grad_(), kappa.to(dtype).requires_grad_(), validate_args=False)
    return VMFMixture(logits.requires_grad_(), parts)


def grid(dim: int) -> tuple[Tensor, float]:
    """Points that cover the circle or the sphere evenly, and the area of each."""
    if dim == 2:
        angle = torch.arange(20_000, dtype=torch.float64) * (2 * math.pi / 20_000)
        return torch.stack([angle.cos(), angle.sin()], 1), 2 * math.pi / 20_000
    count = 200_000  # Fibonacci points
    i = torch.arange(count, dtype=torch.float64)
    height, turn = 1 - (2 * i + 1) / count, i * (math.pi * (3 - math.sqrt(5)))
    radius = (1 - height.square()).sqrt()
    return torch.stack([radius * turn.cos(), radius * turn.sin(), height], 1), 4 * math.pi / count


def brute_samples(q: VMFMixture, count: int, seed: int = 0) -> Tensor:
    """Samples of one mixture by another sampler: a component by its weight, an angle by inversion."""
    rng = np.random.default_rng(seed)
    weights, mu, kappa = (x.detach().double().numpy() for x in (q.weights, q.components.mu, q.components.kappa))
    counts = rng.multinomial(count, weights / weights.sum())
    parts = [reference.sample_vmf(rng, m, k, n) for m, k, n in zip(mu, kappa, counts, strict=True) if n]
    return torch.as_tensor(np.concatenate(parts))
