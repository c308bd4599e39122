r"""log r of a table of pairs and its slopes with polynomials, in float32, for training with vMF kernels on a CPU.

Training compares the same kinds of posteriors in every step. So the classes of kappa do not follow the batch, as they
do for sums over very many pairs (interpolated_sum.py): kappa/(kappa + s), from 0 to 1, is cut into CLASSES of equal
width once and for all. The polynomials of two classes (interpolant.py) are made when a pair of theirs is first met, and
kept. They are the same in whatever order classes are met.

The coefficients of T_k(y) for rows of one class and columns of another are products of matrices, with z and z' the
places of kappa and kappa' in their classes:

    V_k = U_k Z,     U_ikb = sum_a T_a(z_i) G_abk,     Z_bj = T_b(z'_j).

They are put together for the whole table, so that Clenshaw's rule takes it in one pass. Slopes in kappa take those of
T_a or T_b instead. Rows that meet a class for which polynomials are not good enough are left to the series.
"""

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.matching.interpolant import (
    COSINE_NODES,
    Put,
    chebyshev_sum,
    chebyshev_sum_and_slope,
    chebyshev_values,
    classes_between,
    place_in_class,
    polynomials,
    squeezed,
    turn_of_tail,
)
from aleator.matching.kernels import VMFKernel
from aleator.matching.series import DEPTH, KernelSeries, positivity_table, row_weights
from aleator.matching.tiled_sum import in_threads
from aleator.matching.zonal import ZonalKernel

CLASSES = 24
NODES = 6  # in kappa and in kappa'
_TOLERANCE = 5e-6  # of log r, absolute: what float32 holds of a pair that is far apart
_BLOCK = 2**15  # pairs whose coefficients are held at once
_GRID_TOLERANCE = 1e-17  # what the series on the grid may leave out; it goes deeper than that of a pair


def interpolated_log_r(cosine: Tensor, kappa1: Tensor, kappa2: Tensor, kernel: ZonalKernel, dim: int) -> Tensor:
    """log r of a table with gradients in the cosines and the kappas.

    Args:
        cosine: mu.mu', shape (N, M), float64.
        kappa1: Concentrations of the rows, shape (N, 1), float64.
        kappa2: Concentrations of the columns, shape (1, M), float64.
        kernel: A fixed vMF kernel.
        dim: Dimension D of the embedding.

    Returns:
        log r, shape (N, M), float32.
    """

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        log_r, *slopes = _table(_lattice_of(kernel, dim), cosine, kappa1[:, 0], kappa2[0])

        def gradients(grad: Tensor, by_cosine: Tensor, by_kappa1: Tensor, by_kappa2: Tensor) -> list[Tensor | None]:
            return [
                (grad * by_cosine).double() if needed[0] else None,
                (grad * by_kappa1).sum(1, keepdim=True, dtype=torch.float64) if needed[1] else None,
                (grad * by_kappa2).sum(0, keepdim=True, dtype=torch.float64) if needed[2] else None,
            ]

        return log_r, tuple(slopes), gradients

    return with_gradient(compute, cosine, kappa1, kappa2)


def degree_of_table(kernel: ZonalKernel, dim: int, kappa1: Tensor, kappa2: Tensor) -> int:
    """Highest degree in the cosine of the polynomials of a table of concentrations of any shape."""
    lattice = _lattice_of(kernel, dim)
    rows, columns = (lattice.classes(kappa).unique() for kappa in (kappa1, kappa2))
    lattice.learn(rows, columns)
    return int(lattice.degree[rows][:, columns].max())


class _Side(NamedTuple):
    """N posteriors of one side in the order of their classes."""

    order: Tensor  # (N,): their numbers in the table
    classes: Tensor  # (N,): numbers of their classes, ascending
    met: Tensor  # (P,): classes that occur
    sizes: list[int]  # how many posteriors each of these has
    values: Tensor  # (N, NODES) float64: T_a(z)
    slopes: Tensor  # (N, NODES) float64: their slopes in kappa

    @classmethod
    def of(cls, order: Tensor, classes: Tensor, values: Tensor, slopes: Tensor) -> "_Side":
        met, sizes = classes.unique_consecutive(return_counts=True)
        return cls(order, classes, met, sizes.tolist(), values, slopes)

    def part(self, chosen: Tensor) -> "_Side":
        """Some of them, ascending."""
        return _Side.of(*(x[chosen] for x in (self.order, self.classes, self.values, self.slopes)))


