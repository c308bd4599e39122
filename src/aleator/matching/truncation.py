r"""How sharp posteriors a kernel's series can resolve, and after how many terms it can be cut.

The series of expected positivity is

    r(c) = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(c).

It is summed in float64. Since |P_n(c)| <= P_n(1) = 1, its terms are largest at c = 1, and all bounds are taken there.

The *reach* of a kernel is the largest kappa = kappa' at which errors stay small beside r(1). In high dimensions dim_n
is astronomical. It multiplies the errors of lambda_n, and where lambda_n changes its sign, terms cancel that are far
larger than their sum. A_n(kappa) damps both, unless the posteriors are too sharp. The search tries a grid of kappas.

The number of *terms* is the smallest with which all later terms together are below a tolerance times r(1).
"""

import math
from functools import lru_cache
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from aleator.foundation import reject
from aleator.special import log_harmonic_dimensions, log_ratios_and_slopes

_FEWEST_TERMS, _MOST_TERMS = 32, 4096
# Largest errors of r(1), relative to r(1), for posteriors at the reach: from rounding, and from errors of lambda_n.
# Both are bounds; measured errors are a hundredth of them. Away from c = 1 the errors are smaller still, while treating
# a posterior as wider than it is changes r at every cosine.
_ROUNDING_LIMIT, _COEFFICIENT_LIMIT = 1e-5, 1e-3
# The kappas tried for the reach: quarters of an octave from 2^-3 to 2^40, and inf.
_KAPPA_GRID = torch.cat([2 ** (torch.arange(-12, 161, dtype=torch.float64) / 4), torch.tensor([math.inf])])

CacheKey = tuple | None


class SeriesKernel(Protocol):
    """What the searches need from a kernel. `ZonalKernel` documents the methods."""

    def __hash__(self) -> int: ...

    @property
    def resolution(self) -> float: ...

    def log_abs_coefficients(self, dim: int, terms: int) -> tuple[Tensor, Tensor]: ...

    def coefficient_errors(self, dim: int, terms: int) -> Tensor: ...

    def reach(self, dim: int) -> float: ...


def kernel_reach(kernel: SeriesKernel, cache_key: CacheKey, dim: int) -> float:
    """`find_reach`, from the cache if the kernel has a cache key."""
    return find_reach(kernel, dim) if cache_key is None else _cached_reach(kernel, cache_key, dim)


def kernel_terms(
    kernel: SeriesKernel, cache_key: CacheKey, dim: int, tolerance: float, kappa1: float, kappa2: float
) -> int:
    """Terms needed for posteriors no sharper than kappa1 and kappa2, from the cache if the kernel has a cache key."""

    def search(tolerance: float, kappa1: float, kappa2: float) -> int:
        if cache_key is None:
            return find_terms(kernel, dim, tolerance, kappa1, kappa2)
        return _cached_terms(kernel, cache_key, dim, tolerance, kappa1, kappa2)

    # Below the kernel's resolution, more terms would only add noise.
    most = search(max(tolerance, kernel.resolution), math.inf, math.inf)
    if math.isinf(kappa1) and math.isinf(kappa2):
        return most
    # Rounded up to a quarter of an octave, so that similar batches share one cache entry.
    kappa1, kappa2 = (2 ** (math.ceil(4 * math.log2(max(min(k, 1e25), 1e-3))) / 4) for k in (kappa1, kappa2))
    return min(most, search(tolerance, kappa1, kappa2))


def find_reach(kernel: SeriesKernel, dim: int) -> float:
    """The largest kappa of the grid up to which the series resolves two posteriors of that kappa; inf if all."""
    count, resolved = _first_count(kernel, dim), 1
    while count <= _MOST_TERMS:
        accurate, cut_off = _check_grid(kernel, dim, count)
        resolved = max(1, int((accurate & ~cut_off).cumprod(0).sum()))  # the widest posterior always counts as resolved
        if resolved == len(_KAPPA_GRID):
            return math.inf
        if not cut_off[resolved]:  # it fails although no term is missing, so more terms do not help
            break
        count *= 2
    return _KAPPA_GRID[resolved - 1].item()


