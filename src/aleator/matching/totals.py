r"""The sum of expected positivity over the negatives of each anchor, in linear memory:

    total_i = log sum_j r(x_i, x_j).

This is what the exact loss needs of the table of pairs (losses/similarity.py). The table has N x M entries; here it is
made tile by tile and never stored. The forward pass keeps one number for each anchor. The backward pass makes the tiles
again, now with slopes. So memory is linear in N + M, as it is for attention without its table (Dao et al. 2022).

On a CPU, threads share the tiles (tiles.py). If the negatives are the other anchors, r is symmetric, and each pair is
computed once for both of its anchors. On a GPU, one kernel does each pass (fused/totals.py).

**Weights.** A row may count with a weight: total_i = log w_i + log sum_j w_j r(x_i, x_j). r is linear in both
posteriors, so the components of mixtures are rows with their weights, and the total of a mixture is the logsumexp of
those of its components (positivity.py). A weight multiplies the length of its row. A pair of rows adds its share to the
gradients of both log weights.

**Terms.** A tile sums as many terms as its own posteriors need. With rows of length one (series.py), the terms from T
on add up to at most rest_T rest'_T, where rest_T^2 = sum_{n >= T} w_n^2. A tile takes the smallest T at which this is
below the tolerance times the largest term that all its pairs have. This needs no look at kappa from the host.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from aleator.fused import fused_kernels
from aleator.matching.fused_totals import fused_log_totals
from aleator.matching.series import RowWeights, row_weights
from aleator.matching.tiles import (
    Side,
    TailScale,
    TileValues,
    tail_scale,
    tile_gradients,
    tile_values,
)

# Rows and columns of a tile. Smaller tiles have more calls, larger ones leave the cache.
TILE = 256
# The sums are not taken in logarithms on a CPU, so r must not underflow: its exponent is at least -2 kappa_pos.
STEEPEST = 150.0

_Tile = tuple[slice, slice, int]  # rows, columns, terms
Result = TypeVar("Result")


def log_totals(
    mu1: Tensor,
    kappa1: Tensor,
    mu2: Tensor | None,
    kappa2: Tensor | None,
    log_lam: Tensor,
    sign: Tensor,
    dim: int,
    kappa_pos: float | Tensor | None,
    tolerance: float,
    log_weights1: Tensor | None = None,
    log_weights2: Tensor | None = None,
    modes: int = 1,
) -> Tensor:
    """log w_i + log sum_j w_j r(x_i, x_j) with gradients in all tensors but `sign`.

    Args:
        mu1: Directions of the anchors, shape (G, N, D).
        kappa1: Their concentrations, shape (G, N), float64.
        mu2: Directions of the negatives of each group, shape (G, M, D). None: the other anchors of the group.
        kappa2: Their concentrations, shape (G, M), float64, or None.
        log_lam: log |lambda_n|, shape (T,).
        sign: Signs of lambda_n, shape (T,).
        dim: Dimension D of the embedding.
        kappa_pos: For a vMF kernel its concentration, which gives the tail (series.py). None for any other kernel.
        tolerance: How much of the series a tile may leave out, relative to the largest r.
        log_weights1: log w of the anchors, shape (G, N), finite. None: they do not count with weights.
        log_weights2: log w of the negatives, shape (G, M). None if the negatives are the other anchors.
        modes: So many consecutive anchors are one, and are not negatives of each other; a divisor of N.

    Returns:
        Totals, shape (G, N), float64.
    """
    fused = fused_kernels(mu1) and mu1.dtype == torch.float32 and not log_lam.requires_grad
    function = fused_log_totals if fused else plain_log_totals
    kernel = (log_lam, sign, dim, kappa_pos, tolerance)
    return function(mu1, kappa1, mu2, kappa2, *kernel, log_weights1, log_weights2, modes)


def plain_log_totals(*arguments: Any) -> Tensor:
    """`log_totals` in plain torch."""
    return _LogTotals.apply(*arguments)


class _LogTotals(torch.autograd.Function):
    """Forward: the sums. Backward: the tiles again, with slopes."""

    @staticmethod
    def forward(ctx, mu1, kappa1, mu2, kappa2, log_lam, sign, dim, kappa_pos, tolerance, weights1, weights2, modes):
        first = row_weights(dim, kappa1, log_lam).weighted(weights1)
        second = first.signed(sign)
        if kappa2 is not None:
            second = row_weights(dim, kappa2, log_lam, sign).weighted(weights2)
        tail = None if kappa_pos is None else tail_scale(dim, float(log_lam[1].exp()), float(kappa_pos))
        groups = [
            _Group(
                dim,
                _side(mu1[g], first.group(g)),
                _side((mu1 if mu2 is None else mu2)[g], second.group(g)),
                modes if mu2 is None else 0,
                tail,
                tolerance,
            )
            for g in range(len(mu1))
        ]
        sums = torch.stack([group.sums() for group in groups])
        ctx.groups, ctx.sides, ctx.dtype = groups, (first, second), mu1.dtype
        ctx.weights = weights1, weights2
        ctx.save_for_backward(sums)
        return sums.log() + first.log_length + second.log_length.amax(1, keepdim=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        (sums,) = ctx.saved_tensors
        weighted = any(weights is not None for weights in ctx.weights)
        parts = [group.gradients(g, weighted) for group, g in zip(ctx.groups, grad / sums, strict=True)]
        first, second = ctx.sides
        mu1, terms1, mean1, shares1, mu2, terms2, mean2, shares2 = (
            torch.stack([getattr(part, name) for part in parts])
            for name in ("mu1", "terms1", "mean1", "shares1", "mu2", "terms2", "mean2", "shares2")
        )
        kappa1 = (first.slopes * terms1.mT).sum(-1) + first.mean_length_slope * mean1
        kappa2 = (second.slopes * terms2.mT).sum(-1) + second.mean_length_slope * mean2
        log_lam = kappa_pos = None
        if ctx.needs_input_grad[4]:
            log_lam = (first.weights * terms1.mT).sum((0, 1))
            log_lam[1] += sum(part.log_lam1 for part in parts)
        if ctx.needs_input_grad[7]:
            kappa_pos = grad.new_tensor(sum(part.kappa_pos for part in parts))
        of_kernel = log_lam, None, None, kappa_pos, None
        own = ctx.groups[0].own
        of_weights = [
            None if weights is None else shares.to(weights.dtype)
            for weights, shares in zip(ctx.weights, (shares1 + shares2 if own else shares1, shares2), strict=True)
        ]
        if own:  # both sides are the anchors
            return (mu1 + mu2).to(ctx.dtype), kappa1 + kappa2, None, None, *of_kernel, *of_weights, None
        return mu1.to(ctx.dtype), kappa1, mu2.to(ctx.dtype), kappa2, *of_kernel, *of_weights, None


@dataclass
class _Gradients:
    """Gradients of one group: N anchors, M negatives, T terms."""

    mu1: Tensor  # (N, D)
    terms1: Tensor  # (T, N): with respect to the row weights
    mean1: Tensor  # (N,): with respect to A_1, through the tail
    shares1: Tensor  # (N,): with respect to the log weight
    mu2: Tensor
    terms2: Tensor
    mean2: Tensor
    shares2: Tensor
    kappa_pos: float = 0.0
    log_lam1: float = 0.0

    def __add__(self, other: "_Gradients") -> "_Gradients":
        return _Gradients(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class _Group:
    """Anchors that share their negatives."""

    def __init__(self, dim: int, first: Side, second: Side, modes: int, tail: TailScale | None, tolerance: float):
        """`modes`: so many consecutive anchors are one, if the negatives are the other anchors; else 0."""
        self.dim, self.first, self.second, self.modes, self.tail = dim, first, second, modes, tail
        self.own = modes > 0
        self.lengths = torch.exp(second.log_length - second.log_length.max())
        self.tiles = self._tiles(tolerance)

    def sums(self) -> Tensor:
        """sum_j r_ij, divided by the length of row i and by the largest length of the second side; (N,)."""

        def work(tiles: Iterator[_Tile]) -> Tensor:
            sums = torch.zeros_like(self.first.log_length)
            for rows, columns, terms in tiles:
                values = self._values(rows, columns, terms, False).values
                sums[rows] += values @ self.lengths[columns]
                if self._twice(rows, columns):
                    sums[columns] += values.mT @ self.lengths[rows]
            return sums

        return sum(_in_threads(work, self.tiles), start=torch.zeros_like(self.first.log_length))

    def gradients(self, weight: Tensor, weighted: bool) -> _Gradients:
        """Gradients of the totals, summed with the weights (N,), each divided by the sum of its anchor.

        `weighted`: also those in the log weights of the rows.
        """

        def work(tiles: Iterator[_Tile]) -> _Gradients:
            first, second, lengths = self.first, self.second, self.lengths
            sides = [(x.mu, x.weights, x.mean_length, x.log_length) for x in (first, second)]
            out = _Gradients(*map(torch.zeros_like, sum(sides, start=())))  # type: ignore[arg-type]
            for rows, columns, terms in tiles:
                tile = self._values(rows, columns, terms, True)
                share = weight[rows, None] * lengths[columns]
                if self._twice(rows, columns):
                    share.addcmul_(lengths[rows, None], weight[columns])
                one, other = first.part(rows), second.part(columns)
                part = tile_gradients(self.dim, one, other, terms, self.tail, tile, share.mul_(tile.values))
                if weighted:
                    out.shares1[rows] += share.sum(1)
                    out.shares2[columns] += share.sum(0)
                out.mu1[rows] += part.cosine @ other.mu
                out.mu2[columns] += part.cosine.mT @ one.mu
                out.terms1[:terms, rows] += part.terms1
                out.terms2[:terms, columns] += part.terms2
                if part.mean1 is not None and part.mean2 is not None:
                    out.mean1[rows] += part.mean1
                    out.mean2[columns] += part.mean2
                    out.kappa_pos += part.kappa_pos
                    out.log_lam1 += part.log_lam1
            return out

        first, *others = _in_threads(work, self.tiles)
        return sum(others, start=first)

    def _values(self, rows: slice, columns: slice, terms: int, slopes: bool) -> TileValues:
        sides = self.first.part(rows), self.second.part(columns)
        tile = tile_values(self.dim, *sides, terms, self.tail, slopes)
        if self.own and rows == columns:
            anchor = torch.arange(len(tile.values)) // self.modes  # a tile starts with a new anchor
            tile.values.masked_fill_(anchor[:, None] == anchor, 0.0)  # an anchor is not its own negative
        return tile

    def _twice(self, rows: slice, columns: slice) -> bool:
        """Whether a tile stands for its mirror image too: r is symmetric, and only one of the two is listed."""
        return self.own and rows != columns

    def _tiles(self, tolerance: float) -> list[_Tile]:
        """All tiles and their numbers of terms. Of two mirror images only one."""
        modes = max(1, self.modes)
        size = max(TILE // modes, 1) * modes
        rows, columns = (_blocks(side.weights, size) for side in (self.first, self.second))
        tiles = []
        for i, (row, rest1, least1) in enumerate(rows):
            for column, rest2, least2 in columns[i if self.own else 0 :]:
                terms = max(2, int((rest1 * rest2 > tolerance * (least1 * least2).max()).sum()))
                tiles.append((row, column, terms))
        return tiles


def _side(mu: Tensor, rows: RowWeights) -> Side:
    return Side(mu.detach().double(), rows.weights.mT.contiguous(), rows.log_length, rows.mean_length)


def _blocks(weights: Tensor, tile: int) -> list[tuple[slice, Tensor, Tensor]]:
    """For each block of `tile` rows of (T, N): the most that is left from each term on, and the least |w_n|; (T,)."""
    blocks = []
    for start in range(0, weights.shape[1], tile):
        place = slice(start, min(start + tile, weights.shape[1]))
        size = weights[:, place].abs().nan_to_num(0.0)
        rest = size.square().flip(0).cumsum(0).flip(0).amax(1).sqrt()
        blocks.append((place, rest, size.amin(1)))
    return blocks


def _in_threads(work: Callable[[Iterator[_Tile]], Result], tiles: list[_Tile]) -> list[Result]:
    """What each thread makes of the tiles that it takes, one after the other."""
    threads = min(torch.get_num_threads(), len(tiles))
    queue = iter(tiles)  # taking the next item of a list's iterator is atomic

    def run() -> Result:
        torch.get_num_threads()  # the first call in a thread sets the number of its helpers, which would undo the limit
        with torch.no_grad(), _helpers().limit(limits=1):
            return work(queue)

    if threads == 1:
        with torch.no_grad():
            return [work(queue)]
    with ThreadPoolExecutor(threads, thread_name_prefix="tiles") as pool:
        return [future.result() for future in [pool.submit(run) for _ in range(threads)]]


@lru_cache(maxsize=1)
def _helpers() -> ThreadpoolController:
    """How many helper threads a thread uses for one operation. Helpers of several threads would wait for each other."""
    return ThreadpoolController().select(user_api="openmp")
