r"""Expected positivity, and the probability that two ambiguous inputs match.

For posteriors q and q', and a kernel g with coefficients lambda_n (zonal.py),

    r(q, q') = E g(z.z') / E_uniform g = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(mu.mu').        (3)

This is the expected positivity of the paper's Proposition 2, times the area of the sphere. It is the density ratio
P(x'|x)/P(x') that a contrastive task estimates; docs/theory.md has the proof. Its limits: kappa -> inf gives the
similarity of InfoNCE, kappa_pos -> inf the expected likelihood kernel, kappa -> 0 gives r = 1.

Here are the public functions and checks. components.py takes mixtures apart, series.py sums the series. A kernel's
series resolves posteriors up to some kappa, its `reach` (truncation.py); sharper posteriors are treated as having that
kappa.
"""

import logging
import math

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from aleator.foundation import reject, require, require_at_least, require_not_compiled, require_probability
from aleator.fused import fused_kernels
from aleator.matching.components import log_bilinear, log_bilinear_with_itself
from aleator.matching.fused_pairs import fused_log_pairs
from aleator.matching.kernels import VMFKernel
from aleator.matching.match_maps import LogOddsMap
from aleator.matching.series import log_series
from aleator.matching.sums.fused_totals import takes_polynomials
from aleator.matching.sums.interpolated_table import interpolated_log_r, takes_table
from aleator.matching.sums.interpolated_totals import takes_interpolants
from aleator.matching.sums.totals import STEEPEST, log_totals
from aleator.matching.zonal import ZonalKernel, check_kernel
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher, log_overlap, unit_directions

Posterior = PosteriorBatch | MixtureSameFamily
DEFAULT_PRIOR = 0.5  # share of matches among the pairs in question

# How much of the series may be left out, relative to the largest r.
_TOLERANCE = {torch.float32: 1e-10, torch.float64: 1e-17}
# A lighter component adds nothing to a sum in float64.
_LEAST_LOG_WEIGHT = -500.0
_SMALL_GROUP = 2**14  # pairs; from here on tiles are as fast as a table
_MOST_IN_TABLE = 2**20  # pairs of components, some 100 MB
_LOG = logging.getLogger("aleator.matching")
_TOLD: set[int] = set()  # dimensions whose reach a user has been told


def log_positivity(q1: Posterior, q2: Posterior, kernel: ZonalKernel, terms: int | None = None) -> Tensor:
    """Log of the expected positivity of pairs of posteriors, equation (3) of the theory.

    log r > 0 means that the two inputs match more often than two inputs drawn at random.

    Args:
        q1: Posteriors, batch shape (...): `VonMisesFisher` or `VMFMixture`.
        q2: Posteriors of the same dimension and dtype. The batch shapes broadcast.
        kernel: What counts as a match.
        terms: Number of terms of the series. Default: as many as the kernel and the dtype need.

    Returns:
        log r, shape (...), in the dtype of the posteriors.

    Raises:
        ValueError: If dimensions or dtypes differ, or if `terms` < 2.

    Examples:
        >>> import torch, aleator as al
        >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> q = al.VonMisesFisher(mu, torch.tensor([20.0, 20.0]))
        >>> al.log_positivity(q, q, al.VMFKernel(20.0))  # each with itself
        tensor([2.5959, 2.5959])
        >>> al.log_positivity(q[0], q[1], al.VMFKernel(20.0))
        tensor(-5.0932)
    """
    first, second = _checked_pair(q1, q2, kernel)
    if terms is None and first.modes * second.modes > 1 and _has_fused_pairs(first, second, kernel):
        (parts1, weights1), (parts2, weights2) = _component_pairs(first, second)
        return (_fused_log_r(parts1, parts2, kernel) + weights1 + weights2).view(len(first), -1).logsumexp(1)
    return log_bilinear(first, second, lambda a, b: _log_r(a, b, kernel, terms))


