r"""The odds that two ambiguous inputs match, and the laws of negatives that decide whether a loss needs r or the odds.

A kernel whose values are probabilities says how often two latents match. Two inputs then match with probability

    rho(x, x') = E g(z.z') = A r(x, x'),     A = E_uniform g,

with the expected positivity r (positivity.py). Negatives x- of an anchor x follow one of three laws:

- "marginal": P(x-). Any input, whether it matches or not.
- "rejected-pair": P(x-) (1 - rho(x, x-)), up to a factor. Candidates from P(x) with fresh latents on both sides; those
  that do not match are kept.
- "rejected-latent": the same with one latent z of the anchor for its positive and all its negatives. For labels the
  latent is the class c that is drawn for the anchor, and the law is P(x-) (1 - P(c|x-)).

Positives that match x have density P(x') rho(x, x'), up to a factor. So the ratio of positives to negatives is r for
"marginal", and the odds rho / (1 - rho) for "rejected-pair". docs/theory.md has the proof, and says what holds for
"rejected-latent".
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.matching.positivity import log_positivity
from aleator.matching.truncation import CacheKey
from aleator.matching.zonal import ZonalKernel, check_kernel
from aleator.posteriors import PosteriorBatch

NegativeLaw = Literal["marginal", "rejected-pair", "rejected-latent"]

# log rho is kept this far below 0. Closer to it, the rounding of r would decide the odds, and point masses at one place
# would have infinite odds under a kernel with g(1) = 1.
_CLOSEST = 1e-9


def log_match_odds(q1: PosteriorBatch, q2: PosteriorBatch, kernel: ZonalKernel, terms: int | None = None) -> Tensor:
    """Log odds of a match: log rho - log(1 - rho), where rho = E g(z.z') is the probability that the latents match.

    The values of the kernel are taken as probabilities. Those of `AcceptanceKernel` are the paper's rule, p/(p + u).
    Those of `VMFKernel` are exp(kappa_pos (t - 1)): equal latents always match, others seldom do.

    Args:
        q1: Posteriors, batch shape (...).
        q2: Posteriors of the same dimension and dtype. The batch shapes broadcast.
        kernel: Probability of a match, given the cosine of the latents.
        terms: Number of terms of the series of r. Default: as many as the kernel and the dtype need.

    Returns:
        Log odds, shape (...), in the dtype of the posteriors; at most about 20.7, since rho is kept below 1 - 1e-9.

    Raises:
        ValueError: If the kernel exceeds 1 somewhere, or if no two latents match (kappa_pos = inf).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.matching import log_match_odds
        >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> q = al.VonMisesFisher(mu, torch.tensor([20.0, 20.0]))
        >>> log_match_odds(q, q[:1], al.AcceptanceKernel(20.0)).sigmoid()
        tensor([0.7821, 0.0026])
    """
    check_kernel(kernel)
    # In float64: where rho is close to 1, the rounding of float32 would be large beside 1 - rho.
    log_r = log_positivity(q1.double(), q2.double(), kernel, terms)
    log_rho = log_r + _log_share(kernel, q1.dim, log_r)
    log_rest = torch.log(-torch.expm1(log_rho.clamp_max(-_CLOSEST)))
    return (log_rho - log_rest).to(q1.dtype)


def _log_share(kernel: ZonalKernel, dim: int, like: Tensor) -> Tensor | float:
    """log A, a Python number if the kernel is fixed, so that nothing is copied to a GPU."""
    cache_key = kernel.cache_key()
    if cache_key is not None:
        return _cached_log_share(kernel, cache_key, dim)
    _require_probability(kernel, dim)
    return kernel.log_mean(dim).to(like)


@lru_cache(maxsize=256)
def _cached_log_share(kernel: ZonalKernel, cache_key: CacheKey, dim: int) -> float:
    with torch.no_grad():
        log_share = float(kernel.log_mean(dim))
    way_out = "pass a kernel with values above 0, such as AcceptanceKernel(20.0)"
    require(math.isfinite(log_share), "kernel", kernel, "no two latents match", way_out)
    _require_probability(kernel, dim)
    return log_share


def _require_probability(kernel: ZonalKernel, dim: int) -> None:
    with torch.no_grad():
        largest = float(kernel.log_values(dim, torch.linspace(-1, 1, 1001, dtype=torch.float64)).max())
    way_out = "scale it, so that its values are probabilities of a match"
    require(largest <= 1e-12, "kernel", kernel, f"reaches {math.exp(largest):.4g}, above 1", way_out)
