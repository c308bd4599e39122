r"""Zonal kernels: what counts as a match, from any function of the cosine.

A zonal kernel g(z.z') >= 0 says how likely two latents are to match, as a function of their cosine. The series of
expected positivity needs its coefficients in the Gegenbauer polynomials P_n, normalised to P_n(1) = 1:

    lambda_n = int g P_n w dt / int g w dt,     w(t) = (1 - t^2)^((D-3)/2),     lambda_0 = 1.

`ZonalKernel` computes them by quadrature (quadrature.py). truncation.py counts how many are needed and finds how sharp
posteriors they resolve. kernels.py has the kernels of the paper.
"""

import math
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aleator.foundation import require
from aleator.matching.quadrature import angle_quadrature, zonal_moments
from aleator.matching.truncation import CacheKey, kernel_reach, kernel_terms


class LogLinear(NamedTuple):
    """log g(t) = slope * t - offset, or log sigmoid(slope * t - offset) if the kernel saturates.

    Attributes:
        slope: Factor of the cosine.
        offset: What is subtracted.
        saturates: Whether the log-sigmoid is taken.

    Examples:
        >>> import aleator as al
        >>> al.VMFKernel(20.0).log_linear(dim=10)
        LogLinear(slope=20.0, offset=20.0, saturates=False)
    """

    slope: float
    offset: float
    saturates: bool


