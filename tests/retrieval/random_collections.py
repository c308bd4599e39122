"""Random collections with difficult cases: duplicates, antipodes, flat and point posteriors."""

import math

import torch
from hypothesis import strategies as st

from aleator import VonMisesFisher

DIMS = (2, 3, 5, 16, 33, 64, 128, 512)
LEVELS = (0.01, 0.5, 0.9, 0.95, 0.999)
KAPPAS = (0.0, 0.125, 3.0, 20.0, 150.0, 4000.0, 1e6, math.inf)  # exact in float32


def posteriors(n: int, dim: int, generator: torch.Generator, near: torch.Tensor | None = None) -> VonMisesFisher:
    """n posteriors, about half of them near rows of `near`, at angles where some kappa of the list decides."""
    mu = torch.randn(n, dim, generator=generator)
    if near is not None and len(near):
        close = near[torch.randint(len(near), (n,), generator=generator)]
        spread = torch.tensor([0.0, 1e-3, 0.05, 0.3])[torch.randint(4, (n, 1), generator=generator)]
        mixed = close + spread * torch.randn(n, dim, generator=generator) / math.sqrt(dim)
        mu = torch.where(torch.rand(n, 1, generator=generator) < 0.6, mixed, mu)
    kappa = torch.tensor(KAPPAS)[torch.randint(len(KAPPAS), (n,), generator=generator)]
    return VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), kappa)


def with_repeats(q: VonMisesFisher, generator: torch.Generator) -> VonMisesFisher:
    """Some rows again, and some at the antipode."""
    n = len(q)
    if n < 2:
        return q
    source = torch.arange(n)
    repeat = torch.rand(n, generator=generator) < 0.3
    source[repeat] = torch.randint(n, (int(repeat.sum()),), generator=generator)
    mu, kappa = q.mu[source].clone(), q.kappa[source].clone()
    flip = torch.rand(n, generator=generator) < 0.05
    mu[flip] = -mu[flip]
    return VonMisesFisher(mu, kappa)


@st.composite
def collections(draw, most: int = 24):
    """(items, queries, level)."""
    dim = draw(st.sampled_from(DIMS))
    n = draw(st.integers(0, most))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    items = with_repeats(posteriors(n, dim, generator), generator)
    queries = posteriors(draw(st.integers(1, 4)), dim, generator, near=items.mu)
    return items, queries, draw(st.sampled_from(LEVELS))
