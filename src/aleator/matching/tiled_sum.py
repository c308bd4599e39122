r"""Sums of expected positivity over the negatives of each anchor, in linear memory, on a CPU.

For each anchor

    total_i = log sum_j r(x_i, x_j).

This is what the exact loss needs of the table of pairs (losses/similarity.py). The table has N x M entries; here it is
made tile by tile and never stored. The forward pass keeps one number for each anchor. The backward pass makes the tiles
again, now with slopes. So memory is linear in N + M, as it is for attention without its table (Dao et al. 2022).
Threads share the tiles. If the negatives are the other anchors, r is symmetric, and each pair is computed once for both
of its anchors.

A tile compares some rows of one side with some rows of the other. The formulas are those of series.py.

**Few passes over the tile.** The polynomials are rescaled, P_n = h_n p_n, so that their recurrence is

    p_{n+1} = m_n c p_n + p_{n-1},

which is one `addcmul_` in place. Clenshaw's rule then sums the series with two of them for each term:

    y_n = h_n w_n w'_n + m_n c y_{n+1} + y_{n+2},     s = y_0.

**Slopes in kappa.** With B_ij the gradient of the loss with respect to s_ij, the gradient of row i is

    sum_n d_in M_in,     M_in = sum_j B_ij w'_jn P_n(c_ij).

B P_n follows the recurrence of P_n, so M takes one pass and one matrix-vector product for each term and side. M also
gives the gradient of a learned kernel: sum_i w_in M_in is that of log lambda_n.

**Terms.** A tile sums as many terms as its own posteriors need. With rows of length one (series.py), the terms from T
on add up to at most rest_T rest'_T, where rest_T^2 = sum_{n >= T} w_n^2. A tile takes the smallest T at which this is
below the tolerance times the largest term that all its pairs have. This needs no look at kappa from the host.

**Weights.** A row may count with a weight: total_i = log w_i + log sum_j w_j r(x_i, x_j). r is linear in both
posteriors, so the components of mixtures are rows with their weights, and the total of a mixture is the logsumexp of
those of its components (positivity.py). A weight multiplies the length of its row. A pair of rows adds its share to the
gradients of both log weights.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from aleator.matching.series import (
    DEPTH,
    FLOOR,
    TILT,
    KernelSeries,
    Rows,
    RowWeights,
    TailScale,
    inverse_mean_length_slope,
    row_weights,
)
from aleator.special import recurrence

# Rows and columns of a tile. Smaller tiles have more calls, larger ones leave the cache.
TILE = 256

Tile = tuple[slice, slice, int]  # rows, columns, terms
Item = TypeVar("Item")
Result = TypeVar("Result")


class TiledTotals:
    """The sums over negatives of G groups of anchors."""

    def __init__(self, kernel: KernelSeries, first: Rows, second: Rows | None):
        """Anchors and negatives. None: the other anchors of the group."""
        self.own, self.learned = second is None, kernel.log_lam.requires_grad
        self.weighted = any(side is not None and side.log_weights is not None for side in (first, second))
        self.first = row_weights(kernel, first.kappa).weighted(first.log_weights)
        self.second = self.first.signed(kernel.sign)
        if second is not None:
            self.second = row_weights(kernel, second.kappa, signed=True).weighted(second.log_weights)
        others, modes = first if second is None else second, first.modes if second is None else 0
        self.groups = [
            Group(kernel, side_of(mu1, self.first.group(g)), side_of(mu2, self.second.group(g)), modes)
            for g, (mu1, mu2) in enumerate(zip(first.mu, others.mu, strict=True))
        ]

    def totals(self) -> Tensor:
        """(G, N), float64."""
        self.sums = torch.stack([group.sums() for group in self.groups])
        return self.sums.log() + self.first.log_length + self.second.log_length.amax(1, keepdim=True)

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """In mu, kappa and log weights of both sides, in log |lambda_n| and in kappa_pos."""
        parts = [group.gradients(g, self.weighted) for group, g in zip(self.groups, grad / self.sums, strict=True)]
        mu1, terms1, mean1, shares1, mu2, terms2, mean2, shares2 = (
            torch.stack([getattr(part, name) for part in parts])
            for name in ("mu1", "terms1", "mean1", "shares1", "mu2", "terms2", "mean2", "shares2")
        )
        kappa1, kappa2 = kappa_gradient(self.first, terms1, mean1), kappa_gradient(self.second, terms2, mean2)
        of_kernel: tuple[Tensor | None, ...] = None, None
        if self.learned:
            log_lam = (self.first.weights * terms1.mT).sum((0, 1))
            log_lam[1] += sum(part.log_lam1 for part in parts)
            of_kernel = log_lam, grad.new_tensor(sum(part.kappa_pos for part in parts))
        if self.own:  # both sides are the anchors
            return [mu1 + mu2, kappa1 + kappa2, shares1 + shares2, None, None, None, *of_kernel]
        return [mu1, kappa1, shares1, mu2, kappa2, shares2, *of_kernel]


@dataclass
class Gradients:
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

    def __add__(self, other: "Gradients") -> "Gradients":
        return Gradients(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Group:
    """Anchors that share their negatives."""

    def __init__(
        self,
        kernel: KernelSeries,
        first: "Side",
        second: "Side",
        modes: int,
        some: list[tuple[slice, slice]] | None = None,
    ):
        """The sides of the pairs, and which tiles are summed.

        `modes`: so many consecutive anchors are one, if the negatives are the other anchors; else 0. `some`: rows and
        columns of the only tiles that are summed, of two mirror images only one. Default: tiles that cover all pairs.
        """
        self.dim, self.tail, self.first, self.second, self.modes = kernel.dim, kernel.tail, first, second, modes
        self.own = modes > 0
        self.lengths = torch.exp(second.log_length - second.log_length.max())
        self.tiles = self._with_terms(self._all_tiles() if some is None else some, kernel.tolerance)

    def sums(self) -> Tensor:
        """sum_j r_ij, divided by the length of row i and by the largest length of the second side; (N,)."""

        def work(tiles: Iterator[Tile]) -> Tensor:
            sums = torch.zeros_like(self.first.log_length)
            for rows, columns, terms in tiles:
                values = self._values(rows, columns, terms, False).values
                sums[rows] += values @ self.lengths[columns]
                if self._twice(rows, columns):
                    sums[columns] += values.mT @ self.lengths[rows]
            return sums

        return sum(in_threads(work, self.tiles), start=torch.zeros_like(self.first.log_length))

    def gradients(self, weight: Tensor, weighted: bool) -> Gradients:
        """Gradients of the totals, summed with the weights (N,), each divided by the sum of its anchor.

        `weighted`: also those in the log weights of the rows.
        """

        def work(tiles: Iterator[Tile]) -> Gradients:
            first, second, lengths = self.first, self.second, self.lengths
            sides = [(x.mu, x.weights, x.mean_length, x.log_length) for x in (first, second)]
            out = Gradients(*map(torch.zeros_like, sum(sides, start=())))  # type: ignore[arg-type]
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

        first, *others = in_threads(work, self.tiles)
        return sum(others, start=first)

    def _values(self, rows: slice, columns: slice, terms: int, slopes: bool) -> "TileValues":
        sides = self.first.part(rows), self.second.part(columns)
        tile = tile_values(self.dim, *sides, terms, self.tail, slopes)
        if self.own and rows == columns:
            anchor = torch.arange(len(tile.values)) // self.modes  # a tile starts with a new anchor
            tile.values.masked_fill_(anchor[:, None] == anchor, 0.0)  # an anchor is not its own negative
        return tile

    def _twice(self, rows: slice, columns: slice) -> bool:
        """Whether a tile stands for its mirror image too: r is symmetric, and only one of the two is listed."""
        return self.own and rows != columns

    def _all_tiles(self) -> list[tuple[slice, slice]]:
        """Rows and columns of tiles that cover all pairs. Of two mirror images only one."""
        modes = max(1, self.modes)
        size = max(TILE // modes, 1) * modes
        rows, columns = (blocks_of(len(side.mu), size) for side in (self.first, self.second))
        return [(row, column) for i, row in enumerate(rows) for column in columns[i if self.own else 0 :]]

    def _with_terms(self, tiles: list[tuple[slice, slice]], tolerance: float) -> list[Tile]:
        """The tiles with their numbers of terms."""
        rows, columns = (lru_cache(maxsize=None)(partial(_sizes, side.weights)) for side in (self.first, self.second))
        found = []
        for row, column in tiles:
            (rest1, least1), (rest2, least2) = rows(row.start, row.stop), columns(column.start, column.stop)
            terms = max(2, int((rest1 * rest2 > tolerance * (least1 * least2).max()).sum()))
            found.append((row, column, terms))
        return found


def side_of(mu: Tensor, rows: RowWeights) -> "Side":
    return Side(mu.detach().double(), rows.weights.mT.contiguous(), rows.log_length, rows.mean_length)


def kappa_gradient(rows: RowWeights, terms: Tensor, mean: Tensor) -> Tensor:
    """Gradient in kappa (..., N) from those in the row weights (..., T, N) and in A_1 (..., N)."""
    return (rows.slopes * terms.mT).sum(-1) + rows.mean_length_slope * mean


def blocks_of(count: int, size: int) -> list[slice]:
    """Consecutive slices of `size`, the last of which may be shorter."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _sizes(weights: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Of some rows of (T, N): the most that is left from each term on, and the least |w_n|; (T,) each."""
    size = weights[:, start:stop].abs().nan_to_num(0.0)
    return size.square().flip(0).cumsum(0).flip(0).amax(1).sqrt(), size.amin(1)