class _Lattice:
    """The polynomials of a kernel in one dimension, for all pairs of classes that were met."""

    def __init__(self, kappa_pos: float, dim: int):
        self.dim, kernel = dim, VMFKernel(kappa_pos)
        log_lam, sign = kernel.series(dim, kernel.terms(dim, _GRID_TOLERANCE), torch.device("cpu"))
        self.kernel = KernelSeries(dim, log_lam, sign, kappa_pos)
        self.edges = torch.linspace(0, 1, CLASSES + 1, dtype=torch.float64)
        shape = (CLASSES, CLASSES)
        # G (p, a, q, k, b); after the last k the steepness of the tail
        self.coefficients = torch.zeros(CLASSES, NODES, CLASSES, COSINE_NODES + 1, NODES, dtype=torch.float64)
        self.width, self.degree = torch.ones(shape), torch.zeros(shape, dtype=torch.int32)
        self.known, self.usable = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        self.lock = threading.Lock()

    def classes(self, kappa: Tensor) -> Tensor:
        """Numbers of the classes of concentrations (N,)."""
        return (squeezed(self.dim, kappa.detach()).nan_to_num(0.0) * CLASSES).long().clamp_(max=CLASSES - 1)

    def side(self, kappa: Tensor) -> _Side:
        """The side of concentrations (N,)."""
        number, order = self.classes(kappa).sort()
        z, slope = place_in_class(self.dim, kappa[order], (number + 0.5) / CLASSES, 0.5 / CLASSES)
        return _Side.of(order, number, *chebyshev_values(z, slope, NODES))

    def learn(self, rows: Tensor, columns: Tensor) -> None:
        """Make the polynomials of some classes (P,) with some classes (Q,), as far as they are not known."""
        with self.lock:
            new = rows[~self.known[rows][:, columns].all(1)]
            if not len(new):
                return
            first, second = (classes_between(self.dim, self.edges[x], self.edges[x + 1], NODES) for x in (new, columns))
            found = polynomials(self.kernel, first, second, False, _TOLERANCE)
            table = torch.cat([found.coefficients[:COSINE_NODES], found.coefficients[-1:]])
            beyond = torch.arange(COSINE_NODES + 1)[:, None, None] >= found.degree
            beyond[-1] = False
            table = table[:, :, :NODES, :, :NODES].masked_fill(beyond[:, :, None, :, None], 0.0)
            place = new[:, None], columns
            self.coefficients[new[:, None], :, columns] = table.permute(1, 3, 2, 0, 4)
            self.width[place], self.degree[place] = found.width.float(), found.degree
            self.usable[place], self.known[place] = found.usable.bool(), True

    def series(self, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> tuple[Tensor, ...]:
        """log r by the series, and its slopes in the cosine and both kappas."""
        first = row_weights(self.kernel, kappa1[:, None])
        second = row_weights(self.kernel, kappa2[None], signed=True)
        table = positivity_table(self.kernel, cosine, first, second, True)
        parts = (table.log_r, table.slope_cosine, table.slope_kappa1, table.slope_kappa2)
        return tuple(part.float() for part in parts if part is not None)


def _lattice_of(kernel: ZonalKernel, dim: int) -> _Lattice:
    """The lattice of a fixed vMF kernel."""
    assert isinstance(kernel, VMFKernel)
    concentration = kernel.concentration(torch.empty(0))
    assert isinstance(concentration, float)
    return _lattice(concentration, dim)


@lru_cache(maxsize=8)
def _lattice(kappa_pos: float, dim: int) -> _Lattice:
    return _Lattice(kappa_pos, dim)


def _table(lattice: _Lattice, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> tuple[Tensor, ...]:
    """log r (N, M), and its slopes in the cosine and both kappas."""
    first, second = lattice.side(kappa1), lattice.side(kappa2)
    lattice.learn(first.met, second.met)
    usable = lattice.usable[first.classes][:, second.met].all(1)
    out = tuple(torch.empty(cosine.shape) for _ in range(4))

    def work(blocks: Iterator[Tensor]) -> None:
        for block in blocks:
            rows = first.part(block)
            found = _Block(lattice, rows, second, cosine[rows.order[:, None], second.order])
            for whole, x in zip(out, found.log_r_and_slopes(), strict=True):
                whole[rows.order[:, None], second.order] = x

    if bool(usable.any()):
        in_threads(work, list(usable.nonzero()[:, 0].split(max(1, _BLOCK // cosine.shape[1]))))
    if not bool(usable.all()):
        left = first.order[~usable]
        for whole, x in zip(out, lattice.series(cosine[left], kappa1[left], kappa2), strict=True):
            whole[left] = x
    return out


class _Block:
    """Some rows of a table. Rows and columns are in the order of their classes."""

    def __init__(self, lattice: _Lattice, rows: _Side, columns: _Side, cosine: Tensor):
        self.rows, self.columns = rows, columns
        self.degree = int(lattice.degree[rows.met][:, columns.met].max())
        chosen = torch.tensor([*range(self.degree), COSINE_NODES])
        # (P, a, Q (K + 1) b)
        self.table = lattice.coefficients[rows.met][:, :, columns.met][:, :, :, chosen].flatten(2)
        self.stretch = 2 / lattice.width[rows.classes][:, columns.classes]
        self.of_rows = self._of_rows(rows.values)
        self.coefficients = self._products(self.of_rows, columns.values)
        self.steepness = self.coefficients[-1].clamp_(min=1e-20)
        distance = cosine.clamp_(-1, 1).sub_(1).float()  # c - 1
        inside = torch.maximum(distance, -DEPTH / self.steepness)
        self.beyond = distance.sub_(inside)  # negative in the tail
        self.twice = inside.mul_(self.stretch).mul_(2).add_(2)  # 2 y

    def _of_rows(self, x: Tensor) -> tuple[Tensor, ...]:
        """sum_a x_ia G_paqkb of the rows i for each column class, (K + 1, R, b) each."""
        parts = [own @ table for own, table in zip(x.split(self.rows.sizes), self.table, strict=True)]
        together = torch.cat(parts).float().unflatten(1, (len(self.columns.met), self.degree + 1, NODES))
        return together.permute(1, 2, 0, 3).unbind()

    def _products(self, of_rows: tuple[Tensor, ...], x: Tensor) -> Tensor:
        """sum_b of_rows_ikb x_jb for all columns j, (K + 1, R, M)."""
        parts = zip(of_rows, x.float().split(self.columns.sizes), strict=True)
        return torch.cat([left @ right.mT for left, right in parts], 2)

    def log_r_and_slopes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log r, and its slopes in the cosine, in kappa and in kappa'."""
        value, by_place = chebyshev_sum_and_slope(self.twice, self.degree, self._put(self.coefficients))
        by_cosine = by_place.mul_(self.stretch)
        tail, outside = self.steepness, self.beyond.sign().neg_()
        value.addcmul_(tail, self.beyond)
        turn = turn_of_tail(by_cosine, tail, self.beyond)
        first = self._products(self._of_rows(self.rows.slopes), self.columns.values)
        second = self._products(self.of_rows, self.columns.slopes)
        by_kappa1, by_kappa2 = (self._sum(slope).addcmul_(slope[-1], turn) for slope in (first, second))
        return value, by_cosine.lerp_(tail, outside), by_kappa1, by_kappa2

    def _sum(self, coefficients: Tensor) -> Tensor:
        return chebyshev_sum(self.twice, self.degree, self._put(coefficients))

    @staticmethod
    def _put(coefficients: Tensor) -> Put:
        return lambda k, after: torch.sub(coefficients[k], after, out=after)
