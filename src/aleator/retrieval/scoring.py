"""Exact cosines, and the radius of a credible set. All stores share them.

A store computes cosines in float32, in the order that suits its hardware. Here they are computed again in float64 from
the stored vectors, one row at a time in a fixed order. So equal vectors have equal cosines, and a vector has cosine 1
with itself, exactly. An item belongs to the credible set if this cosine reaches the cosine of the cap.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebinterpolate, chebval

from aleator.foundation import require
from aleator.posteriors import VonMisesFisher

TIE = 1e-12  # cosines this close count as equal. At cosine 1 this is an angle of 1.4e-6, a few roundings of float32.
_BLOCK = 16_384  # rows in double precision at a time


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines of paired rows, (n, D) and (n, D) float32 -> (n,) float64 in [-1, 1]."""
    out = np.empty(len(left))
    for start in range(0, len(out), _BLOCK):
        block = slice(start, start + _BLOCK)
        a, b = left[block].astype(np.float64), right[block].astype(np.float64)
        # sum(axis=1) adds each contiguous row by itself. A matrix product would round differently for other shapes.
        # The root of a square is exact, so a == b gives 1.
        lengths = np.square(a).sum(axis=1) * np.square(b).sum(axis=1)
        out[block] = np.multiply(a, b).sum(axis=1) / np.sqrt(lengths)
    return np.clip(out, -1.0, 1.0)


def slack(dim: int) -> float:
    """Largest error of (inner product - radius) in float32, for unit vectors of dimension `dim`.

    A sum of n products with total size 2 has an error of at most 2 n 2**-24, in any order. Storing two unit vectors
    and the radius in float32 adds a few roundings.
    """
    return 2.0 * (dim + 8) * 2.0**-24


def cap_radii(queries: VonMisesFisher, p: float) -> np.ndarray:
    """The cosine (Q,) that an item's mu must reach to be in each query's p-credible set.

    The set is a level set of the density. At kappa = 0 the density is flat, and its only level set is the whole sphere.
    At kappa = inf the set is mu, up to the rounding of stored vectors.
    """
    require(0 < p < 1, "p", p, "is not a level inside (0, 1)", "pass for example 0.95")
    kappa = queries.kappa.detach().cpu().double().numpy()
    shift, series = _cap_curve(queries.dim, p)
    if series is None:
        angle = queries.cap_angle(p).detach().cpu().double().numpy()
    else:
        angle = chebval(1 - 2 * shift / (kappa + shift), series) / np.sqrt(kappa + shift)
    return np.where(kappa == 0, -np.inf, np.cos(angle) - TIE)


@lru_cache(maxsize=256)
def _cap_curve(dim: int, p: float) -> tuple[float, np.ndarray | None]:
    """A shift c, and the Chebyshev series of sqrt(kappa + c) times the cap's angle, in kappa / (kappa + c).

    `VonMisesFisher.cap_angle` searches for a root for each kappa. Many queries share one level, and then the angle is
    an analytic function of kappa: a short series gives it to 1e-12. On the circle and at extreme levels no short series
    is accurate enough; the second value is then None.
    """
    shift = (dim - 1) / 2 + 4

    def scaled_angle(x: np.ndarray) -> np.ndarray:
        kappa = torch.as_tensor(shift * (1 + x) / (1 - x))
        mu = torch.eye(1, dim, dtype=torch.float64).expand(len(x), dim)
        angle = VonMisesFisher(mu, kappa, validate_args=False).cap_angle(p)
        return (angle * torch.sqrt(kappa + shift)).numpy()

    for degree in (63, 127, 255, 511):
        series = np.asarray(chebinterpolate(scaled_angle, degree))  # type: ignore[type-var]
        if np.abs(series[-8:]).max() < 1e-12 * np.abs(series).max():
            return shift, series
    return shift, None
