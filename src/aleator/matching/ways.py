"""How r of many pairs is summed: the one place that chooses.

    way                   what it does                         when
    OVERLAP               closed form                          kappa_pos = inf
    TABLE                 the series of every pair             what no other way takes; sums over small groups
    TABLE_POLYNOMIALS     polynomials for log r, in float32    large tables with gradients, on a CPU
    TILES                 sums of the series, tile by tile     sums over negatives, on a CPU
    TILE_POLYNOMIALS      sums of polynomials, tile by tile    the same, for very many pairs
    GPU_PAIRS             N given pairs in few launches        float32 and a fixed kernel, on a GPU
    GPU_TILES             TILES in one kernel                  sums over negatives, on a GPU
    GPU_TILE_POLYNOMIALS  TILE_POLYNOMIALS in one kernel       the same, for very many pairs

What a way gains, as a ratio of times of a whole training step with the way and without it, on one core:

    TABLE of groups       ExactInfoNCE, groups of 16, 32 and 128 anchors: 3.5, 2.3 and 1.1
    TABLE_POLYNOMIALS     PrototypeLoss, 128 dimensions, 100 and 1,000 classes: 2.1 and 4.1; 10 classes: 1
    TILE_POLYNOMIALS      ExactInfoNCE, 1,024 anchors, 8, 16 and 64 dimensions: 1.1 to 1.3, 1.5 to 1.8, 2.1 to 3.2

A way that gains less than 1.5 times on a whole training step, embedding or search is not kept.
"""

import math
from enum import Enum, auto

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.fused import fused_kernels
from aleator.matching.interpolated_table import degree_of_table
from aleator.matching.kernels import VMFKernel
from aleator.matching.zonal import ZonalKernel
from aleator.posteriors import PosteriorBatch

SMALL_GROUP = 2**14  # pairs; from here on tiles are as fast as a table
MOST_IN_TABLE = 2**20  # pairs of components of all groups, some 100 MB
TABLE_WORK = 2**19  # pairs times terms; with less, the calls decide the time, and the series has fewer
HIGHEST_DEGREE = 0.5  # of the polynomials of a table, in terms of the series; with more, the series is as fast
TILE_PAIRS = 2**19  # from here on the grid of the polynomials is paid for
GPU_PAIRS_OF_GRID = 2**24  # the same, on an H200
# The sums are not taken in logarithms on a CPU, so r must not underflow: its exponent is at least -2 kappa_pos.
STEEPEST = 150.0

# How much of the series may be left out, relative to the largest r.
_TOLERANCE = {torch.float32: 1e-10, torch.float64: 1e-17}


class Way(Enum):
    """How r is summed; the table in ways.py says when each is chosen.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.matching import Way, log_total_positivity
        >>> q = al.VonMisesFisher(torch.eye(3), 10.0)
        >>> log_total_positivity(q, None, al.VMFKernel(20.0), way=Way.TILES)
        tensor([-1.6675, -1.6675, -1.6675], dtype=torch.float64)
    """

    OVERLAP = auto()
    TABLE = auto()
    TABLE_POLYNOMIALS = auto()
    TILES = auto()
    TILE_POLYNOMIALS = auto()
    GPU_PAIRS = auto()
    GPU_TILES = auto()
    GPU_TILE_POLYNOMIALS = auto()


def choose(
    kernel: ZonalKernel, q1: PosteriorBatch, q2: PosteriorBatch | None, terms: int | None = None, sums: bool = False
) -> Way:
    """The way for these posteriors.

    Args:
        kernel: What counts as a match.
        q1: Posteriors, batch shape (...); for sums the anchors, (N,) or (G, N).
        q2: Posteriors whose batch shape broadcasts; for sums the negatives, (M,) or (G, M), or None for the others.
        terms: Number of terms, if it is given.
        sums: Whether only the sums over q2 are wanted.
    """
    others = q1 if q2 is None else q2
    return _way_of_sums(kernel, q1, others) if sums else _way_of_pairs(kernel, q1, others, terms)


def _way_of_pairs(kernel: ZonalKernel, q1: PosteriorBatch, q2: PosteriorBatch, terms: int | None) -> Way:
    if isinstance(kernel, VMFKernel) and kernel.is_identity:
        return Way.OVERLAP
    if terms is not None or kernel.cache_key() is None or q1.dtype != torch.float32:
        return Way.TABLE
    kappa1, kappa2 = q1.components.kappa, q2.components.kappa
    if fused_kernels(kappa1):
        given = len(q1.batch_shape) == 1 and q1.batch_shape == q2.batch_shape and len(q1) > 0
        return Way.GPU_PAIRS if given else Way.TABLE
    table = len(q1.batch_shape) == 2 and q1.batch_shape[1] == 1 and tuple(q2.batch_shape[:-1]) in ((), (1,))
    plain = table and q1.modes == q2.modes == 1 and kappa1.device.type == "cpu" and isinstance(kernel, VMFKernel)
    learned = (q1.components.mu, q2.components.mu, kappa1, kappa2)
    if not (plain and torch.is_grad_enabled() and any(x.requires_grad for x in learned)):
        return Way.TABLE
    count = count_terms(kernel, q1.dim, q1.dtype, kappa1, kappa2)
    if len(q1) * q2.batch_shape[-1] * count < TABLE_WORK:
        return Way.TABLE
    degree = degree_of_table(kernel, q1.dim, kappa1.double(), kappa2.double())
    return Way.TABLE_POLYNOMIALS if degree <= HIGHEST_DEGREE * count else Way.TABLE


def _way_of_sums(kernel: ZonalKernel, q1: PosteriorBatch, q2: PosteriorBatch) -> Way:
    way_out = "use pairwise_log_positivity"
    require(sums_in_tiles(kernel, q1), "kernel", kernel, "cannot be summed in tiles here", way_out)
    groups = len(q1) if len(q1.batch_shape) > 1 else 1
    pairs = q1.batch_shape[-1] * q2.batch_shape[-1]
    of_components = pairs * q1.modes * q2.modes
    if q1.device.type != "cpu":
        return Way.GPU_TILE_POLYNOMIALS if groups == 1 and of_components >= GPU_PAIRS_OF_GRID else Way.GPU_TILES
    if groups > 1 and pairs <= SMALL_GROUP and groups * of_components <= MOST_IN_TABLE:
        return Way.TABLE
    learned = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in kernel.parameters())
    plain = q1.dtype == q2.dtype == torch.float32 and q1.modes == q2.modes == 1 and not learned
    return Way.TILE_POLYNOMIALS if plain and pairs >= TILE_PAIRS else Way.TILES


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


def count_terms(kernel: ZonalKernel, dim: int, dtype: torch.dtype, kappa1: Tensor, kappa2: Tensor) -> int:
    """Terms for the posteriors of the batch on a CPU; for any posterior on a GPU, where reading kappa would wait."""
    tolerance = left_out(kernel, dtype)
    if kappa1.device.type != "cpu" or kappa1.numel() == 0 or kappa2.numel() == 0:
        return kernel.terms(dim, tolerance)
    # A NaN kappa makes its own pairs NaN for any number of terms, so it is left out of the maximum.
    sharpest = (k.detach().nan_to_num(0.0, math.inf).max().item() for k in (kappa1, kappa2))
    return kernel.terms(dim, tolerance, *sharpest)


def left_out(kernel: ZonalKernel, dtype: torch.dtype) -> float:
    """How much of the series may be left out, relative to the largest r."""
    # Only the vMF kernel has a tail. For others, left-out terms would show where r is close to its floor.
    return _TOLERANCE[dtype if isinstance(kernel, VMFKernel) else torch.float64]
