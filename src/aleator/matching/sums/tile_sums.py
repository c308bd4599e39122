r"""Sums over the tiles of a table of pairs, and their gradients, on a CPU. Threads share the tiles.

If the negatives are the other anchors, r is symmetric, and each pair is computed once for both of its anchors.

**Terms.** A tile sums as many terms as its own posteriors need. With rows of length one (series.py), the terms from T
on add up to at most rest_T rest'_T, where rest_T^2 = sum_{n >= T} w_n^2. A tile takes the smallest T at which this is
below the tolerance times the largest term that all its pairs have. This needs no look at kappa from the host.
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

from aleator.matching.series import RowWeights
from aleator.matching.sums.tiles import Side, TailScale, TileValues, tile_gradients, tile_values

# Rows and columns of a tile. Smaller tiles have more calls, larger ones leave the cache.
TILE = 256

Tile = tuple[slice, slice, int]  # rows, columns, terms
Item = TypeVar("Item")
Result = TypeVar("Result")


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
        dim: int,
        first: Side,
        second: Side,
        modes: int,
        tail: TailScale | None,
        tolerance: float,
        some: list[tuple[slice, slice]] | None = None,
    ):
        """The sides of the pairs, and which tiles are summed.

        `modes`: so many consecutive anchors are one, if the negatives are the other anchors; else 0. `some`: rows and
        columns of the only tiles that are summed, of two mirror images only one. Default: tiles that cover all pairs.
        """
        self.dim, self.first, self.second, self.modes, self.tail = dim, first, second, modes, tail
        self.own = modes > 0
        self.lengths = torch.exp(second.log_length - second.log_length.max())
        self.tiles = self._with_terms(self._all_tiles() if some is None else some, tolerance)

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


def side_of(mu: Tensor, rows: RowWeights) -> Side:
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
