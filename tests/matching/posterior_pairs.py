"""Pairs of posteriors for the tests of expected positivity."""

import math

import torch

from aleator import VonMisesFisher

INF = math.inf
# (kappa, kappa'): both extremes, both equal, and far apart
KAPPAS = (
    (0.0, 5.0),
    (1e-3, 1e4),
    (0.5, 0.5),
    (5.0, 30.0),
    (30.0, 30.0),
    (200.0, 1e3),
    (1e4, 1e4),
    (10.0, INF),
    (1e3, INF),
    (INF, INF),
)
# exact in float32, so that both dtypes have the same reference
COSINES = (-1.0, -0.625, -0.125, 0.25, 0.5, 0.75, 0.9375, 0.9990234375, 1.0)


def at_cosines(dim: int, cosine, kappa1: float, kappa2: float, dtype: torch.dtype = torch.float64):
    """Pairs of posteriors whose directions have exactly these cosines."""
    cosine = torch.as_tensor(cosine, dtype=dtype)
    mu1 = torch.zeros(*cosine.shape, dim, dtype=dtype)
    mu2 = mu1.clone()
    mu1[..., 0], mu2[..., 0] = 1, cosine
    mu2[..., 1] = ((1 - cosine.double()) * (1 + cosine.double())).sqrt().to(dtype)
    return (VonMisesFisher(mu, torch.full(cosine.shape, k, dtype=dtype)) for mu, k in ((mu1, kappa1), (mu2, kappa2)))


def some_posteriors(count: int, dim: int, low: float = 1.0, high: float = 60.0, seed: int = 0) -> VonMisesFisher:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    kappa = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    return VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), kappa)
