r"""Zonal functions on the sphere S^{D-1}: Gegenbauer polynomials and positive kernels with their coefficients.

A zonal kernel g(z.z') says how likely two latents are to count as "the same". Everything that positivity.py asks of it
is its coefficients in the Gegenbauer polynomials P_n, normalised to P_n(1) = 1:

    lambda_n = int g P_n w dt / int g w dt,     w(t) = (1 - t^2)^((D-3)/2),     lambda_0 = 1.

What is summed is dim_n lambda_n A_n(kappa) A_n(kappa') P_n, in float64. In high dimensions dim_n is astronomical: it
multiplies the errors of lambda_n, and where lambda_n changes its sign, terms cancel that are far larger than their sum.
A_n(kappa) keeps both down as long as a posterior is not too sharp, and `reach` says how sharp it may be.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from aleator.foundation import reject, require
from aleator.special import (
    gegenbauer,
    harmonic_dimension,
    log_bessel_ratios,
    log_growth,
    log_harmonic_dimensions,
    log_ratios_and_slopes,
    logistic_moments,
)

DEFAULT_KAPPA_POS = 20.0  # the paper's value

_PANELS = 96
_FEWEST_TERMS, _MOST_TERMS = 32, 4096
# How wrong a series may be at c = 1, relative to its value there, for the sharpest posteriors in its kernel's reach: by
# rounding, and by noise in the coefficients. Both are bounds, and what is found is a hundredth of them; away from c = 1
# it is far less, while treating a posterior as wider than it is shows at every cosine.
_ROUNDED, _NOISY = 1e-5, 1e-3
# Quarters of an octave of kappa among which the reach is sought: 2^-3 to 2^40, beyond which all is a point mass.
_OCTAVES = (-12, 161)


class LogLinear(NamedTuple):
    """log g(t) = slope * t - offset, or log sigmoid(slope * t - offset) if the kernel saturates."""

    slope: float
    offset: float
    saturates: bool


class ZonalKernel(nn.Module):
    """The positive kernel g(z.z') = fn(z.z') for a function of the cosine.

    Args:
        fn: maps a float64 tensor of cosines in [-1, 1] to values >= 0, elementwise; need not be normalised.

    The coefficients come from Gauss quadrature in the weight w, to about 1e-15 of the largest. In high dimensions that
    weight hardly sees cosines near 1, so there an arbitrary fn is resolved for posteriors that are spread as the sphere
    is, not for point masses: `reach` says how sharp they may be, and sharper ones are treated as that sharp.
    `VMFKernel` has no such limit, and `AcceptanceKernel` a wider one.
    """

    # What is worth summing for the sharpest posteriors; of a kernel by quadrature, more would only add noise.
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

    def log_linear(self, dim: int) -> LogLinear | None:
        """log g as a linear function of the cosine, or the log-sigmoid of one; None for any other kernel."""
        return None

    def coefficients(self, dim: int, terms: int) -> Tensor:
        """lambda_0 .. lambda_{terms-1}, float64; may be negative for kernels that are not positive definite."""
        lam, noise = self._moments(dim, terms)
        # Below its rounding error a moment is noise that dim_n would blow up.
        return torch.where(lam.abs() > noise, lam, 0.0)

    def _moments(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        """lambda_n by quadrature and its rounding error: of the sum, and of the recurrence, which grows with n."""
        t, log_weights = _quadrature(dim)
        weighted = torch.softmax(self.log_values(dim, t) + log_weights, 0)
        weighted = weighted / weighted.sum()  # sum() adds up by halves; softmax and products as the processor has it
        P = gegenbauer(dim, terms, t)
        return (P * weighted).sum(-1), 8e-16 * (1 + torch.arange(terms) * (P.abs() @ weighted.detach()))

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        """log |lambda_n| and its sign."""
        lam = self.coefficients(dim, terms)
        safe = torch.where(lam == 0, 1.0, lam)
        return torch.where(lam == 0, -math.inf, safe.abs().log()), torch.sign(lam.detach())

    def series(self, dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`log_abs_coefficients` on a device, kept there where the kernel is fixed."""
        key = self.cache_key()
        if key is not None:
            return _kept_series(self, key, dim, terms, device)
        log_lam, sign = self.log_abs_coefficients(dim, terms)
        return log_lam.to(device), sign.to(device)

    def reach(self, dim: int) -> float:
        """The kappa of the sharpest posteriors that the series resolves, inf where it resolves point masses.

        For two posteriors of that kappa the error of r is about 1e-7 of its maximum over the cosine, or 1e-5 where the
        coefficients come from quadrature. log r treats a posterior that is sharper as one of this kappa.
        """
        kernel, key = self._lasting()
        return kernel._find_reach(dim) if key is None else _kept_reach(kernel, key, dim)

    def terms(self, dim: int, tolerance: float, kappa1: float = math.inf, kappa2: float = math.inf) -> int:
        """The number of terms after which the rest of the series is below the tolerance of its maximum over the cosine.

        For posteriors no sharper than kappa1 and kappa2, or than the reach. By default for all posteriors, since
        A_n(kappa) grows with kappa, and faster for larger n.
        """
        kernel, key = self._lasting()
        find = kernel._find_terms if key is None else partial(_kept_terms, kernel, key)
        most = find(dim, max(tolerance, self.resolution), math.inf, math.inf)
        if math.isinf(kappa1) and math.isinf(kappa2):
            return most
        # Rounded up to a quarter of an octave, so that batches much alike share one count.
        rounded = (2 ** (math.ceil(4 * math.log2(max(min(k, 1e25), 1e-3))) / 4) for k in (kappa1, kappa2))
        return min(most, find(dim, tolerance, *rounded))

    def _find_reach(self, dim: int) -> float:
        kappa = torch.cat([2 ** (torch.arange(*_OCTAVES, dtype=torch.float64) / 4), torch.tensor([math.inf])])
        count, good = self._first_count(dim), 1
        while count <= _MOST_TERMS:
            log_lam, sign = self._host_coefficients(dim, count)
            log_dims = log_harmonic_dimensions(dim, count)
            log_a, _ = log_ratios_and_slopes(dim / 2 - 1, kappa, count)
            log_size = log_dims + log_lam + 2 * log_a
            top = log_size.amax(-1, keepdim=True)
            size = torch.exp(log_size - top)
            error = torch.exp(log_dims + self._log_errors(dim, log_lam) + 2 * log_a - top)
            total, limit = _total_and_limit(size, sign, self.resolution)
            # Every logarithm that makes a term, and every degree of the recurrences, costs a unit of rounding.
            units = torch.arange(count) + log_dims + torch.where(sign == 0, 0.0, log_lam.abs()) - 2 * log_a
            rounding = 1.1e-16 * (units * size).sum(-1)
            last = slice(-count // 4, None)
            cut = (size[:, last].sum(-1) > limit) | (error[:, last].sum(-1) > _NOISY / 10 * total)
            fine = ~cut & (error.sum(-1) <= _NOISY * total) & (rounding <= _ROUNDED * total)
            good = max(1, int(fine.cumprod(0).sum()))  # the widest posterior is resolved, whatever the kernel
            if good == len(kappa):
                return math.inf
            if not cut[good]:  # what fails with all its terms fails for good
                break
            count *= 2
        return kappa[good - 1].item()

    def _find_terms(self, dim: int, tolerance: float, kappa1: float, kappa2: float) -> int:
        reach = self.reach(dim)
        kappa = torch.tensor([min(kappa1, reach), min(kappa2, reach)], dtype=torch.float64)
        count = _FEWEST_TERMS
        while count <= _MOST_TERMS:
            log_lam, sign = self._host_coefficients(dim, count)
            log_a, _ = log_ratios_and_slopes(dim / 2 - 1, kappa, count)
            log_size = log_harmonic_dimensions(dim, count) + log_lam + log_a.sum(0)
            size = torch.exp(log_size - log_size.max())
            _, limit = _total_and_limit(size, sign, tolerance)
            rest = size.flip(0).cumsum(0).flip(0)  # sum_{m >= n}
            # A sum that is cut off while it still matters shows no tail; one small term is none, as signs may change.
            if rest[-count // 4] <= limit:
                return max(2, int((rest > limit).sum()))
            count *= 2
        self._refuse(dim)

    def _host_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log_lam, sign = self.log_abs_coefficients(dim, terms)
        return log_lam.cpu().double(), sign.cpu().double()

    def _first_count(self, dim: int) -> int:
        """Enough terms to see the coefficients fall into the noise of their quadrature; those of a jump never do."""
        count = _FEWEST_TERMS
        while count <= _MOST_TERMS:
            if self._exact(dim) or not self._host_coefficients(dim, count)[1][-count // 4 :].any():
                return count
            count *= 2
        self._refuse(dim)

    def _log_errors(self, dim: int, log_lam: Tensor) -> Tensor:
        """log of the errors of the coefficients: the noise of quadrature, and where they are lost in it, all of them.

        There they are taken to go on falling at the rate at which they fell over the last third of the way.
        """
        if self._exact(dim):
            return torch.full_like(log_lam, -math.inf)
        with torch.no_grad():
            noise = self._moments(dim, len(log_lam))[1].log()
        known = int(torch.isfinite(log_lam).nonzero().max()) + 1
        if known == len(log_lam):
            return noise
        before = 2 * known // 3
        rate = (noise[known] - log_lam[before:known].max()) / (known - before)
        beyond = noise[known] + rate * torch.arange(len(log_lam) - known)
        return torch.cat([noise[:known], beyond])

    def _refuse(self, dim: int) -> NoReturn:
        reject(
            "kernel",
            self,
            f"its series does not converge within {_MOST_TERMS} terms in {dim} dimensions",
            "use a smoother kernel, or VMFKernel(math.inf) for the expected likelihood kernel",
        )

    def _exact(self, dim: int) -> bool:
        """Whether the coefficients are right to their last digits, rather than to the noise of quadrature."""
        return False

    def _lasting(self) -> tuple["ZonalKernel", tuple | None]:
        """The kernel to search reach and terms for, and what to keep them under."""
        return self, self.cache_key()

    def cache_key(self) -> tuple | None:
        """What the coefficients depend on besides the dimension; None where that cannot be said cheaply."""
        return (id(self.fn),)

    def extra_repr(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


class _ConcentrationKernel(ZonalKernel):
    """A kernel with one parameter kappa_pos, which is learnable if requires_grad."""

    def __init__(self, kappa_pos: float | Tensor = DEFAULT_KAPPA_POS, requires_grad: bool = False):
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

    def cache_key(self) -> tuple | None:
        return (type(self), self._fixed) if self._fixed is not None else None

    def _lasting(self) -> tuple[ZonalKernel, tuple | None]:
        if self._fixed is not None:
            return self, self.cache_key()
        # kappa_pos rounded up to a sixteenth of an octave, so that the steps of a training share what is found.
        step = math.ceil(16 * math.log2(float(self.kappa_pos.detach())))
        return _stand_in(type(self), step), (step,)  # type: ignore[arg-type]  # mypy: classes have no hash

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

    def log_linear(self, dim: int) -> LogLinear | None:
        if self._fixed is None or self.is_identity:
            return None
        return LogLinear(slope=self._fixed, offset=self._fixed, saturates=False)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        # In logarithms from the start: A_n is exact far below the smallest float, and high dimensions need it there.
        log_lam = log_bessel_ratios(dim / 2 - 1, self.kappa_pos, terms)
        return log_lam, torch.ones_like(log_lam)

    def coefficients(self, dim: int, terms: int) -> Tensor:
        return self.log_abs_coefficients(dim, terms)[0].exp()

    def reach(self, dim: int) -> float:
        return math.inf  # every coefficient is positive and right to its last digits


class AcceptanceKernel(_ConcentrationKernel):
    """The kernel that the paper's rejection rule really uses: g = p/(p + u), p the vMF density and u the uniform one.

    g(t) = sigmoid(kappa_pos t - log(C(0)/C(kappa_pos))) saturates where p is large, so it is not the vMF. Where
    kappa_pos is fixed its coefficients have all their digits (extended.py), and its `reach` is infinite up to about
    thirty dimensions. Where kappa_pos is learned they come from quadrature, as those of any `ZonalKernel`.
    """

    def __init__(self, kappa_pos: float | Tensor = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__(kappa_pos, requires_grad)
        require(
            self._fixed is None or math.isfinite(self._fixed),
            "kappa_pos",
            self._fixed,
            "no pair would be accepted",
            "pass for example 20.0, or use VMFKernel(math.inf)",
        )

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        offset = (
            _growth_of(dim, self._fixed) if self._fixed is not None else log_growth(dim / 2 - 1, self.kappa_pos).to(t)
        )
        return nn.functional.logsigmoid(self.concentration(t) * t - offset)

    def log_linear(self, dim: int) -> LogLinear | None:
        if self._fixed is None:
            return None
        return LogLinear(slope=self._fixed, offset=_growth_of(dim, self._fixed), saturates=True)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        if not self._exact(dim):
            return super().log_abs_coefficients(dim, terms)
        # To a power of two, so that searches for the number of terms share what they compute.
        log_lam, sign = _acceptance_coefficients(dim, self._fixed, max(128, 1 << (terms - 1).bit_length()))
        return log_lam[:terms], sign[:terms]

    def coefficients(self, dim: int, terms: int) -> Tensor:
        if not self._exact(dim):
            return super().coefficients(dim, terms)
        log_lam, sign = self.log_abs_coefficients(dim, terms)
        return sign * log_lam.exp()

    def _exact(self, dim: int) -> bool:
        # A sharp kernel takes many nodes, and in few dimensions, where dim_n is small, float64 is enough for it.
        return self._fixed is not None and self._fixed <= (64 if dim <= 5 else 200)


@lru_cache(maxsize=256)
def _kept_series(kernel: ZonalKernel, key: tuple, dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        log_lam, sign = kernel.log_abs_coefficients(dim, terms)
    return log_lam.to(device), sign.to(device)


@lru_cache(maxsize=1024)
def _growth_of(dim: int, kappa: float) -> float:
    return float(log_growth(dim / 2 - 1, torch.tensor(kappa, dtype=torch.float64)))


@lru_cache(maxsize=64)
def _acceptance_coefficients(dim: int, kappa_pos: float, terms: int) -> tuple[Tensor, Tensor]:
    _check_dimension(dim)
    # Right to 1e-40 even after the multiplication by dim_n.
    log_error = -40 * math.log(10) - math.log(harmonic_dimension(dim, terms))
    log_lam, sign = logistic_moments(dim, kappa_pos, _growth_of(dim, kappa_pos), terms, log_error)
    return torch.as_tensor(log_lam), torch.as_tensor(sign)


@lru_cache(maxsize=1024)
def _stand_in(kind: type[_ConcentrationKernel], step: int) -> _ConcentrationKernel:
    return kind(2 ** (step / 16), requires_grad=True)


@lru_cache(maxsize=1024)
def _kept_reach(kernel: ZonalKernel, key: tuple, dim: int) -> float:
    return kernel._find_reach(dim)


@lru_cache(maxsize=4096)
def _kept_terms(kernel: ZonalKernel, key: tuple, dim: int, tolerance: float, kappa1: float, kappa2: float) -> int:
    return kernel._find_terms(dim, tolerance, kappa1, kappa2)


def _total_and_limit(size: Tensor, sign: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """A series at c = 1 from its terms (..., T), and what it may leave out: its tolerance, or what rounding hides."""
    total = (sign * size).sum(-1)
    return total, torch.maximum(tolerance * total, 1e-17 * size.sum(-1))


@lru_cache(maxsize=64)
def _quadrature(dim: int) -> tuple[Tensor, Tensor]:
    """Cosines t_i and log weights with sum_i exp(log w_i) f(t_i) = int f w dt up to a constant.

    Gauss-Legendre panels in the angle, where w dt = sin^(D-2) dtheta is smooth; as logarithms the weights keep their
    relative accuracy where they are tiny, which a kernel that grows towards t = 1 makes up for.
    """
    _check_dimension(dim)
    x, w = np.polynomial.legendre.leggauss(20)
    half = math.pi / (2 * _PANELS)
    angle = (half * (1 + 2 * np.arange(_PANELS)[:, None] + x)).ravel()
    log_weight = (dim - 2) * np.log(np.sin(angle)) + np.log(np.tile(w, _PANELS))
    return torch.as_tensor(np.cos(angle)), torch.as_tensor(log_weight)


def _check_dimension(dim: int) -> None:
    require(dim >= 2, "dim", dim, "a sphere needs D >= 2", "pass the dimension of the embedding")


def check_kernel(kernel: object) -> ZonalKernel:
    require(
        isinstance(kernel, ZonalKernel),
        "kernel",
        kernel,
        "not a kernel",
        "pass VMFKernel(20.0), AcceptanceKernel(20.0) or ZonalKernel(fn)",
    )
    return kernel  # type: ignore[return-value]
