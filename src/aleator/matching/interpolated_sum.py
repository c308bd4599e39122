r"""Sums over the negatives of each anchor on a CPU with polynomials for log r, in float32.

The series of r cancels for far pairs, so its terms are summed in float64, and there are dozens of them. log r does not
cancel: of many pairs it is a polynomial of kappa, kappa' and the cosine (interpolant.py), summed in float32.

Both sides are sorted by kappa and cut into classes of equal width in kappa/(kappa + s). For the rows of a tile and a
column class, the coefficients of T_k(y) are products of two matrices, with z and z' in [-1, 1] the places of kappa and
kappa' in their classes:

    V_k = U_k Z,     U_ikb = sum_a T_a(z_i) G_abk,     Z_bj = T_b(z'_j).

Clenshaw's rule then takes one matrix product and one pass over the tile for each k. The slopes of log r in kappa and
kappa' are polynomials with the coefficients dU_k Z and U_k dZ.

Where polynomials are not within their tolerance, the series is summed (tiled_sum.py).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.matching.interpolant import (
    FAR_SHARE,
    TOLERANCE,
    Put,
    chebyshev_sum,
    chebyshev_sum_and_slope,
    chebyshev_values,
    even_classes,
    place_in_class,
    polynomials,
    turn_of_tail,
)
from aleator.matching.series import DEPTH, KernelSeries, Rows, row_weights
from aleator.matching.tiled_sum import TILE, Group, blocks_of, in_threads, kappa_gradient, side_of

NODES = 8  # in kappa and in kappa'
WIDTH = 0.12  # of a class in kappa/(kappa + s)
_RANGE = 60.0  # of logarithms whose exponentials float32 holds at one scale


class InterpolatedTotals:
    """The sums over negatives of G groups of anchors, without weights."""

    def __init__(self, kernel: KernelSeries, first: Rows, second: Rows | None):
        """Anchors and negatives. None: the other anchors of the group."""
        anchors, *negatives = (
            [_Sorted(kernel.dim, mu, kappa) for mu, kappa in zip(side.mu, side.kappa, strict=True)]
            for side in (first, second)
            if side is not None
        )
        self.groups = [_Pairs(kernel, *pair) for pair in zip(anchors, *(negatives or [anchors]), strict=True)]

    def totals(self) -> Tensor:
        """(G, N), float64."""
        return torch.stack([group.totals() for group in self.groups])

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """In mu, kappa and log weights of both sides, in log |lambda_n| and in kappa_pos."""
        parts = [group.gradients(g) for group, g in zip(self.groups, grad, strict=True)]
        mu1, kappa1, mu2, kappa2 = (None if part[0] is None else torch.stack(part) for part in zip(*parts, strict=True))
        return [mu1, kappa1, None, mu2, kappa2, None, None, None]


class _Sorted:
    """One side in ascending order of kappa: N posteriors in classes, and the classes cut into blocks."""

    def __init__(self, dim: int, mu: Tensor, kappa: Tensor):
        self.kappa, self.order = kappa.sort()
        self.mu = mu.detach()[self.order]
        self.classes, members = even_classes(dim, self.kappa.nan_to_num(0.0), WIDTH, NODES)
        self.blocks: list[tuple[slice, int]] = []  # members and class of each
        values: list[Tensor] = []
        slopes: list[Tensor] = []
        for p, place in enumerate(members):
            blocks = blocks_of(place.stop - place.start, TILE)
            self.blocks += [(slice(place.start + b.start, place.start + b.stop), p) for b in blocks]
            z, slope = place_in_class(dim, self.kappa[place], self.classes.middle[p], self.classes.half[p])
            for out, part in zip((values, slopes), chebyshev_values(z, slope, NODES), strict=True):
                out.append(part)
        self.values, self.slopes = torch.cat(values), torch.cat(slopes)  # (N, NODES): T_a(z), and its slope in kappa

    def unsorted(self, x: Tensor) -> Tensor:
        """x (N, ...) of the sorted side in its former order."""
        return torch.empty_like(x).index_copy_(0, self.order, x)


class _Tile(NamedTuple):
    """Some rows and columns of one pair of classes."""

    rows: slice
    columns: slice
    p: int
    q: int

    def pairs(self) -> int:
        return (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)


class _Gradients:
    """Sums over tiles of the gradients of both sides in float64: in mu (N, D) and in kappa (N,)."""

    def __init__(self, first: _Sorted, second: _Sorted):
        self.sides = [(torch.zeros_like(x.mu, dtype=torch.float64), torch.zeros_like(x.kappa)) for x in (first, second)]

    def add(self, other: "_Gradients") -> None:
        for mine, others in zip(self.sides, other.sides, strict=True):
            for total, part in zip(mine, others, strict=True):
                total += part


class _Pairs:
    """The pairs of one group: polynomials, and the series where these are not good enough."""

    def __init__(self, kernel: KernelSeries, first: _Sorted, second: _Sorted):
        """If both sides are the same, the negatives are the other anchors."""
        self.kernel, self.first, self.second, self.own = kernel, first, second, first is second
        self.found = polynomials(kernel, first.classes, second.classes, False, TOLERANCE)

    def totals(self) -> Tensor:
        """log sum_j r_ij, (N,)."""
        usable = self.found.usable.tolist()
        columns = self.second.blocks
        tiles = [
            _Tile(rows, place, p, q)
            for i, (rows, p) in enumerate(self.first.blocks)
            for place, q in columns[i if self.own else 0 :]
        ]
        tiles.sort(key=_Tile.pairs, reverse=True)  # so that the last ones are short, and threads end together
        self.tiles = [tile for tile in tiles if usable[tile.p][tile.q]]
        left = [tile for tile in tiles if not usable[tile.p][tile.q]]
        total, far = (torch.full_like(self.first.kappa, -math.inf) for _ in range(2))
        if self.tiles:
            for part in in_threads(self._sums, self.tiles):
                total, far = torch.logaddexp(total, part[0]), torch.logaddexp(far, part[1])
        if bool((far > total + math.log(FAR_SHARE)).any()):  # far pairs matter, so the series sums all pairs
            self.tiles, left, total = [], tiles, torch.full_like(total, -math.inf)
        self.rest = _Rest(self, left) if left else None
        if self.rest is not None:
            total = torch.logaddexp(total, self.rest.totals())
        self.total = total
        return self.first.unsorted(total)

    def gradients(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Gradients in mu and kappa of both sides; None for the second if both are the same."""
        grad = grad[self.first.order]
        out = _Gradients(self.first, self.second)
        if self.tiles:
            for part in in_threads(lambda tiles: self._gradients(tiles, grad), self.tiles):
                out.add(part)
        if self.rest is not None:
            self.rest.add_gradients(grad, self.total, out)
        (mu1, kappa1), (mu2, kappa2) = out.sides
        dtype = self.first.mu.dtype
        if self.own:
            return self.first.unsorted((mu1 + mu2).to(dtype)), self.first.unsorted(kappa1 + kappa2), None, None
        first, second = self.first, self.second
        return (
            first.unsorted(mu1.to(dtype)),
            first.unsorted(kappa1),
            second.unsorted(mu2.to(dtype)),
            second.unsorted(kappa2),
        )

    def _sums(self, tiles: Iterator[_Tile]) -> tuple[Tensor, Tensor]:
        """log sum_j r_ij over some tiles, and over the far pairs in them; (N,) each."""
        total, far = (torch.full_like(self.first.kappa, -math.inf) for _ in range(2))
        for tile in tiles:
            values = _TileValues(self, tile)
            log_r = values.log_r()
            mirrored = self._prepare(log_r, tile)
            outside = values.outside() if self.kernel.tail is None else None
            for place, part, part_far in _log_sums(log_r, outside, tile, mirrored):
                total[place] = torch.logaddexp(total[place], part)
                if part_far is not None:
                    far[place] = torch.logaddexp(far[place], part_far)
        return total, far

    def _gradients(self, tiles: Iterator[_Tile], grad: Tensor) -> _Gradients:
        """Gradients of sum_i grad_i total_i through some tiles."""
        out = _Gradients(self.first, self.second)
        (mu1, kappa1), (mu2, kappa2) = out.sides
        total, weight = self.total.float(), grad.float()
        for tile in tiles:
            rows, columns = tile.rows, tile.columns
            log_r, by_cosine, by_kappa1, by_kappa2 = _TileValues(self, tile).slopes()
            anchors = [(total[rows, None], weight[rows, None])]
            if self._prepare(log_r, tile):
                anchors.append((total[columns], weight[columns]))
            share = _shares(log_r, anchors)
            kappa1[rows] += by_kappa1.mul_(share).sum(1)
            kappa2[columns] += by_kappa2.mul_(share).sum(0)
            share *= by_cosine
            mu1[rows] += share @ self.second.mu[columns]
            mu2[columns] += share.mT @ self.first.mu[rows]
        return out

    def _prepare(self, log_r: Tensor, tile: _Tile) -> bool:
        """Leave out what an anchor would say of itself. Whether the tile stands for its mirror image too."""
        if not self.own:
            return False
        if tile.rows == tile.columns:
            log_r.fill_diagonal_(-math.inf)
            return False
        return True