def pairwise_log_positivity(q1: Posterior, q2: Posterior, kernel: ZonalKernel, terms: int | None = None) -> Tensor:
    """Log of the expected positivity of every posterior of one batch with every posterior of another.

    Args:
        q1: Posteriors, batch shape (N,): `VonMisesFisher` or `VMFMixture`.
        q2: Posteriors of the same dimension and dtype, batch shape (M,).
        kernel: What counts as a match.
        terms: Number of terms of the series. Default: as many as the kernel and the dtype need.

    Returns:
        log r, shape (N, M), in the dtype of the posteriors.

    Raises:
        ValueError: If dimensions or dtypes differ, if a batch has another shape, or if `terms` < 2.

    Examples:
        >>> import torch, aleator as al
        >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> q = al.VonMisesFisher(mu, torch.tensor([20.0, 20.0]))
        >>> al.pairwise_log_positivity(q, q, al.VMFKernel(20.0))
        tensor([[ 2.5959, -5.0932],
                [-5.0932,  2.5959]])
    """
    first, second = _checked_pair(q1, q2, kernel)
    for name, q in (("q1", q1), ("q2", q2)):
        one_dimension = len(q.batch_shape) == 1
        require(one_dimension, name, tuple(q.batch_shape), "expected one batch dimension", "flatten the batch")
    if q1 is q2 and isinstance(first, VMFMixture) and len(first) > 0:  # r is symmetric
        return log_bilinear_with_itself(first, lambda a, b: _log_r(a, b, kernel, terms))
    return log_positivity(first[:, None], second[None, :], kernel, terms)


