"""Dimensions, concentrations and posteriors that several tests use."""

import torch
from hypothesis import strategies as st

from aleator import VonMisesFisher

DIMENSIONS = (2, 3, 4, 5, 7, 10, 16, 31, 64, 128, 512, 1024, 4096)
KAPPAS = (0.0, 1e-6, 1e-3, 0.1, 1.0, 5.0, 10.0, 50.0, 100.0, 1e3, 1e4, 1e6)
any_kappa = st.one_of(st.just(0.0), st.floats(-300, 300).map(lambda e: 10.0**e))


def axis(dim: int, index: int = 0, sign: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    mu = torch.zeros(dim, dtype=dtype)
    mu[index] = sign
    return mu


def random_directions(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(noise, dim=-1).to(dtype)


def vmf(dim: int, *kappas: float, dtype: torch.dtype = torch.float64, seed: int = 0) -> VonMisesFisher:
    return VonMisesFisher(
        random_directions(len(kappas), dim, seed=seed, dtype=dtype), torch.tensor(kappas, dtype=dtype)
    )