def in_threads(work: Callable[[Iterator[Item]], Result], tiles: list[Item]) -> list[Result]:
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
    pool = _pool(threads, os.getpid())
    return [future.result() for future in [pool.submit(run) for _ in range(threads)]]


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, and keep their memory. A forked process does not inherit them, and makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="tiles")


@lru_cache(maxsize=1)
def _helpers() -> ThreadpoolController:
    """How many helper threads a thread uses for one operation. Helpers of several threads would wait for each other."""
    return ThreadpoolController().select(user_api="openmp")


@dataclass(frozen=True)
class Side:
    """Posteriors of one side of the tiles. N posteriors, T terms; everything in float64."""

    mu: Tensor  # (N, D)
    weights: Tensor  # (T, N): w_n, with the signs of lambda_n on the second side
    log_length: Tensor  # (N,)
    mean_length: Tensor  # (N,): A_1

    def part(self, rows: slice) -> "Side":
        return Side(self.mu[rows], self.weights[:, rows], self.log_length[rows], self.mean_length[rows])


@dataclass(frozen=True)
class TileValues:
    """r of the pairs of a tile without the lengths of the rows, and what its slopes are made of."""

    values: Tensor  # (R, C): v, with r = v exp(log_length + log_length')
    peak: Tensor
    s: Tensor
    s_c: Tensor
    square: Tensor  # (FLOOR peak)^2
    fade: Tensor
    cosine: Tensor
    inside: Tensor  # where the series was summed
    steepness: Tensor | None  # of the tail, if any pair of the tile is in it


