"""Gegenbauer polynomials P_n on the sphere S^{D-1}, normalised to P_n(1) = 1, and the number of harmonics by degree."""

import math
from functools import lru_cache

import torch
from torch import Tensor


def harmonic_dimension(dim: int, degree: int) -> int:
    """Number of independent spherical harmonics of one degree.

    Args:
        dim: Dimension D of the space around the sphere, >= 2.
        degree: Degree n of the harmonics.

    Returns:
        dim_n as an exact integer: 1, D, ... for n = 0, 1, ...; on the circle 1, 2, 2, 2, ...

    Examples:
        >>> from aleator.special import harmonic_dimension
        >>> [harmonic_dimension(3, n) for n in range(4)]
        [1, 3, 5, 7]
    """
    if degree == 0:
        return 1
    if dim == 2:
        return 2
    return (2 * degree + dim - 2) * math.comb(degree + dim - 3, degree) // (dim - 2)


@lru_cache(maxsize=256)
def log_harmonic_dimensions(dim: int, terms: int, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008
    """log dim_n for n = 0 .. terms-1, float64, shape (terms,). In high dimensions dim_n itself overflows."""
    # From exact integers: differences of log-gammas would lose four digits in a thousand dimensions.
    logs = [math.log(harmonic_dimension(dim, n)) for n in range(terms)]
    return torch.tensor(logs, dtype=torch.float64, device=device)


def recurrence(dim: int, degree: int) -> tuple[float, float]:
    """(a, b) of the recurrence P_{n+1} = a t P_n - b P_{n-1}, which is stable on [-1, 1].

    It is (n+D-2) P_{n+1} = (2n+D-2) t P_n - n P_{n-1}, divided by n+D-2.
    """
    if degree == 0:
        return 1.0, 0.0
    return (2 * degree + dim - 2) / (degree + dim - 2), degree / (degree + dim - 2)


def gegenbauer(dim: int, terms: int, t: Tensor) -> Tensor:
    """Gegenbauer polynomials P_0 .. P_{terms-1} of the sphere, with P_n(1) = 1. Differentiable in t.

    On the circle (D = 2) these are cos(n theta) with t = cos(theta), for D = 3 Legendre's polynomials.

    Args:
        dim: Dimension D of the space around the sphere, >= 2.
        terms: Number of polynomials.
        t: Cosines in [-1, 1], any shape.

    Returns:
        Values, shape (terms, *t.shape), in the dtype of t.

    Examples:
        >>> import torch
        >>> from aleator.special import gegenbauer
        >>> gegenbauer(3, 3, torch.tensor([-1.0, 0.0, 0.5]))  # 1, t, (3 t^2 - 1) / 2
        tensor([[ 1.0000,  1.0000,  1.0000],
                [-1.0000,  0.0000,  0.5000],
                [ 1.0000, -0.5000, -0.1250]])
    """
    values = [torch.ones_like(t)]
    if terms > 1:
        values.append(t)
    for n in range(1, terms - 1):
        a, b = recurrence(dim, n)
        values.append(a * t * values[n] - b * values[n - 1])
    return torch.stack(values[:terms])
