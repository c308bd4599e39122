"""Gegenbauer polynomials P_n on the sphere S^{D-1}, normalised to P_n(1) = 1, and the number of harmonics by degree."""

import math
from functools import lru_cache

import torch
from torch import Tensor


def harmonic_dimension(dim: int, degree: int) -> int:
    """How many independent harmonics of a degree there are on S^{D-1}: 1, D, ..., and 1, 2, 2, 2, ... on the circle."""
    if degree == 0:
        return 1
    if dim == 2:
        return 2
    return (2 * degree + dim - 2) * math.comb(degree + dim - 3, degree) // (dim - 2)


@lru_cache(maxsize=256)
def log_harmonic_dimensions(dim: int, terms: int, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008
    """log dim_n for n = 0 .. terms-1, float64: the dimensions themselves overflow where D is large."""
    # From exact integers: differences of log-gammas would cost four digits in a thousand dimensions.
    logs = [math.log(harmonic_dimension(dim, n)) for n in range(terms)]
    return torch.tensor(logs, dtype=torch.float64, device=device)


def recurrence(dim: int, degree: int) -> tuple[float, float]:
    """(a, b) of P_{n+1} = a t P_n - b P_{n-1}, stable on [-1, 1]; (n+D-2) P_{n+1} = (2n+D-2) t P_n - n P_{n-1}."""
    if degree == 0:
        return 1.0, 0.0
    return (2 * degree + dim - 2) / (degree + dim - 2), degree / (degree + dim - 2)


def gegenbauer(dim: int, terms: int, t: Tensor) -> Tensor:
    """P_0 .. P_{terms-1} at t, of shape (terms, *t.shape). D = 2: cos(n theta); D = 3: Legendre."""
    values = [torch.ones_like(t)]
    if terms > 1:
        values.append(t)
    for n in range(1, terms - 1):
        a, b = recurrence(dim, n)
        values.append(a * t * values[n] - b * values[n - 1])
    return torch.stack(values[:terms])