def _log_sums(
    log_r: Tensor, outside: Tensor | None, tile: _Tile, mirrored: bool
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Logarithms of the sums of r, and of its sums over far pairs, for the rows; if mirrored for the columns too."""
    scale = log_r.amax().clamp(min=-1e30)
    places = ((tile.rows, 1), (tile.columns, 0))[: 1 + mirrored]
    largest = [log_r.amax(axis, keepdim=True).clamp_(min=-1e30) for _, axis in places]
    together = all(float(scale - part.min()) < _RANGE for part in largest)
    if together:  # one exponential for both
        r = (log_r - scale).exp_()
    for (place, axis), own_scale in zip(places, largest, strict=True):
        if not together:
            scale, r = own_scale, (log_r - own_scale).exp_()
        shift = scale.flatten().double()
        of_far = None if outside is None else (r * outside).sum(axis).double().log_() + shift
        yield place, r.sum(axis).double().log_() + shift, of_far


def _shares(log_r: Tensor, anchors: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Sum of weight r / exp(total) over the given anchors, whose totals and weights broadcast against log r."""
    scale = log_r.amax().clamp(min=-1e30)
    if all(float((scale - total).max()) < _RANGE for total, _ in anchors):  # one exponential for both
        factors = [(scale - total).exp_().mul_(weight) for total, weight in anchors]
        return (log_r - scale).exp_().mul_(sum(factors[1:], start=factors[0]))
    parts = [(log_r - total).exp_().mul_(weight) for total, weight in anchors]
    return sum(parts[1:], start=parts[0])


class _TileValues:
    """log r of a tile from the polynomials of its classes, in float32."""

    def __init__(self, pairs: _Pairs, tile: _Tile):
        found, (rows, columns, p, q) = pairs.found, tile
        first, second = pairs.first, pairs.second
        self.tail = pairs.kernel.tail is not None
        self.degree = degree = int(found.degree[p, q])
        table = found.coefficients[:, p, :NODES, q, :NODES]  # (K + 1 or K + 2, a, b)
        table = torch.cat([table[:degree], table[-1:]]) if self.tail else table[:degree]
        self.table = table.transpose(0, 1).flatten(1)
        self.first, self.second = (first.values[rows], first.slopes[rows]), second.slopes[columns]
        self.rows = self._of_rows(0)
        self.columns = second.values[columns].float().mT  # Z, (b, C)
        cosine = (first.mu[rows] @ second.mu[columns].mT).clamp_(-1, 1)
        width = float(found.width[p, q])
        self.far_slope = float(found.slope[p, q])
        if self.tail:
            self.steepness = (self.rows[degree] @ self.columns).clamp_(min=1e-20)
            inside = self.steepness.reciprocal().mul_(-DEPTH).add_(1)
            inside = torch.maximum(cosine, inside, out=inside)
        else:
            inside = cosine.clamp(min=1 - width)
        self.beyond = cosine.sub_(inside)  # negative where log r is a straight line
        self.stretch = 2 / width
        self.twice = inside.sub_(1).mul_(2 * self.stretch).add_(2)  # 2 y

    def outside(self) -> Tensor:
        """1 where log r is a straight line, else 0."""
        return self.beyond.sign().neg_()

    def _of_rows(self, derivative: int) -> tuple[Tensor, ...]:
        """U_k or dU_k, (R, b) each; after them that of the steepness."""
        return (self.first[derivative] @ self.table).float().unflatten(1, (-1, NODES)).unbind(1)

    def log_r(self) -> Tensor:
        """log r, (R, C)."""
        return self._with_line(self._sum(self.rows, self.columns))

    def slopes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log r, and its slopes in the cosine, in kappa and in kappa'; (R, C) each."""
        value, by_place = chebyshev_sum_and_slope(self.twice, self.degree, _products(self.rows, self.columns))
        by_cosine = by_place.mul_(self.stretch)
        self._with_line(value)
        rows, columns = self._of_rows(1), self.second.float().mT  # dU and dZ
        by_kappa1, by_kappa2 = self._sum(rows, self.columns), self._sum(self.rows, columns)
        if not self.tail:
            line = torch.full_like(by_cosine, self.far_slope)
        else:
            line = self.steepness
            turn = turn_of_tail(by_cosine, line, self.beyond)
            by_kappa1 += (rows[self.degree] @ self.columns).mul_(turn)
            by_kappa2 += (self.rows[self.degree] @ columns).mul_(turn)
        return value, by_cosine.lerp_(line, self.outside()), by_kappa1, by_kappa2

    def _sum(self, rows: tuple[Tensor, ...], columns: Tensor) -> Tensor:
        """sum_k T_k(y) rows_k columns."""
        return chebyshev_sum(self.twice, self.degree, _products(rows, columns))

    def _with_line(self, value: Tensor) -> Tensor:
        """The value of the polynomial, continued as a straight line."""
        if self.tail:
            return value.addcmul_(self.steepness, self.beyond)
        return value.add_(self.beyond, alpha=self.far_slope)


def _products(rows: tuple[Tensor, ...], columns: Tensor) -> Put:
    """The coefficients rows_k columns."""
    return lambda k, after: torch.addmm(after, rows[k], columns, beta=-1, out=after)


class _Rest:
    """The pairs that are left to the series."""

    def __init__(self, pairs: _Pairs, tiles: list[_Tile]):
        kernel = pairs.kernel
        self.first = row_weights(kernel, pairs.first.kappa)
        self.second = self.first.signed(kernel.sign)
        if not pairs.own:
            self.second = row_weights(kernel, pairs.second.kappa, signed=True)
        sides = side_of(pairs.first.mu, self.first), side_of(pairs.second.mu, self.second)
        places = [(tile.rows, tile.columns) for tile in tiles]
        self.group = Group(kernel, *sides, 1 if pairs.own else 0, places)
        self.log_scale = self.first.log_length + self.second.log_length.max()

    def totals(self) -> Tensor:
        return self.group.sums().log() + self.log_scale

    def add_gradients(self, grad: Tensor, total: Tensor, out: _Gradients) -> None:
        part = self.group.gradients(grad * (self.log_scale - total).exp(), False)
        (mu1, kappa1), (mu2, kappa2) = out.sides
        mu1 += part.mu1
        mu2 += part.mu2
        kappa1 += kappa_gradient(self.first, part.terms1, part.mean1)
        kappa2 += kappa_gradient(self.second, part.terms2, part.mean2)
