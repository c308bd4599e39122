r"""The angle between a von Mises-Fisher sample and its mode: probabilities, quantiles, and a table to sample from.

The angle theta has the density f(theta) ~ exp(kappa cos theta) sin(theta)^(D-2) on [0, pi]. It is integrated by
Gauss-Legendre quadrature over the part of [0, pi] that carries the mass. This is exact to rounding for every D >= 2 and
kappa >= 0. Quantiles come from Newton's method in the logarithm of the smaller tail.

A sampler needs a quantile for every sample, so it uses a table (`AngleTable`). The noise of a sample is a standard
normal vector in D-1 dimensions. Its direction becomes the direction of the sample. The table maps its length sigma, a
chi variable, to the angle theta of the same probability. In these coordinates the map is nearly linear:

    theta = sigma (kappa + c)^(-1/2) Y(sigma, kappa),    Y -> 1 as kappa -> inf.

Y is smooth: a Chebyshev series in zeta = kappa/(kappa + c), whose coefficients are piecewise cubic in sigma. The sample
is then a differentiable function of the noise, without rejection, branches or synchronisation with a GPU. Its
derivative in kappa at fixed noise is the unbiased pathwise gradient (Figurnov, Mohamed, Mnih, NeurIPS 2018).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import matmul_precision, require_not_compiled
from aleator.fused import fused_kernels

_NODES = 64  # of the quadrature
# In standard deviations. Beyond, the density has fallen by e^-37, which is nothing in float64.
_REACH = 8.6
_NEWTON_STEPS = 60  # far tails of small D and kappa take 25, all others five or six
_SETTLED = 1e-9  # relative to the nearer pole; a step as small as this leaves an error of about its square


def angle_masses(dim: int, kappa: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both tails of the distribution of the angle, and its density.

    Args:
        dim: Dimension D of the space around the sphere.
        kappa: Finite concentrations, float64.
        angle: Angles in [0, pi], float64, in the shape of kappa.

    Returns:
        P(theta <= angle), P(theta >= angle) and the density at the angle, in the shape of kappa. Both tails are
        integrated, so the smaller one keeps its relative accuracy.
    """
    mode, low, high = _support(dim, kappa)
    inside = torch.minimum(torch.maximum(angle, low), high)
    below = _integral(dim, kappa, mode, low, inside)
    above = _integral(dim, kappa, mode, inside, high)
    total = below + above
    return below / total, above / total, _density(dim, kappa, mode, angle) / total