@dataclass
class TileGradients:
    """What a tile adds to the gradients of its two sides."""

    cosine: Tensor  # (R, C)
    terms1: Tensor  # (T, R): with respect to the weights of the first side
    terms2: Tensor  # (T, C): with respect to the weights of the second side
    mean1: Tensor | None = None  # (R,): with respect to A_1 of the first side, through the tail
    mean2: Tensor | None = None
    kappa_pos: float = 0.0
    log_lam1: float = 0.0


@lru_cache(maxsize=256)
def rescaled_recurrence(dim: int, terms: int) -> tuple[tuple[float, ...], Tensor]:
    """m_n and h_n (terms, 1) with P_n = h_n p_n and p_{n+1} = m_n c p_n + p_{n-1}."""
    h = [1.0, 1.0]
    for n in range(1, terms):
        h.append(-recurrence(dim, n)[1] * h[n - 1])
    m = [recurrence(dim, n)[0] * h[n] / h[n + 1] for n in range(terms)]
    return tuple(m), torch.tensor(h[:terms], dtype=torch.float64)[:, None]


def tile_values(dim: int, first: Side, second: Side, terms: int, tail: TailScale | None, slopes: bool) -> TileValues:
    """r of a tile."""
    m, h = rescaled_recurrence(dim, terms)
    w1, w2 = first.weights[:terms], second.weights[:terms]
    cosine = (first.mu @ second.mu.mT).clamp_(-1, 1)
    peak = w1.mT @ w2
    inside, steep = cosine, None
    if tail is not None:
        steep = tail.steepness(dim, first.mean_length[:, None], second.mean_length)
        inside = torch.maximum(cosine, 1 - DEPTH / steep)
        if torch.equal(inside, cosine):
            steep = None
    s, s_c = _clenshaw(inside, w1, w2 * h, m, slopes)
    square = (FLOOR * peak).square_()
    s2 = s.square()
    fade = square / (square + s2)
    exponent = TILT * fade * (inside - 1)
    if steep is not None:
        exponent += steep * (cosine - inside)
    values = s2.add_(square, alpha=4).sqrt_().add_(s).mul_(0.5).mul_(exponent.exp_())
    return TileValues(values, peak, s, s_c, square, fade, cosine, inside, steep)


