r"""Expected positivity, and the probability that two ambiguous inputs match.

For posteriors q and q', and a kernel g with coefficients lambda_n (zonal.py),

    r(q, q') = E g(z.z') / E_uniform g = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(mu.mu').        (3)

This is the expected positivity of the paper's Proposition 2, times the area of the sphere. It is the density ratio
P(x'|x)/P(x') that a contrastive task estimates; docs/theory.md has the proof. Its limits: kappa -> inf gives the
similarity of InfoNCE, kappa_pos -> inf the expected likelihood kernel, kappa -> 0 gives r = 1.

Here are the public functions and checks. components.py takes mixtures apart, ways.py chooses how r is summed, series.py
has the series. A kernel's series resolves posteriors up to some kappa, its `reach` (truncation.py); sharper posteriors
are treated as having that kappa.
"""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from aleator.foundation import (
    Backward,
    Saved,
    reject,
    require,
    require_at_least,
    require_not_compiled,
    require_probability,
    with_gradient,
)
from aleator.matching.components import log_bilinear
from aleator.matching.interpolated_sum import InterpolatedTotals
from aleator.matching.interpolated_table import interpolated_log_r
from aleator.matching.kernels import VMFKernel
from aleator.matching.match_maps import LogOddsMap
from aleator.matching.on_gpu import FusedTotals, fused_log_pairs
from aleator.matching.series import KernelSeries, Rows, log_series
from aleator.matching.tiled_sum import TiledTotals
from aleator.matching.ways import Way, choose, count_terms, left_out
from aleator.matching.zonal import ZonalKernel, check_kernel
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher, log_overlap, unit_directions

Posterior = PosteriorBatch | MixtureSameFamily
DEFAULT_PRIOR = 0.5  # share of matches among the pairs in question

# A lighter component adds nothing to a sum in float64.
_LEAST_LOG_WEIGHT = -500.0
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
    if isinstance(first, VonMisesFisher) and isinstance(second, VonMisesFisher):
        return log_r_of_components(first, second, kernel, terms)
    if first.modes * second.modes > 1 and choose(kernel, first, second, terms) is Way.GPU_PAIRS:
        (parts1, weights1), (parts2, weights2) = _component_pairs(first, second)
        log_r = log_r_of_components(parts1, parts2, kernel, way=Way.GPU_PAIRS)
        return (log_r + weights1 + weights2).view(len(first), -1).logsumexp(1)
    return log_bilinear(first, second, lambda a, b: log_r_of_components(a, b, kernel, terms))


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
    return log_positivity(first[:, None], second[None, :], kernel, terms)