class ZonalKernel(nn.Module):
    """A kernel from any function of the cosine: g(z.z') = fn(z.z').

    To write your own kernel, choose the first of these that fits:

    - A fixed function of the cosine: pass it as `fn`.
    - A function with learnable parameters: pass an `nn.Module` as `fn`. Its parameters become those of the kernel. It
      must move them to the dtype and device of its input, as `.to(t)` does. Nothing is cached for such a kernel: every
      call computes its coefficients anew, on the CPU.
    - A kernel that depends on the dimension, or whose coefficients are known: derive from this class without an `fn`,
      and override `log_values`. For known coefficients override `coefficients` and `coefficient_errors` too, and
      `log_abs_coefficients` if the coefficients underflow. Override `cache_key` if they can change.

    Coefficients from quadrature have errors of about 1e-15 of the largest. In high dimensions the series multiplies
    these errors, so that it cannot resolve very sharp posteriors. `reach` says how sharp they may be; sharper ones are
    treated as posteriors of that kappa. `VMFKernel` has no such limit, and `AcceptanceKernel` has a wider one.

    Args:
        fn: Maps a float64 tensor of cosines in [-1, 1] to values >= 0, elementwise. It need not be normalised. It must
            be smooth: the series of a function with a jump or a kink does not converge. Only subclasses leave it out.

    Attributes:
        resolution: Smallest useful tolerance of `terms`. A smaller one would only add the noise of quadrature.

    Examples:
        A fixed function:

        >>> import torch, aleator as al
        >>> kernel = al.ZonalKernel(lambda t: torch.exp(-((1 - t) ** 2)))
        >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> q = al.VonMisesFisher(mu, torch.tensor([20.0, 20.0]))
        >>> al.pairwise_log_positivity(q, q, kernel).shape
        torch.Size([2, 2])

        A function with a learnable width:

        >>> class Cauchy(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.log_width = torch.nn.Parameter(torch.tensor(0.0))
        ...
        ...     def forward(self, t):
        ...         return 1 / (1 + (1 - t) / self.log_width.exp().to(t))
        >>> kernel = al.ZonalKernel(Cauchy())
        >>> al.log_positivity(q[0], q[1], kernel).backward()
        >>> bool(kernel.fn.log_width.grad > 0)
        True

        A kernel that depends on the dimension and has known coefficients, lambda_n = rho^n:

        >>> class PoissonKernel(al.ZonalKernel):
        ...     def __init__(self, rho):
        ...         super().__init__()
        ...         self.rho = rho
        ...
        ...     def log_values(self, dim, t):
        ...         return -dim / 2 * torch.log(1 + self.rho**2 - 2 * self.rho * t)
        ...
        ...     def coefficients(self, dim, terms):
        ...         return self.rho ** torch.arange(terms, dtype=torch.float64)
        ...
        ...     def coefficient_errors(self, dim, terms):
        ...         return torch.zeros(terms, dtype=torch.float64)
        >>> al.match_probability(q[0], q[1], PoissonKernel(0.5)) < 0.5
        tensor(True)
    """

    resolution = 1e-14

    def __init__(self, fn: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        given = callable(fn) or (fn is None and type(self) is not ZonalKernel)
        require(given, "fn", fn, "not a function of the cosine", "pass for example lambda t: torch.exp(10 * t)")
        self.fn = fn

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        """log g at cosines, up to a constant.

        Args:
            dim: Dimension D of the embedding.
            t: Cosines, any shape.

        Returns:
            log g(t), the shape of t.

        Raises:
            ValueError: If `fn` does not return one finite value >= 0 for each cosine.
        """
        require(self.fn is not None, "fn", None, "log_values needs a function", "override log_values")
        values = self.fn(t)  # type: ignore[misc]
        require(
            isinstance(values, Tensor) and values.shape == t.shape,
            "fn",
            getattr(values, "shape", type(values).__name__),
            f"must return one value per cosine, shape {tuple(t.shape)}",
            "write it with elementwise torch functions",
        )
        way_out = "return for example torch.exp(10 * t)"
        good = torch.isfinite(values) & (values >= 0)
        require(good, "fn", values, "a kernel is finite and not negative on [-1, 1]", way_out)
        require(bool((values > 0).any()), "fn", 0.0, "the kernel is zero everywhere", way_out)
        return values.double().log()

    def log_mean(self, dim: int) -> Tensor:
        """log of the mean of g over uniform latents, by quadrature: log E_uniform g.

        If g is the probability of a match, this is the share of matches among pairs of uniform latents.

        Args:
            dim: Dimension D of the embedding.

        Returns:
            A float64 scalar.
        """
        t, log_weights = angle_quadrature(dim)
        return torch.logsumexp(self.log_values(dim, t) + log_weights, 0) - torch.logsumexp(log_weights, 0)

    def log_linear(self, dim: int) -> LogLinear | None:
        """log g as a linear function of the cosine, or the log-sigmoid of one.

        Args:
            dim: Dimension D of the embedding.

        Returns:
            Slope, offset and whether the kernel saturates. None if log g has another form or is learned.
        """
        return None

    def coefficients(self, dim: int, terms: int) -> Tensor:
        """The coefficients lambda_n of the series.

        Args:
            dim: Dimension D of the embedding.
            terms: Number of coefficients.

        Returns:
            lambda_0 .. lambda_{terms-1}, float64. Some are negative if the kernel is not positive definite.
        """
        moments = zonal_moments(partial(self.log_values, dim), dim, terms)
        # Below its rounding error a moment is noise, which dim_n would magnify.
        return torch.where(moments.values.abs() > moments.errors, moments.values, 0.0)

    def coefficient_errors(self, dim: int, terms: int) -> Tensor:
        """Bounds of the errors of the coefficients.

        Args:
            dim: Dimension D of the embedding.
            terms: Number of coefficients.

        Returns:
            Errors of lambda_0 .. lambda_{terms-1}, float64. Zeros if all coefficients have all their digits.
        """
        with torch.no_grad():
            return zonal_moments(partial(self.log_values, dim), dim, terms).errors

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]:
        """Logarithms of |lambda_n|, and signs. This is what the series is summed from.

        Args:
            dim: Dimension D of the embedding.
            terms: Number of coefficients.

        Returns:
            log |lambda_n| and the sign of lambda_n, float64, shape (terms,) each. -inf and 0 where lambda_n is zero.
        """
        lam = self.coefficients(dim, terms)
        safe = torch.where(lam == 0, 1.0, lam)
        return torch.where(lam == 0, -math.inf, safe.abs().log()), torch.sign(lam.detach())

    def series(self, dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`log_abs_coefficients` on a device, cached there if the kernel has a cache key.

        Args:
            dim: Dimension D of the embedding.
            terms: Number of coefficients.
            device: Where the series will be summed.

        Returns:
            log |lambda_n| and the sign of lambda_n, float64, shape (terms,) each.
        """
        cache_key = self.cache_key()
        if cache_key is not None:
            return _cached_series(self._truncation_cache_key()[0], cache_key, dim, terms, device)
        log_lam, sign = self.log_abs_coefficients(dim, terms)
        return log_lam.to(device), sign.to(device)

    def reach(self, dim: int) -> float:
        """The kappa of the sharpest posteriors that the series resolves.

        For two posteriors of that kappa, the error of r is about 1e-7 of its maximum over the cosine, or 1e-5 if the
        coefficients come from quadrature. A sharper posterior is treated as one of this kappa.

        Args:
            dim: Dimension D of the embedding.

        Returns:
            The largest kappa that is resolved; inf if point masses are.
        """
        return kernel_reach(*self._truncation_cache_key(), dim)

    def terms(self, dim: int, tolerance: float, kappa1: float = math.inf, kappa2: float = math.inf) -> int:
        """The number of terms that the series needs.

        A_n(kappa) grows with kappa, and faster for larger n, so sharper posteriors need more terms.

        Args:
            dim: Dimension D of the embedding.
            tolerance: How much may be left out, relative to the maximum of r over the cosine.
            kappa1: Largest kappa on one side. Default: any.
            kappa2: Largest kappa on the other side. Default: any.

        Returns:
            The smallest sufficient number of terms, at least 2.

        Raises:
            ValueError: If the series does not converge within 4096 terms.
        """
        return kernel_terms(*self._truncation_cache_key(), dim, tolerance, kappa1, kappa2)

    def cache_key(self) -> CacheKey:
        """What the coefficients depend on, besides the dimension.

        Returns:
            A tuple under which results for this kernel are cached. None: they are not cached, since they change during
            training, or since `fn` cannot be a key.
        """
        changes = any(True for _ in self.parameters())
        return (self.fn,) if isinstance(self.fn, Hashable) and not changes else None

    def _truncation_cache_key(self) -> tuple["ZonalKernel", CacheKey]:
        """The kernel whose reach and terms are searched, and the cache key of what is found."""
        return self, self.cache_key()

    def extra_repr(self) -> str:
        """What `repr` shows in brackets.

        Returns:
            The name of the function.
        """
        return getattr(self.fn, "__name__", repr(self.fn))


def check_kernel(kernel: object) -> ZonalKernel:
    """The kernel itself, or an error if it is none."""
    require(
        isinstance(kernel, ZonalKernel),
        "kernel",
        kernel,
        "not a kernel",
        "pass VMFKernel(20.0), AcceptanceKernel(20.0) or ZonalKernel(fn)",
    )
    return kernel  # type: ignore[return-value]


@lru_cache(maxsize=256)
def _cached_series(
    kernel: ZonalKernel, cache_key: tuple, dim: int, terms: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        log_lam, sign = kernel.log_abs_coefficients(dim, terms)
    return log_lam.to(device), sign.to(device)