def log_total_positivity(
    q1: PosteriorBatch, q2: PosteriorBatch | None, kernel: ZonalKernel, terms: int | None = None
) -> Tensor:
    """Log of the sum of expected positivity of each posterior with all posteriors of a second batch.

    This equals `pairwise_log_positivity(q1, q2, kernel).logsumexp(1)`, but memory is linear in the sizes of the two
    batches: pairs are compared tile by tile, in the backward pass again. Of mixtures these are pairs of components.
    Many small groups are compared in one table on a CPU, if that is not large, because it is faster.

    Args:
        q1: Posteriors, batch shape (N,), or (G, N) for G groups: `VonMisesFisher` or `VMFMixture`.
        q2: Posteriors of the same dimension and dtype, batch shape (M,) or (G, M). None: the other posteriors of q1, in
            the same group.
        kernel: What counts as a match. One that `sums_in_tiles`.
        terms: Number of terms of the series. Default: as many as the kernel and the dtype need, tile by tile.

    Returns:
        Logarithms in float64, the shape of q1.

    Raises:
        ValueError: If dimensions or dtypes differ, if `terms` < 2, or if the kernel is not one that `sums_in_tiles`.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.matching import log_total_positivity
        >>> q = al.VonMisesFisher(torch.eye(3), 10.0)
        >>> log_total_positivity(q, None, al.VMFKernel(20.0))
        tensor([-1.6675, -1.6675, -1.6675], dtype=torch.float64)
        >>> al.pairwise_log_positivity(q[:1], q[1:], al.VMFKernel(20.0)).logsumexp(1)
        tensor([-1.6675])
    """
    _checked_pair(q1, q1 if q2 is None else q2, kernel)
    way_out = "use pairwise_log_positivity"
    require(sums_in_tiles(kernel, q1), "kernel", kernel, "cannot be summed in tiles here", way_out)
    if _many_small_groups(q1, q2):
        return _log_totals_of_table(q1, q2, kernel, terms)
    dim, dtype, reach = q1.dim, q1.dtype, kernel.reach(q1.dim)

    def side(q: PosteriorBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """mu (G, N K, D) and kappa (G, N K) of the components, and their log weights if there are several."""
        parts, rows = q.components, q.batch_shape[-1] * q.modes
        kappa = parts.kappa.double() if q.device.type == "cpu" else parts.kappa  # a GPU's own kernels do this
        if math.isfinite(reach):
            _tell_reach(kernel, dim, reach, kappa)
            kappa = kappa.clamp(max=reach)
        log_weights = q.log_weights.clamp(min=_LEAST_LOG_WEIGHT).reshape(-1, rows) if q.modes > 1 else None
        return parts.mu.reshape(-1, rows, dim), kappa.reshape(-1, rows), log_weights

    mu1, kappa1, weights1 = side(q1)
    mu2, kappa2, weights2 = (None, None, None) if q2 is None else side(q2)
    others = kappa1 if kappa2 is None else kappa2
    # A grid of polynomials goes deeper.
    depth = torch.float64 if takes_interpolants(mu1, mu2, weights1, weights2) else dtype
    count = terms if terms is not None else _count_terms(kernel, dim, depth, kappa1, others)
    if terms is None and kappa1.is_cuda:
        if takes_polynomials(len(kappa1), kappa1.shape[1], others.shape[1]):
            count = kernel.terms(dim, _TOLERANCE[torch.float64])  # the grid of the polynomials goes deeper
        count += count % 2  # so that nothing has to be padded
    require_at_least("terms", count, 2, "leave it out")
    log_lam, sign = kernel.series(dim, count, q1.device)
    kappa_pos = kernel.concentration(log_lam) if isinstance(kernel, VMFKernel) else None
    tolerance = 0.0 if terms is not None else _tolerance(kernel, dtype)
    arguments = (log_lam, sign, dim, kappa_pos, tolerance, weights1, weights2, q1.modes)
    totals = log_totals(mu1, kappa1, mu2, kappa2, *arguments)
    return totals.view(*q1.batch_shape, q1.modes).logsumexp(-1) if q1.modes > 1 else totals.view(q1.batch_shape)


def _many_small_groups(q1: PosteriorBatch, q2: PosteriorBatch | None) -> bool:
    """Whether one table of all groups is faster than tiles of each: a group of tiles costs some milliseconds."""
    if q1.device.type != "cpu" or len(q1.batch_shape) < 2:
        return False
    others = q1 if q2 is None else q2
    groups, pairs = len(q1), q1.batch_shape[-1] * others.batch_shape[-1]
    return groups > 1 and pairs <= _SMALL_GROUP and groups * pairs * q1.modes * others.modes <= _MOST_IN_TABLE


def _log_totals_of_table(
    q1: PosteriorBatch, q2: PosteriorBatch | None, kernel: ZonalKernel, terms: int | None
) -> Tensor:
    """`log_total_positivity` (G, N) of groups from a table (G, N, M)."""
    others = q1 if q2 is None else q2
    log_r = log_positivity(q1[:, :, None], others[:, None, :], kernel, terms).double()
    if q2 is None:
        log_r = log_r.masked_fill(torch.eye(log_r.shape[1], dtype=torch.bool), -math.inf)
    return log_r.logsumexp(-1)


def sums_in_tiles(kernel: ZonalKernel, q: PosteriorBatch) -> bool:
    """Whether `log_total_positivity` takes this kernel, for posteriors with the dtype and device of q.

    On a CPU that is any kernel but a vMF kernel that is very steep. On a GPU it is the same for fixed kernels and
    float32, if Triton is installed; other kernels compare all pairs in one table there.
    """
    kappa = q.components.kappa
    if q.device.type != "cpu":
        fixed = kernel.cache_key() is not None and q.dtype == torch.float32
        if not (fixed and fused_kernels(kappa)):
            return False
    if not isinstance(kernel, VMFKernel):
        return True
    steepest = kernel.concentration(kappa)
    return float(steepest.detach() if isinstance(steepest, Tensor) else steepest) <= STEEPEST


def match_probability(
    q1: Posterior,
    q2: Posterior,
    kernel: ZonalKernel,
    prior: float | Tensor = DEFAULT_PRIOR,
    calibration: LogOddsMap | None = None,
    rank: Tensor | None = None,
) -> Tensor:
    """Probability that two inputs match, given both posteriors: prior r / (prior r + 1 - prior).

    Args:
        q1: Posteriors, batch shape (...): `VonMisesFisher` or `VMFMixture`.
        q2: Posteriors of the same dimension and dtype. The batch shapes broadcast: for all pairs of two batches pass
            `q1[:, None]` and `q2`.
        kernel: What counts as a match.
        prior: Share of matches among the pairs in question, inside (0, 1). A number, or a tensor that broadcasts.
        calibration: Map from log r to a log odds ratio that was fitted on held-out pairs. Default: log r itself.
        rank: Ranks from 1 of hits in an answer, shape (...), for a map of hits. Default: 1.

    Returns:
        Probabilities, shape (...), in the dtype of the posteriors.

    Raises:
        ValueError: If dimensions or dtypes differ, or if the prior is not inside (0, 1).

    Examples:
        >>> import torch, aleator as al
        >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> q = al.VonMisesFisher(mu, torch.tensor([20.0, 20.0]))
        >>> al.match_probability(q[:, None], q, al.VMFKernel(20.0), prior=0.1)
        tensor([[0.5984, 0.0007],
                [0.0007, 0.5984]])
    """
    require_probability("prior", prior, "pass the share of matching pairs, for example 0.5")
    log_r = log_positivity(q1, q2, kernel)
    # In float32 a share close to 1 would be 1. Its log odds are not large.
    share = torch.as_tensor(prior, dtype=torch.float64, device=log_r.device)
    log_odds_ratio = log_r if calibration is None else calibration(log_r, rank)
    return torch.sigmoid(log_odds_ratio + torch.logit(share).to(log_r.dtype))


def _checked_pair(q1: Posterior, q2: Posterior, kernel: ZonalKernel) -> tuple[PosteriorBatch, PosteriorBatch]:
    """Both posteriors as classes of this package; an error unless they have one dimension and dtype."""
    check_kernel(kernel)
    require_not_compiled("q1")
    first, second = _as_posterior("q1", q1), _as_posterior("q2", q2)
    dim1, dim2 = first.dim, second.dim
    require(dim1 == dim2, "q2", f"dimension {dim2}", f"q1 has dimension {dim1}", "embed both in one space")
    dtype1, dtype2 = first.dtype, second.dtype
    require(dtype1 == dtype2, "q2", dtype2, f"q1 has dtype {dtype1}", "cast one to the other")
    return first, second


def _as_posterior(name: str, q: Distribution) -> PosteriorBatch:
    """The posterior itself; `VMFMixture` for torch's own mixtures of vMFs."""
    if isinstance(q, PosteriorBatch):
        return q
    if isinstance(q, MixtureSameFamily) and isinstance(q.component_distribution, VonMisesFisher):
        return VMFMixture(q.mixture_distribution.logits, q.component_distribution, validate_args=False)
    return reject(name, type(q).__name__, "not a posterior", "pass VonMisesFisher or VMFMixture")


def _log_r(q1: VonMisesFisher, q2: VonMisesFisher, kernel: ZonalKernel, terms: int | None) -> Tensor:
    """log r of vMF posteriors whose batch shapes broadcast."""
    dim, dtype = q1.dim, q1.mu.dtype
    shape = torch.broadcast_shapes(q1.batch_shape, q2.batch_shape)
    if terms is None and _has_fused_pairs(q1, q2, kernel):
        return _fused_log_r(q1, q2, kernel)
    kappa1, kappa2 = q1.kappa.double(), q2.kappa.double()
    if isinstance(kernel, VMFKernel) and kernel.is_identity:
        return log_overlap(dim, _cosine_gap(q1, q2), kappa1, kappa2).to(dtype)
    cosine = _cosine(q1.mu.double(), q2.mu.double())
    # The series works on tables of pairs, (N, M) or (G, N, M). Any other shape becomes a table of one column.
    if len(shape) not in (2, 3):
        kappa1, kappa2 = kappa1.expand(shape).reshape(-1, 1), kappa2.expand(shape).reshape(-1, 1)
        cosine = cosine.reshape(-1, 1)
    kappa1, kappa2 = (kappa[(None,) * (cosine.dim() - kappa.dim())] for kappa in (kappa1, kappa2))
    reach = kernel.reach(dim)
    if math.isfinite(reach):  # for sharper posteriors the series would be noise
        _tell_reach(kernel, dim, reach, kappa1, kappa2)
        kappa1, kappa2 = kappa1.clamp(max=reach), kappa2.clamp(max=reach)
    count = terms if terms is not None else _count_terms(kernel, dim, dtype, kappa1, kappa2)
    pairs = (cosine, kappa1, kappa2)
    if terms is None and isinstance(kernel, VMFKernel) and takes_table(*pairs, dtype, kernel, dim, count):
        return interpolated_log_r(*pairs, kernel, dim).view(shape)
    require_at_least("terms", count, 2, "leave it out")
    log_lam, sign = kernel.series(dim, count, cosine.device)
    kappa_pos = kernel.concentration(cosine) if isinstance(kernel, VMFKernel) else None
    return log_series(cosine, kappa1, kappa2, log_lam, sign, dim, kappa_pos).view(shape).to(dtype)


def _has_fused_pairs(q1: PosteriorBatch, q2: PosteriorBatch, kernel: ZonalKernel) -> bool:
    """Whether N pairs of two batches (N,) go the short way on a GPU: a fixed kernel, float32."""
    one_each = len(q1.batch_shape) == 1 and q1.batch_shape == q2.batch_shape
    plain = one_each and q1.dtype == torch.float32 and len(q1) > 0
    fixed = kernel.cache_key() is not None and not (isinstance(kernel, VMFKernel) and kernel.is_identity)
    return plain and fixed and fused_kernels(q1.components.kappa) is not None


def _component_pairs(q1: PosteriorBatch, q2: PosteriorBatch) -> list[tuple[VonMisesFisher, Tensor]]:
    """All pairs of components of N pairs of posteriors: the components and log weights of each side, (N K J,)."""
    shape, sides = (len(q1), q1.modes, q2.modes), []
    for q, axis in ((q1, 2), (q2, 1)):
        parts, log_weights = q.components.unsqueeze(axis).expand(shape), q.log_weights.unsqueeze(axis).expand(shape)
        sides.append((parts.reshape(-1), log_weights.reshape(-1)))
    return sides


def _fused_log_r(q1: VonMisesFisher, q2: VonMisesFisher, kernel: ZonalKernel) -> Tensor:
    """log r of N pairs in float32."""
    dim, reach = q1.dim, kernel.reach(q1.dim)
    kappa1, kappa2 = (q.kappa.clamp(max=reach) if math.isfinite(reach) else q.kappa for q in (q1, q2))
    log_lam, sign = kernel.series(dim, kernel.terms(dim, _tolerance(kernel, torch.float32)), q1.mu.device)
    kappa_pos = kernel.concentration(log_lam) if isinstance(kernel, VMFKernel) else None
    return fused_log_pairs(q1.mu, kappa1, q2.mu, kappa2, log_lam, sign, dim, kappa_pos).float()


def _tell_reach(kernel: ZonalKernel, dim: int, reach: float, *kappas: Tensor) -> None:
    """Log once for each dimension that posteriors are sharper than the reach of the kernel. On a CPU only."""
    if dim in _TOLD or any(kappa.device.type != "cpu" for kappa in kappas):
        return
    sharpest = max((kappa.detach().max().item() for kappa in kappas if kappa.numel()), default=0.0)
    if sharpest > reach:
        _TOLD.add(dim)
        message = "%r resolves posteriors up to kappa = %.3g in %d dimensions; kappa = %.3g counts as that"
        _LOG.warning(message, kernel, reach, dim, sharpest)


def _cosine(mu1: Tensor, mu2: Tensor) -> Tensor:
    """mu.mu' in float64: a sharp kernel multiplies its error by kappa_pos, and GPUs may round products to ten bits."""
    return mu1.squeeze(-2) @ mu2.squeeze(-3).mT if _is_table(mu1, mu2) else (mu1 * mu2).sum(-1)


def _cosine_gap(q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
    """1 - mu.mu' in float64. Of pairs it has all digits; of a table an error of 1e-16, since it is a product."""
    mu1, mu2 = unit_directions(q1.mu), unit_directions(q2.mu)
    return 1 - _cosine(mu1, mu2) if _is_table(mu1, mu2) else (mu1 - mu2).square().sum(-1) / 2


def _is_table(mu1: Tensor, mu2: Tensor) -> bool:
    """Whether every row, (..., N, 1, D), is compared with every column, (..., 1, M, D)."""
    return mu1.dim() == mu2.dim() >= 3 and mu1.shape[-2] == 1 and mu2.shape[-3] == 1


def _count_terms(kernel: ZonalKernel, dim: int, dtype: torch.dtype, kappa1: Tensor, kappa2: Tensor) -> int:
    """Terms for the posteriors of the batch on a CPU; for any posterior on a GPU, where reading kappa would wait."""
    tolerance = _tolerance(kernel, dtype)
    if kappa1.device.type != "cpu" or kappa1.numel() == 0 or kappa2.numel() == 0:
        return kernel.terms(dim, tolerance)
    # A NaN kappa makes its own pairs NaN for any number of terms, so it is left out of the maximum.
    sharpest = (k.detach().nan_to_num(0.0, math.inf).max().item() for k in (kappa1, kappa2))
    return kernel.terms(dim, tolerance, *sharpest)


def _tolerance(kernel: ZonalKernel, dtype: torch.dtype) -> float:
    """How much of the series may be left out."""
    # Only the vMF kernel has a tail. For others, left-out terms would show where r is close to its floor.
    return _TOLERANCE[dtype if isinstance(kernel, VMFKernel) else torch.float64]