def tile_gradients(
    dim: int,
    first: Side,
    second: Side,
    terms: int,
    tail: TailScale | None,
    tile: TileValues,
    share: Tensor,
) -> TileGradients:
    """Gradients of sum_ij share_ij log r_ij, with the shares held fixed."""
    m, h = rescaled_recurrence(dim, terms)
    w1, w2 = first.weights[:terms], second.weights[:terms]
    ds = 1 / (tile.s.square() + 4 * tile.square).sqrt_()  # d log r / ds
    ds -= 2 * TILT * tile.fade.square() * tile.s / tile.square * (tile.inside - 1)
    slope = ds * tile.s_c + TILT * tile.fade
    by_sum = share * ds
    by_peak = share * (1 - ds * tile.s) / tile.peak
    terms1, terms2 = _term_totals(tile.inside, by_sum, w1 * h, w2 * h, m)
    terms1 += w2 @ by_peak.mT
    terms2 += w1 @ by_peak
    result = TileGradients(slope, terms1, terms2)
    if tail is not None and tile.steepness is not None:
        _add_tail(dim, first, second, tail, tile, share, result)
    result.cosine = share * result.cosine
    return result


def _add_tail(
    dim: int, first: Side, second: Side, tail: TailScale, tile: TileValues, share: Tensor, out: TileGradients
) -> None:
    """The gradients through the tail. A steeper tail turns about its start, and its start moves."""
    steepness: Tensor = tile.steepness  # type: ignore[assignment]
    beyond = tile.cosine - tile.inside
    in_tail = beyond < 0
    turn = torch.where(in_tail, (out.cosine - steepness) * DEPTH / steepness.square() + beyond, 0.0).mul_(share)
    out.cosine = torch.where(in_tail, steepness, out.cosine)
    R = tail.mean_length(first.mean_length[:, None], second.mean_length)
    by_length = turn * (tail.scale * inverse_mean_length_slope(dim, R))  # with respect to R
    out.mean1 = (by_length @ second.mean_length).mul_(tail.lam)
    out.mean2 = (by_length.mT @ first.mean_length).mul_(tail.lam)
    by_steepness = float((turn * steepness).sum())
    out.kappa_pos = by_steepness / tail.kappa_pos
    out.log_lam1 = float((by_length * R).sum()) - by_steepness * tail.own_turn


def _clenshaw(cosine: Tensor, w1: Tensor, w2: Tensor, m: tuple[float, ...], slopes: bool) -> tuple[Tensor, Tensor]:
    """s and ds/dc. Without `slopes` the second is undefined."""
    y, after = w1[-1][:, None] * w2[-1], torch.zeros_like(cosine)
    dy, d_after = (torch.zeros_like(cosine) for _ in range(2)) if slopes else (y, after)
    for n in range(len(w1) - 2, -1, -1):
        if slopes:
            d_after.addcmul_(cosine, dy, value=m[n]).add_(y, alpha=m[n])
            dy, d_after = d_after, dy
        after.addcmul_(cosine, y, value=m[n]).addcmul_(w1[n][:, None], w2[n])
        y, after = after, y
    return y, dy


def _term_totals(cosine: Tensor, factor: Tensor, w1: Tensor, w2: Tensor, m: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """sum_j factor_ij w'_jn p_n(c_ij) for every n and row i, and the same for the other side; (T, R) and (T, C)."""
    terms = len(w1)
    out1, out2 = factor.new_empty(terms, factor.shape[0]), factor.new_empty(terms, factor.shape[1])
    now, before = factor.clone(), torch.zeros_like(factor)
    for n in range(terms):
        torch.mv(now, w2[n], out=out1[n])
        torch.mv(now.mT, w1[n], out=out2[n])
        if n < terms - 1:
            before.addcmul_(cosine, now, value=m[n])
            now, before = before, now
    return out1, out2
