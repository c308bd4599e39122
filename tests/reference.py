"""Slow, obvious twins of what the library computes: mpmath at 50 digits, plain quadrature, brute force.

Nothing here imports the library. Each function is the textbook formula, done in a way that cannot go wrong, whatever it
costs; the tests hold the fast code to these.
"""

import functools
import math

import mpmath
import numpy as np

DIGITS = 50

# One failure rate for every statistical test of the suite: four standard errors, which chance exceeds once in 16,000.
# The seeds are fixed, so a test that passes stays passed.
STANDARD_ERRORS = 4.0
P_VALUE = 6.3e-5


def bessel_i(order: mpmath.mpf, kappa: mpmath.mpf) -> mpmath.mpf:
    """mpmath's series, in as many terms as it takes: its own limit is too low around order 2500 and kappa 3e4."""
    return mpmath.besseli(order, kappa, maxterms=10**7)


@functools.cache
def log_iv(order: float, kappa: float) -> float:
    """log I_v(kappa) by mpmath's hypergeometric series at 50 digits."""
    with mpmath.workdps(DIGITS):
        return float(mpmath.log(bessel_i(mpmath.mpf(order), mpmath.mpf(kappa))))


@functools.cache
def ratio(order: float, kappa: float) -> float:
    """I_{v+1}(kappa) / I_v(kappa), and its limits 0 and 1."""
    if kappa == 0 or math.isinf(kappa):
        return 0.0 if kappa == 0 else 1.0
    with mpmath.workdps(DIGITS):
        v, k = mpmath.mpf(order), mpmath.mpf(kappa)
        return float(bessel_i(v + 1, k) / bessel_i(v, k))


@functools.cache
def ratio_slope(order: float, kappa: float) -> float:
    """rho' = 1 - rho^2 - (2v+1) rho/kappa, from Bessel's equation; at 0 it is 1/(2(v+1)).

    At kappa = 1e6 about 13 of the 50 digits cancel.
    """
    with mpmath.workdps(DIGITS):
        v, k = mpmath.mpf(order), mpmath.mpf(kappa)
        if k == 0:
            return float(1 / (2 * (v + 1)))
        rho = bessel_i(v + 1, k) / bessel_i(v, k)
        return float(1 - rho**2 - (2 * v + 1) * rho / k)


