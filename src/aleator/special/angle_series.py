"""The angle of a von Mises-Fisher sample as one polynomial in sigma^2, for GPU kernels in float32.

`AngleTable` (angles.py) finds the interval of each sample and reads its cubic, which is slow if each posterior is
sampled only a few hundred times. In eight or more dimensions theta/sigma is so smooth that one polynomial of degree 15
in sigma^2 is exact in float32. All samples of a posterior then have the same coefficients.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from aleator.special.angles import chebyshev_transform, coefficient_rows, scaled_angles, with_slopes

LEAST_DIM = 8  # below, the polynomial would need a higher degree
_TERMS = 16
_DEGREE = 48  # in zeta
_TAIL = 1e-9  # mass on either side beyond which theta/sigma is continued as a constant


@dataclass(frozen=True)
class AngleSeries:
    """The map from sigma and kappa to theta, for one dimension and device, in float32.

    theta/sigma is a Chebyshev series in (sigma^2 - middle) / half, which is limited to [-1, 1].

    Attributes:
        shift: The constant c of angles.py.
        middle: Middle of the interval of sigma^2.
        half: Half its length.
        coefficients: Chebyshev in zeta and in sigma^2, shape (degree, N).
        slopes: Coefficients of the derivative in zeta, then `coefficients` again, shape (2 degree, N).
    """

    shift: float
    middle: float
    half: float
    coefficients: Tensor
    slopes: Tensor

    def rows(self, kappa: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """Coefficients of theta/sigma for kappa (B,), shape (B, N); with `slopes`, of its derivative in kappa too."""
        return coefficient_rows(kappa, self.shift, self.coefficients, self.slopes if slopes else None)

    def angle(self, sigma: Tensor, value: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """theta/sigma for sigma (K, B), from the `rows` of B posteriors: shape (K, B).

        With `slope`, also its derivative in kappa.
        """
        x = ((sigma.square() - self.middle) / self.half).clamp(-1, 1)
        return _clenshaw(value, x), None if slope is None else _clenshaw(slope, x)


def _clenshaw(rows: Tensor, x: Tensor) -> Tensor:
    """Chebyshev series with coefficients (B, N) at x (K, B): shape (K, B)."""
    now, before = torch.zeros_like(x), torch.zeros_like(x)
    for n in range(rows.shape[1] - 1, 0, -1):
        now, before = 2 * x * now - before + rows[:, n], now
    return x * now - before + rows[:, 0]


@lru_cache(maxsize=64)
def angle_series(dim: int, device: torch.device) -> AngleSeries:
    """The series of one dimension, which must be at least `LEAST_DIM`. It is cached."""
    from scipy import special

    a = (dim - 1) / 2
    low, high = 2 * special.gammaincinv(a, _TAIL), 2 * special.gammainccinv(a, _TAIL)  # of sigma^2
    middle, half, shift = (low + high) / 2, (high - low) / 2, a + 4.0
    nodes = np.cos(np.pi * (np.arange(_TERMS) + 0.5) / _TERMS)
    sigma = np.sqrt(middle + half * nodes)
    coefficients, slopes = with_slopes(scaled_angles(dim, _DEGREE, shift, sigma) @ chebyshev_transform(_TERMS).T)
    return AngleSeries(
        shift, float(middle), float(half), coefficients.to(device, torch.float32), slopes.to(device, torch.float32)
    )
