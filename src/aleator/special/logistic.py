r"""Moments of a logistic function on the sphere, with more digits than float64 has.

    m_n = int g P_n w dt / int g w dt,     g(t) = 1/(1 + exp(offset - slope t)),     w(t) = (1 - t^2)^((D-3)/2)

They are the coefficients of `AcceptanceKernel` (matching/kernels.py). They fall like 1/sqrt(dim_n) or faster, and the
series of matching/series.py multiplies them by dim_n, which is huge in high dimensions: an error of 1e-16 in m_n would
be larger than the terms. So the moments are computed here in fixed point, as Python integers.

The quadrature is a plain sum over the angles pi (j + 1/2)/N. Let d be the distance of the nearest pole of g from the
real angles. For even D the integrand g P_n sin^(D-2) is a smooth periodic function of the angle, and the sum converges
like exp(-2 N d). For odd D one factor sin(angle) is left. Fejér's weights replace it: they integrate polynomials below
degree N exactly, and the sum converges like exp(-N d).
"""

import math
from typing import Any

import numpy as np


def logistic_moments(
    dim: int, slope: float, offset: float, terms: int, log_error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moments m_n of a logistic function for n < terms.

    Args:
        dim: Dimension D of the space around the sphere.
        slope: Slope of the logistic function's exponent.
        offset: Offset of the exponent, at most log_growth(D/2 - 1, slope).
        terms: Number of moments.
        log_error: Log of the absolute error allowed in m_n.

    Returns:
        log |m_n| and the sign of m_n, float64, shape (terms,) each.
    """
    from mpmath import MPContext  # torch depends on it, and it is slow to import

    context = MPContext()  # a private one: its precision does not change that of other users of mpmath
    distance = float(abs(context.acos(context.mpc(offset, context.pi) / slope).imag))
    # The moments are relative to the mean of g. With x = exp(slope t - offset), where E x >= 1, this mean is
    # E x/(1 + x) >= 1/(1 + max x). It says how many more bits are needed.
    depth = max(slope - offset, 0.0) - log_error
    bits = math.ceil(depth / math.log(2))
    count = math.ceil(
        (depth / distance + terms + dim) / (4 if dim % 2 == 0 else 2)
    )  # N/2 angles: the other half mirrors them
    context.prec = bits + 16

    def fixed(value: Any) -> int:
        return int(context.nint(context.ldexp(value, bits)))

    quarter = [
        context.cospi(context.mpf(j) / (4 * count)) for j in range(2 * count + 1)
    ]  # cosines; read backwards, sines
    cosine, sine = quarter[1::2], quarter[-2::-2]
    if dim % 2 == 0:
        weight = [s ** (dim - 2) for s in sine]
    else:
        fejer = _fejer_weights([fixed(c) for c in quarter[::2]], bits)
        weight = [f * s ** (dim - 3) for f, s in zip(fejer, sine, strict=True)]
    near, far = (
        [w / (1 + context.exp(offset - side * slope * c)) for w, c in zip(weight, cosine, strict=True)]
        for side in (1, -1)
    )
    total = context.fsum(near) + context.fsum(far)
    # P_n(-t) = (-1)^n P_n(t): the two halves are added for even n and subtracted for odd n.
    both = [
        np.array([fixed((a + side * b) / total) for a, b in zip(near, far, strict=True)], dtype=object)
        for side in (1, -1)
    ]
    t = np.array([fixed(c) for c in cosine], dtype=object)
    P, before = np.full(count, 1 << bits, dtype=object), np.zeros(count, dtype=object)
    moments = []
    for n in range(terms):
        moments.append(int(both[n % 2] @ P) >> bits)
        # `recurrence` of polynomials.py, in integers. P_1 = t is the first step in any dimension, also where D - 2 = 0.
        P, before = (((2 * n + dim - 2) * t * P >> bits) - n * before) // (n + dim - 2) if n else t, P
    logs = [_log(abs(m), bits) if m else -math.inf for m in moments]
    return np.array(logs), np.sign(np.array(moments, dtype=object)).astype(float)


def _log(value: int, bits: int) -> float:
    """log(value / 2^bits) to the last digit. The logarithm of the integer alone may be far larger, and cancel."""
    length = value.bit_length()
    return math.log(value / (1 << length)) + (length - bits) * math.log(2)


def _fejer_weights(cosine: list[int], bits: int) -> list[int]:
    """Weights of Fejér's first rule at the first half of N angles, up to a factor, in fixed point.

    They are 1 - 2 sum_{0<k<N/2} cos(2 k theta)/(4 k^2 - 1). `cosine` holds cos(pi j/N) for j <= N/2.
    """
    half = len(cosine) - 1
    upper = cosine + [-c for c in cosine[-2::-1]]
    circle = np.array(upper + upper[-2:0:-1], dtype=object)  # j < 2 N
    k = np.arange(1, half)
    factor = np.array([(2 << bits) // (4 * int(j) ** 2 - 1) for j in k], dtype=object)
    return [(1 << bits) - (int(factor @ circle[k * (2 * j + 1) % len(circle)]) >> bits) for j in range(half)]
