r"""Zonal functions on the sphere S^{D-1}: Gegenbauer polynomials and positive kernels with their coefficients.

A zonal kernel g(z.z') says how likely two latents are to count as "the same". Everything that positivity.py asks of it
is its coefficients in the Gegenbauer polynomials P_n, normalised to P_n(1) = 1:

    lambda_n = int g P_n w dt / int g w dt,     w(t) = (1 - t^2)^((D-3)/2),     lambda_0 = 1.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from .bessel import log_bessel_ratios, log_growth
from .checks import require

_PANELS = 96
_MOST_TERMS = 4096


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


class ZonalKernel(nn.Module):
    """The positive kernel g(z.z') = fn(z.z') for a function of the cosine.

    Args:
        fn: maps a float64 tensor of cosines in [-1, 1] to values >= 0, elementwise; need not be normalised.

    The coefficients come from Gauss quadrature in the weight w, to about 1e-15 of the largest. In high dimensions that
    weight hardly sees cosines near 1, so there an arbitrary fn is resolved for posteriors that are spread as the sphere
    is, not for point masses; `VMFKernel` has no such limit.
    """

    # What quadrature resolves of the coefficients; asking the series for more would only add noise.
    resolution = 1e-14

    def __init__(self, fn: Callable[[Tensor], Tensor]):
        super().__init__()
        self.fn = fn

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        """log g(t) up to a constant, at cosines t."""
        values = self.fn(t)
        require(
            isinstance(values, Tensor) and values.shape == t.shape,
            "fn",
            getattr(values, "shape", type(values).__name__),
            f"must return one value per cosine, shape {tuple(t.shape)}",
            "write it with elementwise torch functions",
        )
        good = torch.isfinite(values) & (values >= 0)
        require(
            good,
            "fn",
            values,
            "a kernel is finite and not negative on [-1, 1]",
            "return for example torch.exp(10 * t)",
        )
        require(
            bool((values > 0).any()),
            "fn",
            0.0,
            "the kernel is zero everywhere",
            "return for example torch.exp(10 * t)",
        )
        return values.double().log()

    def coefficients(self, dim: int, terms: int) -> Tensor:
        """lambda_0 .. lambda_{terms-1}, float64; may be negative for kernels that are not positive definite."""
        t, log_weights = _quadrature(dim)
        weighted = torch.softmax(self.log_values(dim, t) + log_weights, 0)
        lam = gegenbauer(dim, terms, t) @ weighted
        # Below the rounding error, which the recurrence lets grow with n, a moment is noise that dim_n would blow up.
        noise = 2e-16 * (5 + torch.arange(terms, dtype=torch.float64))
        return torch.where(lam.abs() > noise, lam, 0.0)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        """log |lambda_n| and its sign."""
        lam = self.coefficients(dim, terms)
        safe = torch.where(lam == 0, 1.0, lam)
        return torch.where(lam == 0, -math.inf, safe.abs().log()), torch.sign(lam.detach())

    def series(self, dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`log_abs_coefficients` on a device, kept there where the kernel is fixed."""
        key = self.key()
        if key is not None:
            return _kept_series(self, key, dim, terms, device)
        log_lam, sign = self.log_abs_coefficients(dim, terms)
        return log_lam.to(device), sign.to(device)

    def terms(self, dim: int, tolerance: float) -> int:
        """The number of terms after which the rest of sum_n dim_n |lambda_n| is below the tolerance of the whole.

        Since 1 >= A_n(kappa) >= A_{n+1}(kappa), that rest bounds the error of every r relative to its maximum over the
        cosine: the number depends on the kernel alone, whatever the posteriors.
        """
        tolerance = max(tolerance, self.resolution)
        key = self.key()
        return _count_terms(self, key, dim, tolerance) if key is not None else self._search_terms(dim, tolerance)

    def _search_terms(self, dim: int, tolerance: float) -> int:
        count = 32
        while count <= _MOST_TERMS:
            with torch.no_grad():
                log_lam, _ = self.log_abs_coefficients(dim, count)
            weight = (log_harmonic_dimensions(dim, count) + log_lam.cpu()).double()
            rest = torch.logcumsumexp(weight.flip(0), 0).flip(0)  # log sum_{m >= n}
            small = rest < rest[0] + math.log(tolerance)
            # A sum that is cut off while it still matters shows no such tail: its last term must be small as well.
            if bool(small[-1]) and weight[-1] < weight.max() + math.log(tolerance) - 2:
                return max(2, int(small.int().argmax()))
            count *= 2
        require(
            False,
            "kernel",
            self,
            f"its series does not converge within {_MOST_TERMS} terms in {dim} dimensions",
            "use a smoother kernel, or VMFKernel(math.inf) for the expected likelihood kernel",
        )
        return count

    def key(self) -> tuple | None:
        """What the coefficients depend on besides the dimension; None where that cannot be said cheaply."""
        return (id(self.fn),)

    def extra_repr(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


class _ConcentrationKernel(ZonalKernel):
    """A kernel with one parameter kappa_pos, which is learnable if requires_grad."""

    def __init__(self, kappa_pos: float | Tensor = 20.0, requires_grad: bool = False):
        nn.Module.__init__(self)
        value = torch.as_tensor(kappa_pos, dtype=torch.float64)
        require(
            value.numel() == 1,
            "kappa_pos",
            tuple(value.shape),
            "expected one number",
            "pass for example 20.0",
        )
        require(bool(value > 0), "kappa_pos", value.item(), "must be positive", "pass for example 20.0")
        # A fixed kappa_pos stays a Python number: the number of terms then never asks a GPU for its value.
        self._fixed: float | None = None if requires_grad else float(value)
        if requires_grad:
            require(
                bool(torch.isfinite(value)),
                "kappa_pos",
                value.item(),
                "infinity cannot be learned",
                "start at 20.0",
            )
            self.log_kappa_pos = nn.Parameter(value.detach().log().clone())

    @property
    def kappa_pos(self) -> Tensor:
        if self._fixed is not None:
            return torch.tensor(self._fixed, dtype=torch.float64)
        return self.log_kappa_pos.double().exp()

    def concentration(self, like: Tensor) -> Tensor | float:
        """kappa_pos to compute with: a plain number where it is fixed, so that nothing is copied to a GPU."""
        return self._fixed if self._fixed is not None else self.kappa_pos.to(like)

    def key(self) -> tuple | None:
        return (type(self), self._fixed) if self._fixed is not None else None

    def extra_repr(self) -> str:
        return f"kappa_pos={float(self.kappa_pos.detach()):g}, learnable={self._fixed is None}"


class VMFKernel(_ConcentrationKernel):
    """The paper's positive kernel, P(z'|z) = vMF(z'; z, kappa_pos), with lambda_n = A_n(kappa_pos).

    kappa_pos = inf is the expected likelihood kernel: a pair is positive where its latents are equal.
    """

    resolution = 0.0

    @property
    def is_identity(self) -> bool:
        return self._fixed is not None and math.isinf(self._fixed)

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        return self.concentration(t) * (t - 1)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        # In logarithms from the start: A_n is exact far below the smallest float, and high dimensions need it there.
        log_lam = log_bessel_ratios(dim / 2 - 1, self.kappa_pos, terms)
        return log_lam, torch.ones_like(log_lam)

    def coefficients(self, dim: int, terms: int) -> Tensor:
        return self.log_abs_coefficients(dim, terms)[0].exp()


class AcceptanceKernel(_ConcentrationKernel):
    """The kernel that the paper's rejection rule really uses: g = p/(p + u), p the vMF density and u the uniform one.

    g(t) = sigmoid(kappa_pos t - log(C(0)/C(kappa_pos))) saturates where p is large, so it is not the vMF.
    """

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        offset = (
            _growth_of(dim, self._fixed) if self._fixed is not None else log_growth(dim / 2 - 1, self.kappa_pos).to(t)
        )
        return nn.functional.logsigmoid(self.concentration(t) * t - offset)


@lru_cache(maxsize=256)
def _kept_series(kernel: ZonalKernel, key: tuple, dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        log_lam, sign = kernel.log_abs_coefficients(dim, terms)
    return log_lam.to(device), sign.to(device)


@lru_cache(maxsize=1024)
def _growth_of(dim: int, kappa: float) -> float:
    return float(log_growth(dim / 2 - 1, torch.tensor(kappa, dtype=torch.float64)))


@lru_cache(maxsize=1024)
def _count_terms(kernel: ZonalKernel, key: tuple, dim: int, tolerance: float) -> int:
    return kernel._search_terms(dim, tolerance)


@lru_cache(maxsize=64)
def _quadrature(dim: int) -> tuple[Tensor, Tensor]:
    """Cosines t_i and log weights with sum_i exp(log w_i) f(t_i) = int f w dt up to a constant.

    Gauss-Legendre panels in the angle, where w dt = sin^(D-2) dtheta is smooth; as logarithms the weights keep their
    relative accuracy where they are tiny, which a kernel that grows towards t = 1 makes up for.
    """
    require(dim >= 2, "dim", dim, "a sphere needs D >= 2", "pass the dimension of the embedding")
    x, w = np.polynomial.legendre.leggauss(20)
    half = math.pi / (2 * _PANELS)
    angle = (half * (1 + 2 * np.arange(_PANELS)[:, None] + x)).ravel()
    log_weight = (dim - 2) * np.log(np.sin(angle)) + np.log(np.tile(w, _PANELS))
    return torch.as_tensor(np.cos(angle)), torch.as_tensor(log_weight)


def check_kernel(kernel: object) -> ZonalKernel:
    require(
        isinstance(kernel, ZonalKernel),
        "kernel",
        kernel,
        "not a kernel",
        "pass VMFKernel(20.0), AcceptanceKernel(20.0) or ZonalKernel(fn)",
    )
    return kernel  # type: ignore[return-value]
