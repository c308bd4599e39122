"""The cosines of all credible levels of a query at once, fast enough for a slider.

`VonMisesFisher.cap_angle` searches for a root. For a fixed level the angle is an analytic function of kappa. So one
Chebyshev series for each level, made once for a dimension, gives the angle for any query. `retrieval.cap_radii` does
this for one level.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebval, chebvander

from aleator.posteriors import VonMisesFisher
from aleator.retrieval import TIE

LEVELS = [percent / 100 for percent in range(1, 100)]


def cap_cosines(dim: int, kappa: float) -> np.ndarray:
    """The cosine (99,) that an item's mu must reach to be in the credible set of each level; -1 for all items."""
    if kappa == 0:  # the only level set of a flat density is the whole sphere
        return np.full(len(LEVELS), -1.0)
    shift, series = _series(dim)
    if series is None:
        angle = _angles(dim, np.array([kappa]))[0]
    else:
        angle = chebval(1 - 2 * shift / (kappa + shift), series) / np.sqrt(kappa + shift)
    return np.maximum(-1.0, np.cos(angle) - TIE)


@lru_cache(maxsize=8)
def _series(dim: int) -> tuple[float, np.ndarray | None]:
    """A shift c, and the Chebyshev series (64, 99) of sqrt(kappa + c) times the angles, in kappa / (kappa + c).

    On the circle no short series is accurate enough; the second value is then None.
    """
    shift, count = (dim - 1) / 2 + 4, 64
    x = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    kappa = shift * (1 + x) / (1 - x)
    series = chebvander(x, count - 1).T @ (_angles(dim, kappa) * np.sqrt(kappa + shift)[:, None]) * (2 / count)
    series[0] /= 2
    smooth = np.abs(series[-6:]).max() < 1e-9 * np.abs(series).max()
    return shift, series if smooth else None


def _angles(dim: int, kappa: np.ndarray) -> np.ndarray:
    """The angles (n, 99) of the caps for kappa (n,)."""
    mu = torch.eye(1, dim, dtype=torch.float64).expand(len(kappa), 1, dim)
    posterior = VonMisesFisher(mu, torch.from_numpy(kappa)[:, None], validate_args=False)
    return posterior.cap_angle(torch.tensor(LEVELS, dtype=torch.float64)).numpy()
