r"""Debye's expansion of the Bessel function I_V at a large order V, exact to float64 for every kappa.

With p = sqrt(V^2 + kappa^2) and t = V/p (DLMF 10.41; Olver 1974), in logarithmic form:

    log I_V = p + V log(kappa / (V + p)) - log(2 pi p)/2 + E(t),    E(t) = sum_k D_k(t) / V^k.

The polynomials D_k are computed once, in exact rational arithmetic.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

# From this order on, this number of terms is exact to float64. The largest error over all kappa is 6e-16 in the
# logarithm and 2e-15 in the ratio.
DEBYE_ORDER = 20.0
_TERMS = 12

Coefficients = tuple[float, ...]


def steps_to_debye(order: float) -> int:
    """By how many the order has to grow until the expansion is exact."""
    return max(0, math.ceil(DEBYE_ORDER - order))


def debye_expansion(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """log_growth and I_{V+1}/(kappa I_V) at an order V >= DEBYE_ORDER; both in the shape of kappa, float64.

    With `with_ratio=False` the second tensor is not computed, and the first is returned in its place.

    With lgamma(V+1) = V log V - V + log(2 pi V)/2 + stirling(V), no difference below cancels:
    log_growth = (p-V) - V log1p((p-V)/2V) + log(t)/2 + stirling(V) + E(t).
    Since dt/dkappa = -t kappa/p^2, its derivative divided by kappa is 1/(p+V) - (1/2 + t E'(t))/p^2.
    """
    e, g, _ = debye_polynomials(order)
    p = kappa.square().add_(order**2).sqrt_()
    t = order / p
    excess = kappa / (p + order)
    excess.mul_(kappa).div_(order)  # (p - V) / V
    growth = horner(e, t)
    growth.add_(excess, alpha=order)
    growth.sub_(torch.log1p(excess / 2), alpha=order)
    growth.add_(t.log(), alpha=0.5)  # t = 1/(1 + excess)
    if not with_ratio:
        return growth, growth
    ratio = horner(g, t).div_(p).div_(p).neg_()
    ratio.add_(p.add_(order).reciprocal_())
    return growth, ratio


@lru_cache(maxsize=4096)
def debye_polynomials(order: float) -> tuple[Coefficients, Coefficients, Coefficients]:
    """Three polynomials in t on [0, 1] for one order V: stirling(V) + E(t), G = 1/2 + t E'(t), and t G'(t).

    E has degree 36. Most of its Chebyshev coefficients are below rounding, and are dropped.
    """
    E = sum((polynomial / order**k for k, polynomial in enumerate(_debye_table(), start=1)), Polynomial([0.0]))
    t = Polynomial([0.0, 1.0])
    G = 0.5 + t * E.deriv()
    # log_growth is 0 at kappa = 0, where t = 1. So stirling(V) = -E(1), to all digits that matter.
    # G and t G' are later divided by p^2 >= 400, so they need fewer digits.
    return tuple(_economise(q, tail) for q, tail in ((E - E(1.0), 5e-17), (G, 5e-16), (t * G.deriv(), 5e-16)))  # type: ignore[return-value]


def horner(coefficients: Coefficients, x: Tensor) -> Tensor:
    """Value of a polynomial at x, elementwise."""
    value = torch.full_like(x, coefficients[-1])
    for c in _constants(coefficients[-2::-1], x.dtype, x.device):
        torch.addcmul(c, value, x, out=value)
    return value


@lru_cache(maxsize=1024)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Scalars on the device. Cached, since nothing may be copied from the host while a CUDA graph is recorded."""
    return torch.tensor(values, dtype=dtype, device=device).unbind()


def _economise(polynomial: Polynomial, tail: float) -> Coefficients:
    """Coefficients by power of t, without the last Chebyshev terms that are below `tail`."""
    chebyshev = polynomial.convert(kind=Chebyshev, domain=[0.0, 1.0]).trim(tail)
    return tuple(float(c) for c in chebyshev.convert(kind=Polynomial).coef)


@lru_cache(maxsize=1)
def _debye_table() -> tuple[Polynomial, ...]:
    """D_1 .. D_K with log sum_k U_k(t)/V^k = sum_k D_k(t)/V^k, in exact rational arithmetic.

    U_{k+1} = t^2 (1-t^2) U_k'/2 + (1/8) int_0^t (1 - 5 s^2) U_k(s) ds   (DLMF 10.41.9).
    """
    U: list[dict[int, Fraction]] = [{0: Fraction(1)}]
    for _ in range(_TERMS):
        following: dict[int, Fraction] = {}
        for n, c in U[-1].items():
            following[n + 1] = following.get(n + 1, Fraction(0)) + c * (Fraction(n, 2) + Fraction(1, 8 * (n + 1)))
            following[n + 3] = following.get(n + 3, Fraction(0)) - c * (Fraction(n, 2) + Fraction(5, 8 * (n + 3)))
        U.append(following)
    D: list[dict[int, Fraction]] = [{}]
    for k in range(1, _TERMS + 1):  # k U_k = sum_j j D_j U_{k-j}
        term = dict(U[k])
        for j in range(1, k):
            for n, c in D[j].items():
                for m, u in U[k - j].items():
                    term[n + m] = term.get(n + m, Fraction(0)) - Fraction(j, k) * c * u
        D.append(term)
    table = []
    for term in D[1:]:
        coefficients = np.zeros(max(term) + 1)
        for n, c in term.items():
            coefficients[n] = float(c)
        table.append(Polynomial(coefficients))
    return tuple(table)