def _check_grid(kernel: SeriesKernel, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """For each kappa of the grid: whether all errors are within limits, and whether the series needs more terms."""
    log_lam, sign = _host_coefficients(kernel, dim, count)
    log_dims = log_harmonic_dimensions(dim, count)
    log_a, _ = log_ratios_and_slopes(dim / 2 - 1, _KAPPA_GRID, count)
    log_size = log_dims + log_lam + 2 * log_a
    top = log_size.amax(-1, keepdim=True)
    size = torch.exp(log_size - top)  # |terms| relative to the largest, (kappas, count)
    error = torch.exp(log_dims + _log_errors(kernel, dim, log_lam) + 2 * log_a - top)
    total, limit = _total_and_limit(size, sign, kernel.resolution)
    # Each logarithm that makes up a term, and each degree of the recurrences, costs one unit of rounding.
    units = torch.arange(count) + log_dims + torch.where(sign == 0, 0.0, log_lam.abs()) - 2 * log_a
    rounding = 1.1e-16 * (units * size).sum(-1)
    accurate = (error.sum(-1) <= _COEFFICIENT_LIMIT * total) & (rounding <= _ROUNDING_LIMIT * total)
    last = slice(-count // 4, None)
    cut_off = (size[:, last].sum(-1) > limit) | (error[:, last].sum(-1) > _COEFFICIENT_LIMIT / 10 * total)
    return accurate, cut_off


def _first_count(kernel: SeriesKernel, dim: int) -> int:
    """Enough terms to see the coefficients fall below their errors. Those of a kernel with a jump never do."""
    count = _FEWEST_TERMS
    while count <= _MOST_TERMS:
        exact = not kernel.coefficient_errors(dim, count).any()
        if exact or not _host_coefficients(kernel, dim, count)[1][-count // 4 :].any():
            return count
        count *= 2
    _reject_divergence(kernel, dim)


def _log_errors(kernel: SeriesKernel, dim: int, log_lam: Tensor) -> Tensor:
    """log of the errors of the coefficients, (terms,).

    Up to the last coefficient above its rounding error this is the rounding error. Later coefficients are set to zero,
    so their error is their size. It is extrapolated from the rate at which the last third of the others fell.
    """
    log_noise = kernel.coefficient_errors(dim, len(log_lam)).log()
    if torch.isinf(log_noise).all():  # exact coefficients
        return log_noise
    known = int(torch.isfinite(log_lam).nonzero().max()) + 1
    if known == len(log_lam):
        return log_noise
    before = 2 * known // 3
    rate = (log_noise[known] - log_lam[before:known].max()) / (known - before)
    beyond = log_noise[known] + rate * torch.arange(len(log_lam) - known)
    return torch.cat([log_noise[:known], beyond])


def find_terms(kernel: SeriesKernel, dim: int, tolerance: float, kappa1: float, kappa2: float) -> int:
    """The number of terms after which the rest is below tolerance times r(1); kappas count up to the reach only."""
    reach = kernel.reach(dim)
    kappa = torch.tensor([min(kappa1, reach), min(kappa2, reach)], dtype=torch.float64)
    count = _FEWEST_TERMS
    while count <= _MOST_TERMS:
        log_lam, sign = _host_coefficients(kernel, dim, count)
        log_a, _ = log_ratios_and_slopes(dim / 2 - 1, kappa, count)
        log_size = log_harmonic_dimensions(dim, count) + log_lam + log_a.sum(0)
        size = torch.exp(log_size - log_size.max())
        _, limit = _total_and_limit(size, sign, tolerance)
        rest = size.flip(0).cumsum(0).flip(0)  # sum_{m >= n}
        # The last quarter must be small as a whole. One small term proves nothing where the coefficients change sign.
        if rest[-count // 4] <= limit:
            return max(2, int((rest > limit).sum()))
        count *= 2
    _reject_divergence(kernel, dim)


def _total_and_limit(size: Tensor, sign: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """r(1) from the sizes of its terms (..., T), and how much may be left out: the tolerance, or less than rounding."""
    total = (sign * size).sum(-1)
    return total, torch.maximum(tolerance * total, 1e-17 * size.sum(-1))


def _host_coefficients(kernel: SeriesKernel, dim: int, terms: int) -> tuple[Tensor, Tensor]:
    """log |lambda_n| and signs on the CPU, without gradients."""
    with torch.no_grad():
        log_lam, sign = kernel.log_abs_coefficients(dim, terms)
    return log_lam.cpu().double(), sign.cpu().double()


def _reject_divergence(kernel: SeriesKernel, dim: int) -> NoReturn:
    reject(
        "kernel",
        kernel,
        f"its series does not converge within {_MOST_TERMS} terms in {dim} dimensions",
        "use a smoother kernel, or VMFKernel(math.inf) for the expected likelihood kernel",
    )


@lru_cache(maxsize=1024)
def _cached_reach(kernel: SeriesKernel, cache_key: tuple, dim: int) -> float:
    return find_reach(kernel, dim)


@lru_cache(maxsize=4096)
def _cached_terms(
    kernel: SeriesKernel, cache_key: tuple, dim: int, tolerance: float, kappa1: float, kappa2: float
) -> int:
    return find_terms(kernel, dim, tolerance, kappa1, kappa2)