def angle_quantile(dim: int, kappa: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """The angle with P(theta <= angle) = below.

    Args:
        dim: Dimension D of the space around the sphere.
        kappa: Finite concentrations, float64.
        below: Probabilities inside (0, 1), float64, in the shape of kappa.
        above: 1 - below. Given as well, so that a small one keeps its digits.

    Returns:
        Angles in the shape of kappa.
    """
    from scipy import special

    require_not_compiled("kappa")
    p, q = below.cpu().numpy(), above.cpu().numpy()
    lower, upper = special.gammaincinv((dim - 1) / 2, p), special.gammainccinv((dim - 1) / 2, q)
    chi2 = 2 * torch.as_tensor(np.where(p < 0.5, lower, upper), device=kappa.device)
    # The start of Newton's method. tan^2(theta/2) is chi2/(4 kappa) for large kappa and about chi2/(D-1) for kappa = 0;
    # this formula (after Ulrich 1984) has both limits.
    angle = 2 * torch.atan(torch.sqrt(chi2 / (2 * kappa + torch.hypot(2 * kappa, torch.full_like(kappa, dim - 1.0)))))
    _, low, high = _support(dim, kappa)
    shape, angle = angle.shape, angle.flatten()
    moving = torch.arange(len(angle), device=angle.device)  # most settle after a few steps; the rest goes on
    kappa, below, above, low, high = (x.flatten() for x in (kappa, below, above, low, high))
    for _ in range(_NEWTON_STEPS):
        before = angle[moving]
        step, low, high = _newton_step(dim, kappa, below, above, before, low, high)
        angle[moving] = step
        still = (step - before).abs() > _SETTLED * torch.minimum(step, math.pi - step)
        moving, kappa, below, above, low, high = (x[still] for x in (moving, kappa, below, above, low, high))
        if not len(moving):
            break
    return angle.view(shape)


def _newton_step(
    dim: int, kappa: Tensor, below: Tensor, above: Tensor, angle: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A better angle, and lower and upper bounds of the right one, from an angle and its bounds."""
    use_below = below < above
    target = torch.where(use_below, below, above)
    sign = torch.where(use_below, 1.0, -1.0)
    mass_below, mass_above, density = angle_masses(dim, kappa, angle)
    tail = torch.where(use_below, mass_below, mass_above)
    error = (tail.log() - target.log()) * sign  # positive where the angle is too large
    low, high = torch.where(error < 0, angle, low), torch.where(error > 0, angle, high)
    step = angle - error * tail / density
    # On the circle a tail may be linear up to the antipode. Then the step in its logarithm is too large.
    linear = angle - (tail - target) * sign / density
    step = torch.where((step >= low) & (step <= high), step, linear)
    return torch.where((step >= low) & (step <= high), step, (low + high) / 2), low, high


def _support(dim: int, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mode of the angle, where kappa sin^2 = (D-2) cos, and lower and upper end of an interval that holds all mass."""
    r = (dim - 2) / (2 * kappa.clamp_min(1e-300))
    s = r + torch.hypot(r, torch.ones_like(r))  # 1 / cos(mode)
    excess = r + r / (torch.hypot(r, torch.ones_like(r)) + 1) * r  # s - 1, without cancellation
    mode = 2 * torch.atan(torch.sqrt(torch.where(s > 1e200, 1.0, excess / (s + 1))))
    sine2 = (torch.sin(mode) ** 2).clamp_min(1e-300)
    down = kappa * torch.cos(mode) + (dim - 2) / sine2  # curvature of -log f at the mode; larger below the mode
    up = kappa * (4 / math.pi**2) + (dim - 2)  # a lower bound of the curvature above: 1 - cos x >= 2 x^2 / pi^2
    low = (mode - _REACH / torch.sqrt(down.clamp_min(1e-300))).clamp_min(0.0)
    high = (mode + _REACH / torch.sqrt(up.clamp_min(1e-300))).clamp_max(math.pi)
    return mode, low, high


def _density(dim: int, kappa: Tensor, mode: Tensor, angle: Tensor) -> Tensor:
    """exp(kappa cos) sin^(D-2), divided by its value at the mode."""
    # cos(angle) - cos(mode), written as a product: the difference would cancel where both angles are small.
    exponent = -2 * kappa * torch.sin((angle - mode) / 2) * torch.sin((angle + mode) / 2)
    if dim > 2:
        exponent = exponent + (dim - 2) * (torch.sin(angle) / torch.sin(mode)).clamp_min(1e-300).log()
    return exponent.exp()


def _integral(dim: int, kappa: Tensor, mode: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Integral of `_density` from low to high."""
    x, w = (torch.as_tensor(a, device=kappa.device) for a in np.polynomial.legendre.leggauss(_NODES))
    half = (high - low) / 2
    angle = (low + half).unsqueeze(-1) + half.unsqueeze(-1) * x
    return (_density(dim, kappa.unsqueeze(-1), mode.unsqueeze(-1), angle) @ w) * half


@dataclass(frozen=True)
class AngleTable:
    """The map from sigma and kappa to theta, for one dimension, dtype and device.

    Attributes:
        shift: The constant c.
        first: sigma at the first node.
        spacing: Distance of the nodes.
        intervals: Number of intervals between nodes.
        coefficients: Chebyshev in zeta, cubic in sigma, shape (degree, 4 intervals).
        slopes: Coefficients of the derivative in zeta, then `coefficients` again, shape (2 degree, 4 intervals).
    """

    shift: float
    first: float
    spacing: float
    intervals: int
    coefficients: Tensor
    slopes: Tensor

    def rows(self, kappa: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """Coefficients of the cubics that give theta/sigma, for kappa (B,): shape (B, intervals, 4).

        With `slopes`, also those that give its derivative in kappa.
        """
        value, slope = coefficient_rows(kappa, self.shift, self.coefficients, self.slopes if slopes else None)
        shape = (len(kappa), self.intervals, 4)
        return value.view(shape), None if slope is None else slope.view(shape)

    def angle(self, sigma: Tensor, value: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """theta/sigma for sigma (K, B), from the `rows` of B posteriors: shape (K, B).

        With `slope`, also its derivative in kappa.
        """
        position = (sigma - self.first) / self.spacing
        position.clamp_(0, self.intervals)
        interval = position.long().clamp_(0, self.intervals - 1)  # from below: NaN is no number of an interval
        position.sub_(interval)
        index = interval.add_(torch.arange(len(value), device=value.device) * self.intervals)
        return _cubic(value, index, position), None if slope is None else _cubic(slope, index, position)


def coefficient_rows(
    kappa: Tensor, shift: float, coefficients: Tensor, slopes: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Coefficients of theta/sigma as a function of sigma, for kappa (B,).

    Args:
        kappa: Concentrations, (B,).
        shift: The constant c.
        coefficients: Chebyshev in zeta, (degree, N) for N coefficients in sigma.
        slopes: As in `with_slopes`, (2 degree, N), or None.

    Returns:
        Coefficients (B, N) and, with `slopes`, those of the derivative in kappa.
    """
    fused = fused_kernels(kappa)
    basis_of = fused.fused_basis if fused else plain_basis
    basis, parts = basis_of(kappa, shift, len(coefficients), slopes is not None)
    with matmul_precision("highest"):
        value = basis.mT @ coefficients
        return value, None if parts is None or slopes is None else parts.mT @ slopes


def with_slopes(coefficients: np.ndarray) -> tuple[Tensor, Tensor]:
    """Chebyshev coefficients in zeta (degree, N), and those of the derivative in zeta followed by themselves."""
    values = torch.as_tensor(coefficients)
    derivative = torch.zeros_like(values)
    derivative[:-1] = torch.as_tensor(np.polynomial.chebyshev.chebder(coefficients, scl=2.0))
    return values, torch.cat([derivative, values])


def plain_basis(kappa: Tensor, shift: float, degree: int, slopes: bool) -> tuple[Tensor, Tensor | None]:
    """Chebyshev polynomials at kappa (B,), scaled: factors of `AngleTable.coefficients`, (degree, B).

    With `slopes`, also the factors of `AngleTable.slopes`, (2 degree, B).
    """
    complement = shift / (kappa + shift)  # 1 - zeta, exact at kappa = inf
    x = (1 - 2 * complement).clamp(-1, 1)
    degrees = torch.arange(degree, dtype=kappa.dtype, device=kappa.device)
    polynomials = torch.cos(degrees.unsqueeze(-1) * torch.acos(x))  # T_n(x)
    scale = (complement / shift).sqrt()  # (kappa + c)^(-1/2)
    basis = polynomials * scale
    if not slopes:
        return basis, None
    # The derivative in kappa: scale' = -scale^3/2 and dzeta/dkappa = c scale^4.
    return basis, torch.cat([polynomials * (shift * scale**5), polynomials * (scale**3 / -2)])


def _cubic(rows: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """Values (K, B) of the cubics with numbers `index` (K, B) among the rows (B, intervals, 4), at x (K, B)."""
    c = rows.view(-1, 4).index_select(0, index.flatten()).view(*index.shape, 4)
    y = c[..., 3] * x
    for i in (2, 1):
        y.add_(c[..., i]).mul_(x)
    return y.add_(c[..., 0])


@lru_cache(maxsize=64)
def angle_table(dim: int, dtype: torch.dtype, device: torch.device) -> AngleTable:
    """The table of one dimension. It takes half a second to a second to build, and is cached."""
    first, spacing, shift, nodes = _build(dim)
    degree, count = nodes.shape
    # A cubic through four neighbouring nodes, in powers of the position within the interval [0, 1].
    lagrange = np.linalg.inv(np.vander([-1.0, 0.0, 1.0, 2.0], 4, increasing=True))
    pieces = np.stack([nodes[:, i : count - 3 + i] for i in range(4)], axis=-1) @ lagrange.T
    coefficients, slopes = with_slopes(pieces.reshape(degree, -1))
    return AngleTable(shift, first, spacing, count - 3, coefficients.to(device, dtype), slopes.to(device, dtype))


@lru_cache(maxsize=64)
def _build(dim: int, nodes: int = 160) -> tuple[float, float, float, np.ndarray]:
    """First sigma, spacing, c, and the Chebyshev coefficients in zeta of Y at each sigma node, (degree, nodes + 3).

    Largest error of the tabulated distribution function over all kappa: 5e-5 for D = 2 (in the last 1e-4 of the mass,
    next to the antipode), 7e-8 for D = 3, 7e-9 for D = 4, 2e-9 from D = 10 on.
    """
    from scipy import special

    a, tail = (dim - 1) / 2, 1e-13
    degree = 96 if dim <= 3 else 48  # on the circle the density at the antipode does not vanish, and Y bends sharply
    shift = a + 4.0
    first = math.sqrt(2 * special.gammaincinv(a, tail)) if dim > 10 else 0.0
    last = math.sqrt(2 * special.gammainccinv(a, tail))
    spacing = (last - first) / nodes
    sigma = first + spacing * np.arange(-1, nodes + 2)  # one more node at either end, for the cubics
    # Y is even in sigma, so a node below 0 mirrors one above. At 0 its limit is taken from a point close by.
    length = np.maximum(np.abs(sigma), 1e-3 * spacing)
    return first, spacing, shift, scaled_angles(dim, degree, shift, length)


def scaled_angles(dim: int, degree: int, shift: float, sigma: np.ndarray) -> np.ndarray:
    """Chebyshev coefficients in zeta of Y at positive sigma (N,): shape (degree, N)."""
    from scipy import special

    a = (dim - 1) / 2
    x = np.cos(np.pi * (np.arange(degree) + 0.5) / degree)
    kappa = shift * (1 + x) / (1 - x)
    below = torch.as_tensor(special.gammainc(a, sigma**2 / 2))
    above = torch.as_tensor(special.gammaincc(a, sigma**2 / 2))
    kappas, below = torch.broadcast_tensors(torch.as_tensor(kappa)[:, None], below)
    theta = angle_quantile(dim, kappas, below, above.expand_as(below)).numpy()
    Y = theta / sigma * np.sqrt(kappa + shift)[:, None]
    return chebyshev_transform(degree) @ Y


def chebyshev_transform(count: int) -> np.ndarray:
    """Matrix from the values at the Chebyshev nodes cos(pi (i + 1/2) / count) to the Chebyshev coefficients."""
    angles = np.pi * (np.arange(count) + 0.5) / count
    transform = 2 / count * np.cos(np.outer(np.arange(count), angles))
    transform[0] /= 2
    return transform
