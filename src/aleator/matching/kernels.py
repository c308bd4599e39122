r"""The kernels of the paper: the vMF kernel, and the kernel of its rejection rule.

Both have one parameter kappa_pos, fixed or learned. Their coefficients lambda_n (zonal.py) are known: those of
`VMFKernel` in closed form, those of `AcceptanceKernel` in extended precision.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from aleator.foundation import require, require_at_least
from aleator.matching.truncation import CacheKey
from aleator.matching.zonal import LogLinear, ZonalKernel
from aleator.special import harmonic_dimension, kappa_minus_log_growth, log_bessel_ratios, log_growth, logistic_moments

DEFAULT_KAPPA_POS = 20.0  # the paper's value


class _ConcentrationKernel(ZonalKernel):
    """A kernel with one parameter kappa_pos, which is learnable if requires_grad."""

    def __init__(self, kappa_pos: float | Tensor = DEFAULT_KAPPA_POS, requires_grad: bool = False):
        super().__init__()
        value = torch.as_tensor(kappa_pos, dtype=torch.float64)
        way_out = "pass for example 20.0"
        require(value.numel() == 1, "kappa_pos", tuple(value.shape), "expected one number", way_out)
        require(bool(value > 0), "kappa_pos", value.item(), "must be positive", way_out)
        # A fixed kappa_pos stays a Python number, so that counting terms never waits for a GPU.
        self._fixed: float | None = None if requires_grad else float(value)
        if requires_grad:
            finite = bool(torch.isfinite(value))
            require(finite, "kappa_pos", value.item(), "infinity cannot be learned", "start at 20.0")
            self._start_kappa_pos = float(value)  # tells runs apart that begin with others
            self.log_kappa_pos = nn.Parameter(value.detach().log().clone())

    @property
    def kappa_pos(self) -> Tensor:
        """The concentration, float64, shape ()."""
        if self._fixed is not None:
            return torch.tensor(self._fixed, dtype=torch.float64)
        return self.log_kappa_pos.double().exp()

    def concentration(self, like: Tensor) -> Tensor | float:
        """kappa_pos to compute with.

        Args:
            like: Tensor whose dtype and device a learned kappa_pos takes.

        Returns:
            A Python number if kappa_pos is fixed, so that nothing is copied to a GPU. Otherwise a tensor of shape ().
        """
        return self._fixed if self._fixed is not None else self.kappa_pos.to(like)

    def cache_key(self) -> CacheKey:
        return (type(self), self._fixed) if self._fixed is not None else None

    def _truncation_cache_key(self) -> tuple[ZonalKernel, CacheKey]:
        if self._fixed is not None:
            # The caches know a kernel by identity. Kernels that are made anew with the same number share what is found.
            plain = type(self) in (VMFKernel, AcceptanceKernel)
            return _fixed_kernel(type(self), self._fixed) if plain else self, self.cache_key()  # type: ignore[arg-type]
        # kappa_pos rounded up to a sixteenth of an octave, so that most steps of a training hit the cache.
        step = math.ceil(16 * math.log2(float(self.kappa_pos.detach())))
        return _rounded_kernel(type(self), step), (step,)  # type: ignore[arg-type]  # mypy: classes have no hash

    def extra_repr(self) -> str:
        """What `repr` shows in brackets.

        Returns:
            kappa_pos and whether it is learnable.
        """
        return f"kappa_pos={float(self.kappa_pos.detach()):g}, learnable={self._fixed is None}"


class VMFKernel(_ConcentrationKernel):
    """The paper's kernel: P(z'|z) = vMF(z'; z, kappa_pos), that is g(t) = exp(kappa_pos t).

    Its coefficients are ratios of Bessel functions, lambda_n = A_n(kappa_pos), with all their digits. Its series
    resolves point masses in every dimension.

    kappa_pos = inf gives the expected likelihood kernel: two latents match only if they are equal.

    Args:
        kappa_pos: Concentration of the kernel, > 0.
        requires_grad: Whether kappa_pos is learned. The parameter is its logarithm, `log_kappa_pos`.

    Attributes:
        kappa_pos: The concentration, a float64 tensor of shape ().

    Raises:
        ValueError: If kappa_pos is not one positive number, or is infinite and learned.

    Examples:
        >>> import aleator as al
        >>> kernel = al.VMFKernel(20.0)
        >>> kernel.coefficients(dim=10, terms=3)
        tensor([1.0000, 0.7955, 0.6022], dtype=torch.float64)
        >>> kernel.reach(dim=10)
        inf
        >>> al.VMFKernel(20.0, requires_grad=True)
        VMFKernel(kappa_pos=20, learnable=True)
    """

    resolution = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether kappa_pos is infinite: the expected likelihood kernel."""
        return self._fixed is not None and math.isinf(self._fixed)

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        return self.concentration(t) * (t - 1)

    def log_mean(self, dim: int) -> Tensor:
        return -kappa_minus_log_growth(dim / 2 - 1, self.kappa_pos)

    def log_linear(self, dim: int) -> LogLinear | None:
        if self._fixed is None or self.is_identity:
            return None
        return LogLinear(slope=self._fixed, offset=self._fixed, saturates=False)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        # In logarithms from the start: A_n is needed far below the smallest float in high dimensions.
        log_lam = log_bessel_ratios(dim / 2 - 1, self.kappa_pos, terms)
        return log_lam, torch.ones_like(log_lam)

    def coefficients(self, dim: int, terms: int) -> Tensor:
        return self.log_abs_coefficients(dim, terms)[0].exp()

    def coefficient_errors(self, dim: int, terms: int) -> Tensor:
        return torch.zeros(terms, dtype=torch.float64)

    def reach(self, dim: int) -> float:
        return math.inf  # every coefficient is positive and has all its digits


class AcceptanceKernel(_ConcentrationKernel):
    """The kernel that the paper's rejection rule uses: g = p/(p + u), with p the vMF density and u the uniform one.

    g(t) = sigmoid(kappa_pos t - log(C(0)/C(kappa_pos))) saturates where p is large, so it is not the vMF kernel.

    If kappa_pos is fixed, the coefficients have all their digits, and `reach` is infinite up to about thirty
    dimensions. If kappa_pos is learned, they come from quadrature, as those of any `ZonalKernel`.

    Args:
        kappa_pos: Concentration of p, > 0 and finite.
        requires_grad: Whether kappa_pos is learned. The parameter is its logarithm, `log_kappa_pos`.

    Attributes:
        kappa_pos: The concentration, a float64 tensor of shape ().

    Raises:
        ValueError: If kappa_pos is not one positive finite number.

    Examples:
        >>> import torch, aleator as al
        >>> kernel = al.AcceptanceKernel(20.0)
        >>> kernel.log_values(10, torch.tensor([0.4, 0.5, 1.0])).exp()
        tensor([0.0412, 0.2408, 0.9999])
        >>> kernel.reach(dim=10)
        inf
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
            _log_growth_at(dim, self._fixed)
            if self._fixed is not None
            else log_growth(dim / 2 - 1, self.kappa_pos).to(t)
        )
        return nn.functional.logsigmoid(self.concentration(t) * t - offset)

    def log_linear(self, dim: int) -> LogLinear | None:
        if self._fixed is None:
            return None
        return LogLinear(slope=self._fixed, offset=_log_growth_at(dim, self._fixed), saturates=True)

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        if not self._has_all_digits(dim):
            return super().log_abs_coefficients(dim, terms)
        # Rounded up to a power of two, so that searches for the number of terms share one cache entry.
        log_lam, sign = _acceptance_coefficients(dim, self._fixed, max(128, 1 << (terms - 1).bit_length()))
        return log_lam[:terms], sign[:terms]

    def coefficients(self, dim: int, terms: int) -> Tensor:
        if not self._has_all_digits(dim):
            return super().coefficients(dim, terms)
        log_lam, sign = self.log_abs_coefficients(dim, terms)
        return sign * log_lam.exp()

    def coefficient_errors(self, dim: int, terms: int) -> Tensor:
        if not self._has_all_digits(dim):
            return super().coefficient_errors(dim, terms)
        return torch.zeros(terms, dtype=torch.float64)

    def _has_all_digits(self, dim: int) -> bool:
        """Whether the coefficients are computed in extended precision."""
        # A sharp kernel takes many nodes. In few dimensions, where dim_n is small, float64 is enough for it.
        return self._fixed is not None and self._fixed <= (64 if dim <= 5 else 200)


@lru_cache(maxsize=1024)
def _rounded_kernel(kernel_type: type[_ConcentrationKernel], step: int) -> _ConcentrationKernel:
    """A learnable kernel with kappa_pos = 2^(step/16), for the searches of truncation.py."""
    return kernel_type(2 ** (step / 16), requires_grad=True)


@lru_cache(maxsize=1024)
def _fixed_kernel(kernel_type: type[_ConcentrationKernel], kappa_pos: float) -> _ConcentrationKernel:
    return kernel_type(kappa_pos)


@lru_cache(maxsize=1024)
def _log_growth_at(dim: int, kappa: float) -> float:
    """log(C(0)/C(kappa)) as a Python number."""
    return float(log_growth(dim / 2 - 1, torch.tensor(kappa, dtype=torch.float64)))


@lru_cache(maxsize=64)
def _acceptance_coefficients(dim: int, kappa_pos: float, terms: int) -> tuple[Tensor, Tensor]:
    """log |lambda_n| and signs of the acceptance kernel in extended precision, (terms,) each."""
    require_at_least("dim", dim, 2, "pass the dimension of the embedding")
    # Right to 1e-40 even after the multiplication by dim_n.
    log_error = -40 * math.log(10) - math.log(harmonic_dimension(dim, terms))
    log_lam, sign = logistic_moments(dim, kappa_pos, _log_growth_at(dim, kappa_pos), terms, log_error)
    return torch.as_tensor(log_lam), torch.as_tensor(sign)
