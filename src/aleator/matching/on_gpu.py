"""r on a GPU, for fixed kernels and float32. Nothing waits for the device.

`fused_log_pairs`: N given pairs, such as anchors and positives, in few launches (fused/pairs.py).

Sums over the negatives of each anchor: few pairs are summed by the series (fused/totals.py). Of many pairs, those in
classes where log r is a polynomial to within its tolerance (interpolant.py) are summed by fused/interpolant.py, and the
others by the series.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_kernels
from aleator.matching.interpolant import Interpolant, interpolant, kappa_scale, too_far
from aleator.matching.series import DEPTH, FLOOR, TILT, KernelSeries, Rows, positivity_table, row_weights
from aleator.matching.tiled_sum import rescaled_recurrence


def fused_log_pairs(kernel: KernelSeries, first: Rows, second: Rows) -> Tensor:
    """log r of pairs of rows in float32, (1, N), with gradients in mu and kappa of both sides; float64."""

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        fused: Any = fused_kernels(first.mu)
        mu1, mu2 = first.mu[0], second.mu[0]
        cosine = fused.fused_pair_cosines(mu1, mu2)[:, None]
        rows = (
            row_weights(kernel, first.kappa.mT),
            row_weights(kernel, second.kappa.mT, signed=kernel.kappa_pos is None),
        )
        table = positivity_table(kernel, cosine, *rows, any(needed))
        slopes = table.slope_cosine, table.slope_kappa1, table.slope_kappa2

        def gradients(grad: Tensor, mu1: Tensor, mu2: Tensor, *slopes: Tensor) -> list[Tensor]:
            return [x[None] for x in fused.fused_pair_gradients(grad[0], slopes, mu1, mu2)]

        return table.log_r.mT, (mu1, mu2, *slopes), gradients

    return with_gradient(compute, first.mu, first.kappa, second.mu, second.kappa)


class FusedTotals:
    """The sums over negatives of G groups of anchors. Backward: the pairs again, with slopes."""

    def __init__(self, kernel: KernelSeries, first: Rows, second: Rows | None, with_polynomials: bool):
        """Anchors and negatives. None: the other anchors of the group. Polynomials are for one group."""
        if len(kernel.log_lam) % 2:  # tables of an even number of terms
            log_lam, sign = (
                nn.functional.pad(x, (0, 1), value=v) for x, v in ((kernel.log_lam, -math.inf), (kernel.sign, 1.0))
            )
            kernel = replace(kernel, log_lam=log_lam, sign=sign)
        self.own = second is None
        self.pairs: _ManyPairs | _Pairs
        if with_polynomials:
            side = _sorted(first, first.modes if second is None else 1)
            self.pairs = _ManyPairs(kernel, side, side if second is None else _sorted(second, 1), self.own)
        else:
            several = second is None and first.modes > 1
            owner = _owners(first.kappa.shape[1], first.modes, first.mu.device) if several else None
            self.pairs = _Pairs(kernel, first, second, None, owner)

    def totals(self) -> Tensor:
        """(G, N), float64."""
        return self.pairs.totals()

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """In mu, kappa and log weights of both sides, in log |lambda_n| and in kappa_pos."""
        first = self.pairs.gradients(grad, False)
        second = (None, None, None) if self.own else self.pairs.gradients(grad, True)
        return [*first, *second, None, None]


class _Pairs:
    """The series of all pairs, or of those that are not done: G groups of N rows, and their columns."""

    def __init__(
        self, kernel: KernelSeries, first: Rows, second: Rows | None, done: Any = None, owner: Tensor | None = None
    ):
        fused: Any = fused_kernels(first.mu)
        self.tolerance, tail = kernel.tolerance, kernel.tail
        self.own, self.done, self.like, self.owner = second is None, done, first.mu, owner
        self.weighted = first.log_weights is not None, second is not None and second.log_weights is not None
        self.steps, heights = _recurrence_on(kernel.dim, len(kernel.log_lam), first.mu.device)
        self.constants: tuple = (0.0, 0.0, DEPTH, FLOOR, TILT, False)
        if tail is not None:
            self.constants = (tail.lam, tail.scale, DEPTH, FLOOR, TILT, True)
        unused = None if done is None else done.everything
        rows = row_weights(kernel, first.kappa, unused=unused).weighted(first.log_weights)
        if second is None:
            signed = rows if tail is not None else rows.signed(kernel.sign)
            self.second = fused.rows_on_device(first.mu, signed, heights)
            # Without signs the two sides are one.
            self.first = self.second if tail is not None else fused.rows_on_device(first.mu, rows, None)
        else:
            self.first = fused.rows_on_device(first.mu, rows, None)
            columns = row_weights(kernel, second.kappa, signed=True, unused=unused).weighted(second.log_weights)
            self.second = fused.rows_on_device(second.mu, columns, heights)
            self.heights = heights
        self.log_length = rows.log_length

    def totals(self) -> Tensor:
        fused: Any = fused_kernels(self.like)
        options = (self.own, self.steps, self.constants, self.tolerance, self.done, self.owner)
        full, self.short = fused.fused_log_totals(self.like, self.first, self.second, *options)
        return full

    def gradients(
        self, grad: Tensor, of_columns: bool, totals: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """In mu, kappa and any log weights of one side. `totals`: those of all pairs, if some are done elsewhere."""
        fused: Any = fused_kernels(self.like)
        short = self.short if totals is None else totals - self.log_length
        sides = (self.first, self.second)
        if of_columns:
            sides = (self.second, self.first._replace(scaled=self.first.weights * self.heights[:, None]))
        options = (self.own, self.steps, self.constants, self.tolerance, of_columns, self.done, self.owner)
        weighted = self.weighted[of_columns]
        return fused.fused_log_totals_backward(self.like, grad, short, *sides, *options, weighted)


class _Sorted(NamedTuple):
    """One side in ascending order of kappa."""

    side: Any  # SortedSide of fused/interpolant.py
    order: Tensor  # (N,)

    def unsorted(self, x: Tensor) -> Tensor:
        """x (N, ...) of the sorted side in the order of the batch, with a first axis of one group."""
        return torch.empty_like(x).index_copy_(0, self.order, x)[None]


class _ManyPairs:
    """One group of very many pairs: polynomials, and the series where these are not good enough."""

    def __init__(self, kernel: KernelSeries, first: _Sorted, second: _Sorted, own: bool):
        self.kernel, self.first, self.second, self.own = kernel, first, second, own
        self.depth = 0.0 if kernel.tail is None else DEPTH

    def totals(self) -> Tensor:
        fused: Any = fused_kernels(self.first.side.mu)
        self.polynomials = self._polynomials(self.first, self.second)
        options = (self.polynomials, self.own, kappa_scale(self.kernel.dim), self.depth)
        part, sums = fused.fused_interpolated_totals(*self._sides(False), *options)
        self.near: Tensor | None = None
        if self.kernel.tail is None:  # if far pairs matter for any anchor, the series sums all pairs
            self.near = ~too_far(*sums)
            part = torch.where(self.near, part, -1e30)
            self.polynomials.usable.mul_(self.near)
        self.pairs = self._series(self.polynomials)
        self.all = torch.logaddexp(part, self.pairs.totals()[0])
        return self.first.unsorted(self.all)

    def gradients(self, grad: Tensor, of_columns: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        fused: Any = fused_kernels(grad)
        weight, polynomials, pairs = grad[0, self.first.order], self.polynomials, self.pairs
        if of_columns:  # classes of columns are finer and have fewer nodes, so the two sides change places
            polynomials = self._polynomials(self.second, self.first)
            if self.near is not None:
                polynomials.usable.mul_(self.near)
            pairs = self._series(polynomials)
        like, first, second = self._sides(of_columns)
        options = (polynomials, self.own, kappa_scale(self.kernel.dim), self.depth, of_columns)
        found = fused.fused_interpolated_backward(like, weight, self.all, first, second, *options)
        rest = pairs.gradients(weight[None], of_columns, self.all[None])
        place = self.second if of_columns else self.first
        return tuple(  # type: ignore[return-value]
            None if one is None or other is None else place.unsorted(one.sum(0) + other[0])
            for one, other in zip(found, rest, strict=True)
        )

    def _sides(self, swapped: bool) -> tuple[Tensor, Any, Any]:
        first, second = self.first.side, self.second.side
        return first.mu, *((second, first) if swapped else (first, second))

    def _polynomials(self, first: _Sorted, second: _Sorted) -> Interpolant:
        return interpolant(self.kernel, first.side.kappa, second.side.kappa)

    def _series(self, polynomials: Interpolant) -> _Pairs:
        """The pairs that are left."""
        fused: Any = fused_kernels(self.first.side.mu)
        sizes = polynomials.rows.size, polynomials.columns.size
        done = fused.Done(polynomials.usable, polynomials.usable.amin(), *sizes)
        first, second = (
            Rows(x.mu[None], x.kappa[None], None if x.log_weights is None else x.log_weights[None])
            for x in (self.first.side, self.second.side)
        )
        return _Pairs(self.kernel, first, None if self.own else second, done, self.first.side.owner)


def _sorted(rows: Rows, modes: int) -> _Sorted:
    """One group, in order. `modes` consecutive rows are of one posterior."""
    fused: Any = fused_kernels(rows.mu)
    values, order = rows.kappa[0].double().sort()
    weights = None if rows.log_weights is None else rows.log_weights[0].float().index_select(0, order)
    owner = (order // modes).int() if modes > 1 else None
    return _Sorted(fused.sorted_side(rows.mu[0].index_select(0, order), values, weights, owner), order)


@lru_cache(maxsize=64)
def _owners(count: int, modes: int, device: torch.device) -> Tensor:
    """The posterior that each row belongs to, (count,) int32."""
    return torch.arange(count, dtype=torch.int32, device=device) // modes


@lru_cache(maxsize=256)
def _recurrence_on(dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """m_n and h_n of `rescaled_recurrence` on a device, (T,) each."""
    steps, heights = rescaled_recurrence(dim, terms)
    return torch.tensor(steps, dtype=torch.float64, device=device), heights.flatten().to(device)