@functools.cache
def log_normaliser(dim: int, kappa: float) -> float:
    """log C(kappa) = (D/2-1) log kappa - (D/2) log 2 pi - log I_{D/2-1}(kappa); at 0, minus the log of the area."""
    with mpmath.workdps(DIGITS):
        v = mpmath.mpf(dim) / 2 - 1
        if kappa == 0:
            return float(mpmath.loggamma(v + 1) - mpmath.log(2) - (v + 1) * mpmath.log(mpmath.pi))
        k = mpmath.mpf(kappa)
        return float(v * mpmath.log(k) - (v + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(bessel_i(v, k)))


@functools.cache
def sharp_posterior(dim: int, kappa: float) -> tuple[float, ...]:
    """Of a vMF: log density at mu, entropy, KL to and from that of 1.5 kappa, log(S int vMF^2), in 80 digits."""
    with mpmath.workdps(80):
        v, k, wide = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa), mpmath.mpf(1.5 * kappa)
        log_area = mpmath.log(2) + (v + 1) * mpmath.log(mpmath.pi) - mpmath.loggamma(v + 1)

        def log_c(x: mpmath.mpf) -> mpmath.mpf:
            return v * mpmath.log(x) - (v + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(bessel_i(v, x))

        def mean(x: mpmath.mpf) -> mpmath.mpf:
            return bessel_i(v + 1, x) / bessel_i(v, x)

        to_wide = log_c(k) - log_c(wide) + (k - wide) * mean(k)
        from_wide = log_c(wide) - log_c(k) + (wide - k) * mean(wide)
        squared = log_area + 2 * log_c(k) - log_c(2 * k)
        return tuple(float(x) for x in (log_c(k) + k, -log_c(k) - k * mean(k), to_wide, from_wide, squared))


def cap_probability(dim: int, kappa: float, cosine: float) -> float:
    """P(mu.z >= t): the integral of exp(kappa t) (1-t^2)^((D-3)/2), in the angle, by mpmath's adaptive quadrature."""
    with mpmath.workdps(30):
        k, cut = mpmath.mpf(kappa), mpmath.acos(mpmath.mpf(cosine))
        # cos of the angle where kappa sin^2 = (D-2) cos: the mode, where the integrand is scaled to 1.
        half = mpmath.mpf(dim - 2) / 2
        mode = mpmath.acos((mpmath.sqrt(half**2 + k**2) - half) / k) if k > 0 else mpmath.pi / 2

        def density(angle: mpmath.mpf) -> mpmath.mpf:
            exponent = k * (mpmath.cos(angle) - mpmath.cos(mode))
            if dim > 2:
                if angle == 0:
                    return mpmath.mpf(0)
                exponent += (dim - 2) * mpmath.log(mpmath.sin(angle) / mpmath.sin(mode))
            return mpmath.exp(exponent)

        width = 1 / mpmath.sqrt(k + dim - 1)
        # Breaks every few widths around the mode, or the adaptive rule never sees a narrow peak.
        breaks = [mode + i * 3 * width for i in range(-6, 7)]
        inside = [b for b in breaks if 0 < b < cut]
        outside = [b for b in breaks if cut < b < mpmath.pi]
        below = mpmath.quad(density, [0, *inside, cut])
        above = mpmath.quad(density, [cut, *outside, mpmath.pi])
        return float(below / (below + above))


def log_growth(dim: int, kappa: np.ndarray) -> np.ndarray:
    """G(kappa) = log E exp(kappa t) over the uniform sphere, = log C(0)/C(kappa), by Gauss-Legendre panels."""
    angle, log_w = _panels(dim)
    exponent = -2 * np.multiply.outer(kappa, np.sin(angle / 2) ** 2) + log_w  # kappa (cos - 1)
    return kappa + _logsumexp(exponent, -1)


def log_positivity(dim: int, cosine: float, kappa1: float, kappa2: float, kappa_pos: float) -> float:
    """log r for the vMF kernel without its series: one integral done in closed form, the other two by quadrature.

        r = int vMF(z; mu, kappa) [S C(kappa') C(kappa_pos) / C(|kappa_pos z + kappa' mu'|)] dz
          = int vMF(z; mu, kappa) exp(G(|kappa_pos z + kappa' mu'|) - G(kappa_pos) - G(kappa')) dz

    over the angle theta of z to mu and the azimuth phi, in logarithms, so that a tiny r keeps its relative accuracy.
    """
    if kappa1 == 0 or kappa2 == 0:
        return 0.0
    if math.isinf(kappa1) and math.isinf(kappa2):
        return kappa_pos * cosine - _growth(dim, kappa_pos)
    if math.isinf(kappa1) or math.isinf(kappa2):  # a point mass leaves the closed form alone
        finite = kappa2 if math.isinf(kappa1) else kappa1
        both = math.sqrt((finite - kappa_pos) ** 2 + 2 * finite * kappa_pos * (1 + cosine))
        return _growth(dim, both) - _growth(dim, kappa_pos) - _growth(dim, finite)
    growth = _growth_fit(dim, abs(kappa_pos - kappa2), kappa_pos + kappa2)

    def log_inner(towards: np.ndarray) -> np.ndarray:
        return growth(np.sqrt((kappa_pos - kappa2) ** 2 + 2 * kappa_pos * kappa2 * np.maximum(1 + towards, 0)))

    return _log_mean(dim, cosine, kappa1, log_inner) - _growth(dim, kappa_pos) - _growth(dim, kappa2)


def log_kernel_positivity(dim: int, cosine: float, kappa: float, log_g) -> float:
    """log r of a point mass and a vMF under any kernel: E g(z.mu') over z ~ vMF(mu, kappa), over its uniform mean."""
    angle, log_w = _panels(dim)
    uniform = float(_logsumexp(log_g(np.cos(angle)) + log_w, -1))
    if math.isinf(kappa):
        return float(log_g(np.array(cosine))) - uniform
    return _log_mean(dim, cosine, kappa, log_g) - uniform


def _log_mean(dim: int, cosine: float, kappa: float, log_f) -> float:
    """log of the mean of exp(log_f(z.mu')) over z ~ vMF(mu, kappa), for mu.mu' = cosine; log_f may be huge or tiny."""
    sine = math.sqrt((1 - cosine) * (1 + cosine))

    def log_integrand(theta: np.ndarray, phi: np.ndarray) -> np.ndarray:
        towards = np.cos(theta) * cosine + np.sin(theta) * sine * np.cos(phi)
        value = -2 * kappa * np.sin(theta / 2) ** 2 + log_f(towards)
        if dim > 2:
            value = value + (dim - 2) * np.log(np.sin(theta)) + (dim - 3) * np.log(np.sin(phi))
        return value

    if dim == 2:  # the azimuth takes two values
        sides = [_peak_integral(lambda t, _, phi=phi: log_integrand(t, np.full(1, phi))) for phi in (0.0, math.pi)]
        log_integral, azimuths = np.logaddexp(*sides), math.log(2)
    else:
        log_integral, azimuths = _peak_integral(log_integrand, azimuth=True), _log_beta_weight(dim - 1)
    return float(log_integral - azimuths - _log_beta_weight(dim) - (_growth(dim, kappa) - kappa))


def sample_vmf(rng: np.random.Generator, mu: np.ndarray, kappa: float, count: int) -> np.ndarray:
    """Brute force: the angle by inverting a finely tabulated distribution function, the direction from normals."""
    dim = len(mu)
    angle = np.linspace(0, np.pi, 200_001)
    with np.errstate(divide="ignore"):
        exponent = -2 * kappa * np.sin(angle / 2) ** 2
        if dim > 2:
            exponent = exponent + (dim - 2) * np.log(np.sin(angle))
    density = np.exp(exponent - exponent.max())
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    theta = np.interp(rng.random(count), mass / mass[-1], angle)
    direction = rng.standard_normal((count, dim))
    direction -= (direction @ mu)[:, None] * mu
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return np.cos(theta)[:, None] * mu + np.sin(theta)[:, None] * direction


@functools.cache
def _panels(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles and the logarithms of their weights under the uniform distribution: 240 Gauss-Legendre panels."""
    x, w = np.polynomial.legendre.leggauss(20)
    angle = (math.pi / 480 * (1 + 2 * np.arange(240)[:, None] + x)).ravel()
    log_w = (dim - 2) * np.log(np.sin(angle)) + np.log(np.tile(w, 240))
    return angle, log_w - _logsumexp(log_w, -1)


@functools.cache
def _growth(dim: int, kappa: float) -> float:
    return float(log_growth(dim, np.array([kappa]))[0])


@functools.cache
def _growth_fit(dim: int, low: float, high: float):
    """G on an interval as a polynomial through 49 values, since the integrand needs it thousands of times.

    The polynomial is of what lies above the chord: rounding is relative to the largest value fitted.
    """
    high = max(high, low + 1e-3)
    start, slope = _growth(dim, low), (_growth(dim, high) - _growth(dim, low)) / (high - low)
    rest = np.polynomial.Chebyshev.interpolate(
        lambda k: log_growth(dim, k) - (start + slope * (k - low)), 48, [low, high]
    )
    return lambda k: start + slope * (k - low) + rest(k)


def _log_beta_weight(dim: int) -> float:
    """log int_0^pi sin(theta)^(D-2) dtheta."""
    return 0.5 * math.log(math.pi) + math.lgamma((dim - 1) / 2) - math.lgamma(dim / 2)


def _peak_integral(log_f, azimuth: bool = False) -> float:
    """log of the integral of exp(log_f) over [0, pi] (x [0, pi]): find where the mass is, then Gauss-Legendre there."""
    box = [(0.0, math.pi), (0.0, math.pi)]
    for _ in range(4):
        grids = [low + (high - low) * (np.arange(80) + 0.5) / 80 for low, high in box]
        values = log_f(grids[0][:, None], grids[1][None, :] if azimuth else np.zeros((1, 1)))
        heavy = values > values.max() - 42
        new = []
        for axis, ((low, high), grid) in enumerate(zip(box, grids, strict=True)):
            if axis == 1 and not azimuth:
                new.append((low, high))
                continue
            step = grid[1] - grid[0]
            where = grid[heavy.any(1 - axis)]
            new.append((max(low, where.min() - 1.5 * step), min(high, where.max() + 1.5 * step)))
        box = new
    x, w = np.polynomial.legendre.leggauss(80)
    nodes = [(high - low) / 2 * x + (high + low) / 2 for low, high in box]
    logs = [np.log(w * (high - low) / 2) for low, high in box]
    if not azimuth:
        return float(_logsumexp(log_f(nodes[0][:, None], np.zeros((1, 1)))[:, 0] + logs[0], 0))
    values = log_f(nodes[0][:, None], nodes[1][None, :]) + logs[0][:, None] + logs[1]
    return float(_logsumexp(values.ravel(), 0))


def _logsumexp(x: np.ndarray, axis: int) -> np.ndarray:
    top = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=axis)) + np.squeeze(top, axis)


def logistic_moment(dim: int, slope: float, offset: float, degree: int) -> mpmath.mpf:
    """int g P_n w / int g w for g(t) = 1/(1 + exp(offset - slope t)), by Gauss-Legendre quadrature at 80 digits."""

    def integrand(angle, degree: int):
        t = mpmath.cos(angle)
        P, before = t**0, t * 0
        for n in range(degree):
            P, before = ((2 * n + dim - 2) * t * P - n * before) / (n + dim - 2) if n else t, P
        return P * mpmath.sin(angle) ** (dim - 2) / (1 + mpmath.exp(offset - slope * t))

    with mpmath.workdps(80):
        panels = mpmath.linspace(0, mpmath.pi, 17)
        return mpmath.fdiv(
            *(mpmath.quad(lambda a, n=n: integrand(a, n), panels, method="gauss-legendre") for n in (degree, 0))
        )