def log_total_positivity(
    q1: PosteriorBatch,
    q2: PosteriorBatch | None,
    kernel: ZonalKernel,
    terms: int | None = None,
    way: Way | None = None,
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
        way: How r is summed, to compare ways. Default: the fastest for these posteriors (ways.py).

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
    way = choose(kernel, q1, q2, terms, sums=True) if way is None else way
    if way is Way.TABLE:
        return _log_totals_of_table(q1, q2, kernel, terms)
    first, second = _rows(q1, kernel), None if q2 is None else _rows(q2, kernel)
    kappa2 = first.kappa if second is None else second.kappa
    # A grid of polynomials goes deeper.
    depth = torch.float64 if way in (Way.TILE_POLYNOMIALS, Way.GPU_TILE_POLYNOMIALS) else q1.dtype
    count = terms if terms is not None else count_terms(kernel, q1.dim, depth, first.kappa, kappa2)
    if terms is None and first.kappa.is_cuda:
        count += count % 2  # so that nothing has to be padded
    tolerance = 0.0 if terms is not None else left_out(kernel, q1.dtype)
    totals = _log_totals(_series(kernel, q1.dim, count, first.kappa, tolerance), first, second, way)
    return totals.view(*q1.batch_shape, q1.modes).logsumexp(-1) if q1.modes > 1 else totals.view(q1.batch_shape)


def _rows(q: PosteriorBatch, kernel: ZonalKernel) -> Rows:
    """The components of posteriors (N,) or (G, N), each with its weight if there are several."""
    parts, rows, reach = q.components, q.batch_shape[-1] * q.modes, kernel.reach(q.dim)
    kappa = parts.kappa.double() if q.device.type == "cpu" else parts.kappa  # a GPU's own kernels do this
    if math.isfinite(reach):
        _tell_reach(kernel, q.dim, reach, kappa)
        kappa = kappa.clamp(max=reach)
    log_weights = q.log_weights.clamp(min=_LEAST_LOG_WEIGHT).reshape(-1, rows) if q.modes > 1 else None
    return Rows(parts.mu.reshape(-1, rows, q.dim), kappa.reshape(-1, rows), log_weights, q.modes)


def _series(kernel: ZonalKernel, dim: int, terms: int, like: Tensor, tolerance: float = 0.0) -> KernelSeries:
    require_at_least("terms", terms, 2, "leave it out")
    log_lam, sign = kernel.series(dim, terms, like.device)
    kappa_pos = kernel.concentration(log_lam) if isinstance(kernel, VMFKernel) else None
    return KernelSeries(dim, log_lam, sign, kappa_pos, tolerance)


def _log_totals(kernel: KernelSeries, first: Rows, second: Rows | None, way: Way) -> Tensor:
    """log w_i + log sum_j w_j r(x_i, x_j), (G, N), float64, with gradients in both sides and the kernel.

    Without a second side, the negatives are the other anchors of the group.
    """
    inputs = *first.tensors, *(second.tensors if second is not None else (None,) * 3), *kernel.parameters
    dtypes = [None if x is None else x.dtype for x in inputs]

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        pairs: TiledTotals | InterpolatedTotals | FusedTotals
        if way is Way.TILES:
            pairs = TiledTotals(kernel, first, second)
        elif way is Way.TILE_POLYNOMIALS:
            pairs = InterpolatedTotals(kernel, first, second)
        else:
            pairs = FusedTotals(kernel, first, second, way is Way.GPU_TILE_POLYNOMIALS)

        def gradients(grad: Tensor) -> list[Tensor | None]:
            pieces = zip(pairs.gradients(grad), dtypes, strict=True)
            return [None if x is None or dtype is None else x.to(dtype) for x, dtype in pieces]

        return pairs.totals(), (), gradients

    return with_gradient(compute, *inputs)


def _log_totals_of_table(
    q1: PosteriorBatch, q2: PosteriorBatch | None, kernel: ZonalKernel, terms: int | None
) -> Tensor:
    """`log_total_positivity` from a table (N, M) or (G, N, M)."""
    others = q1 if q2 is None else q2
    log_r = log_positivity(q1[..., :, None], others[..., None, :], kernel, terms).double()
    if q2 is None:
        log_r = log_r.masked_fill(torch.eye(log_r.shape[-1], dtype=torch.bool), -math.inf)
    return log_r.logsumexp(-1)


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


def log_r_of_components(
    q1: VonMisesFisher, q2: VonMisesFisher, kernel: ZonalKernel, terms: int | None = None, way: Way | None = None
) -> Tensor:
    """log r of vMF posteriors whose batch shapes broadcast. `way`: how it is summed. Default: the fastest."""
    dim, dtype = q1.dim, q1.mu.dtype
    way = choose(kernel, q1, q2, terms) if way is None else way
    if way is Way.GPU_PAIRS:
        first, second = _rows(q1, kernel), _rows(q2, kernel)
        count = kernel.terms(dim, left_out(kernel, torch.float32))
        return fused_log_pairs(_series(kernel, dim, count, first.mu), first, second)[0].float()
    kappa1, kappa2 = q1.kappa.double(), q2.kappa.double()
    if way is Way.OVERLAP:
        return log_overlap(dim, _cosine_gap(q1, q2), kappa1, kappa2).to(dtype)
    cosine = _cosine(q1.mu.double(), q2.mu.double())
    # The series works on tables of pairs, (N, M) or (G, N, M). Any other shape becomes a table of one column.
    shape = torch.broadcast_shapes(q1.batch_shape, q2.batch_shape)
    if len(shape) not in (2, 3):
        kappa1, kappa2 = kappa1.expand(shape).reshape(-1, 1), kappa2.expand(shape).reshape(-1, 1)
        cosine = cosine.reshape(-1, 1)
    kappa1, kappa2 = (kappa[(None,) * (cosine.dim() - kappa.dim())] for kappa in (kappa1, kappa2))
    if way is Way.TABLE_POLYNOMIALS:
        return interpolated_log_r(cosine, kappa1, kappa2, kernel, dim).view(shape)
    reach = kernel.reach(dim)
    if math.isfinite(reach):  # for sharper posteriors the series would be noise
        _tell_reach(kernel, dim, reach, kappa1, kappa2)
        kappa1, kappa2 = kappa1.clamp(max=reach), kappa2.clamp(max=reach)
    count = terms if terms is not None else count_terms(kernel, dim, dtype, kappa1, kappa2)
    return log_series(_series(kernel, dim, count, cosine), cosine, kappa1, kappa2).view(shape).to(dtype)


def _component_pairs(q1: PosteriorBatch, q2: PosteriorBatch) -> list[tuple[VonMisesFisher, Tensor]]:
    """All pairs of components of N pairs of posteriors: the components and log weights of each side, (N K J,)."""
    shape, sides = (len(q1), q1.modes, q2.modes), []
    for q, axis in ((q1, 2), (q2, 1)):
        parts, log_weights = q.components.unsqueeze(axis).expand(shape), q.log_weights.unsqueeze(axis).expand(shape)
        sides.append((parts.reshape(-1), log_weights.reshape(-1)))
    return sides


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
