"""The judgement that every backend shares: exact cosines and the radius of a credible cap.

A backend computes cosines in float32, in whatever order suits its hardware. Here they are computed again from
the stored vectors in float64, one row at a time in a fixed order, so that equal vectors have equal cosines
and a vector has cosine 1 with itself, exactly. An item is in the credible set if this cosine is at least the
cap's.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebinterpolate, chebval

from aleator.foundation import require
from aleator.posteriors import VonMisesFisher

TIE = 1e-12  # cosines this close are equal: an angle of 1.4e-6 at cosine 1, a few roundings of float32
_BLOCK = 16_384  # rows in double precision at a time


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines of paired rows, (n, D) and (n, D) float32 -> (n,) float64 in [-1, 1]."""
    out = np.empty(len(left))
    for start in range(0, len(out), _BLOCK):
        block = slice(start, start + _BLOCK)
        a, b = left[block].astype(np.float64), right[block].astype(np.float64)
        # sum(axis=1) adds each contiguous row by itself; a matrix product would round by its shape. The
        # root of a square is exact, so a == b gives 1.
        lengths = np.square(a).sum(axis=1) * np.square(b).sum(axis=1)
        out[block] = np.multiply(a, b).sum(axis=1) / np.sqrt(lengths)
    return np.clip(out, -1.0, 1.0)


def slack(dim: int) -> float:
    """How far a float32 inner product of unit vectors, less a radius, may be from the exact cosine's.

    Summing n products of total size 2 in any order errs by at most 2 n 2**-24; storing two unit vectors and
    the radius in float32 adds a few roundings.
    """
    return 2.0 * (dim + 8) * 2.0**-24


def cap_radii(queries: VonMisesFisher, p: float) -> np.ndarray:
    """The cosine (Q,) that an item's mu must reach to be in each query's p-credible set.

    The set is a level set of the density. At kappa = 0 the density is flat, and its only level set is the
    whole sphere: everything could be it. At kappa = inf it is mu, up to the rounding of stored vectors.
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
    """c, and the Chebyshev series in kappa / (kappa + c) of sqrt(kappa + c) times the cap's angle.

    One level serves many queries, and `VonMisesFisher.cap_angle` is a root search for each kappa. As a
    function of kappa alone the angle is analytic, so a short series gives it to 1e-12 for all of them. On
    the circle and at extreme levels it bends too sharply for that: then there is no series.
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
