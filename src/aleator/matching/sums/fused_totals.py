"""Sums over the negatives of each anchor on a GPU, for a fixed kernel (totals.py). Nothing waits for the device.

Few pairs are summed by the series (fused/totals.py). Of many pairs, those in classes where log r is a polynomial to
within its tolerance (interpolant.py) are summed by fused/interpolant.py, and the others by the series.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aleator.foundation import first_derivatives_only
from aleator.fused import fused_kernels
from aleator.matching.series import DEPTH, FLOOR, TILT, row_weights
from aleator.matching.sums.interpolant import Interpolant, interpolant, kappa_scale, too_far
from aleator.matching.sums.tiles import FixedKernel, TailScale, rescaled_recurrence, tail_scale
from aleator.special import bessel_ratio

# From so many pairs on, the grid of the polynomials is paid for (measured on an H200).
LEAST_PAIRS = 2**24


def fused_log_totals(*arguments: Any) -> Tensor:
    """`log_totals` of totals.py on a GPU."""
    return _FusedLogTotals.apply(*arguments)


def takes_polynomials(groups: int, rows: int, columns: int) -> bool:
    """Whether so many pairs are summed with polynomials."""
    return groups == 1 and rows * columns >= LEAST_PAIRS


class _FusedLogTotals(torch.autograd.Function):
    """Forward: the sums. Backward: the pairs again, with slopes."""

    @staticmethod
    def forward(ctx, mu1, kappa1, mu2, kappa2, log_lam, sign, dim, kappa_pos, tolerance, weights1, weights2, modes):
        if len(log_lam) % 2:  # tables of an even number of terms
            log_lam, sign = (nn.functional.pad(x, (0, 1), value=v) for x, v in ((log_lam, -math.inf), (sign, 1.0)))
        kernel = FixedKernel(dim, log_lam, sign, None if kappa_pos is None else _fixed_tail(dim, kappa_pos), tolerance)
        own = mu2 is None
        groups, count = kappa1.shape
        if takes_polynomials(groups, count, count if own else kappa2.shape[1]):
            first = _sorted(mu1, kappa1, weights1, modes if own else 1)
            second = first if own else _sorted(mu2, kappa2, weights2, 1)
            pairs: _ManyPairs | _Pairs = _ManyPairs(kernel, first, second, own)
        else:
            owner = _owners(count, modes, mu1.device) if own and modes > 1 else None
            pairs = _Pairs(kernel, mu1, kappa1, mu2, kappa2, None, weights1, weights2, owner)
        ctx.pairs, ctx.dtypes = pairs, [None if x is None else x.dtype for x in (kappa1, weights1, weights2)]
        return pairs.totals()

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        mu1, kappa1, weights1 = ctx.pairs.gradients(grad, False)
        mu2 = kappa2 = weights2 = None
        if not ctx.pairs.own:
            mu2, kappa2, weights2 = ctx.pairs.gradients(grad, True)
        kappa, of_weights1, of_weights2 = ctx.dtypes
        weights = (None if x is None else x.to(d) for x, d in ((weights1, of_weights1), (weights2, of_weights2)))
        return mu1, kappa1.to(kappa), mu2, None if kappa2 is None else kappa2.to(kappa), *[None] * 5, *weights, None


class _Pairs:
    """The series of all pairs, or of those that are not done: G groups of N rows, and their columns."""

    def __init__(
        self,
        kernel: FixedKernel,
        mu1: Tensor,
        kappa1: Tensor,
        mu2: Tensor | None,
        kappa2: Tensor | None,
        done: Any = None,
        weights1: Tensor | None = None,
        weights2: Tensor | None = None,
        owner: Tensor | None = None,
    ):
        fused: Any = fused_kernels(mu1)
        dim, log_lam, sign, tail, self.tolerance = kernel
        self.own, self.done, self.like, self.owner = mu2 is None, done, mu1, owner
        self.weighted = weights1 is not None, weights2 is not None
        self.steps, heights = _recurrence_on(dim, len(log_lam), mu1.device)
        self.constants: tuple = (0.0, 0.0, DEPTH, FLOOR, TILT, False)
        if tail is not None:
            self.constants = (tail.lam, tail.scale, DEPTH, FLOOR, TILT, True)
        unused = None if done is None else done.everything
        rows = row_weights(dim, kappa1, log_lam, None, unused).weighted(weights1)
        if mu2 is None or kappa2 is None:
            self.second = fused.rows_on_device(mu1, rows if tail is not None else rows.signed(sign), heights)
            # Without signs the two sides are one.
            self.first = self.second if tail is not None else fused.rows_on_device(mu1, rows, None)
        else:
            self.first = fused.rows_on_device(mu1, rows, None)
            columns = row_weights(dim, kappa2, log_lam, sign, unused).weighted(weights2)
            self.second = fused.rows_on_device(mu2, columns, heights)
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

    def __init__(self, kernel: FixedKernel, first: _Sorted, second: _Sorted, own: bool):
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
        dim, log_lam, sign, tail, _ = self.kernel
        return interpolant(dim, first.side.kappa, second.side.kappa, log_lam, sign, tail)

    def _series(self, polynomials: Interpolant) -> _Pairs:
        """The pairs that are left."""
        fused: Any = fused_kernels(self.first.side.mu)
        sizes = polynomials.rows.size, polynomials.columns.size
        done = fused.Done(polynomials.usable, polynomials.usable.amin(), *sizes)
        first, second = self.first.side, self.second.side
        sides = [None if x is None else x[None] for x in (*first[:3], *second[:3])]
        mu1, kappa1, weights1, mu2, kappa2, weights2 = sides
        if self.own:
            mu2 = kappa2 = weights2 = None
        return _Pairs(self.kernel, mu1, kappa1, mu2, kappa2, done, weights1, weights2, first.owner)  # type: ignore[arg-type]


def _sorted(mu: Tensor, kappa: Tensor, log_weights: Tensor | None, modes: int) -> _Sorted:
    """One group, (1, N, D) and (1, N). `modes` consecutive rows are of one posterior."""
    fused: Any = fused_kernels(mu)
    values, order = kappa[0].double().sort()
    weights = None if log_weights is None else log_weights[0].float().index_select(0, order)
    owner = (order // modes).int() if modes > 1 else None
    return _Sorted(fused.sorted_side(mu[0].index_select(0, order), values, weights, owner), order)


@lru_cache(maxsize=64)
def _owners(count: int, modes: int, device: torch.device) -> Tensor:
    """The posterior that each row belongs to, (count,) int32."""
    return torch.arange(count, dtype=torch.int32, device=device) // modes


@lru_cache(maxsize=256)
def _recurrence_on(dim: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """m_n and h_n of `rescaled_recurrence` on a device, (T,) each."""
    steps, heights = rescaled_recurrence(dim, terms)
    return torch.tensor(steps, dtype=torch.float64, device=device), heights.flatten().to(device)


@lru_cache(maxsize=256)
def _fixed_tail(dim: int, kappa_pos: float) -> TailScale:
    """The tail of a vMF kernel that is not learned, without a look at the device."""
    lam = float(bessel_ratio(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64)))
    return tail_scale(dim, lam, kappa_pos)
