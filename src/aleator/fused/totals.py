r"""GPU version of matching/tiled_sum.py: sums of expected positivity over the negatives of each anchor.

Neither pass writes anything of the size of the table of pairs. Each program has some rows, goes through tiles of
columns, and sums the series of each pair in registers by Clenshaw's rule, in float64: far away the terms cancel. What
comes before and after the sum (cosines, tail, logarithm, shares) is in float32.

The forward pass is a running logsumexp. The backward pass computes each pair again and adds up the gradients of the
program's own rows. If both sides are the anchors, a pair (i, j) counts for anchor i and for anchor j; log r is
symmetric, so both shares are known at once, and one pass gives the whole gradient.

How many terms a tile needs is decided on the device: `_rest_kernel` prepares, for each block of rows, what is left of
them from each term on (matching/tiled_sum.py has the bound). Tables have an even number of terms.

Components of mixtures are rows whose log weights are part of their log lengths (matching/tiled_sum.py). The rows of
one posterior have the same `owner`.

A kernel with a tail is never summed far below its maximum, so the smooth floor of series.py is left out for it. Only
with too few terms, set by hand, can its sum be negative; such a pair counts as r = 0.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aleator.fused.triton_helpers import cosines, of_others, on_its_own_device, part_of_dimensions, tl, triton

_COLUMNS = 64
_LARGEST_PART = 256  # dimensions of the gradient that one program holds
_PROGRAMS = 1056  # enough for every multiprocessor of a large GPU


class FusedRows(NamedTuple):
    """One side on the device: G groups of N posteriors."""

    mu: Tensor  # (G, N, D) float32
    weights: Tensor  # (T, G N) float64: w_n
    slopes: Tensor  # (T, G N) float64: d_n
    scaled: Tensor | None  # (T, G N) float64: h_n w_n, which the side of the columns needs
    log_length: Tensor  # (G N) float64
    mean: Tensor  # (G N) float64: A_1
    mean_slope: Tensor  # (G N) float64


class Done(NamedTuple):
    """Pairs of classes that fused/interpolant.py sums, and which are left out here."""

    classes: Tensor  # (P, Q) int32: 1 if they are left out
    everything: Tensor  # () int32: 1 if all are
    rows: int  # members of a row class
    columns: int


@lru_cache(maxsize=16)
def nothing_done(device: torch.device) -> Done:
    """All pairs are summed here."""
    zero = torch.zeros(1, 1, dtype=torch.int32, device=device)
    return Done(zero, zero[0, 0], 2**30, 2**30)


def rows_on_device(mu: Tensor, rows: Any, heights: Tensor | None) -> FusedRows:
    """From directions (G, N, D) and their `RowWeights` (matching/series.py) of shape (G, N).

    `heights` (T,) are the h_n of `rescaled_recurrence` (matching/tiled_sum.py), for the side of the columns.
    """
    weights, slopes = (x.flatten(0, 1).movedim(-1, 0).contiguous() for x in (rows.weights, rows.slopes))
    lengths = (rows.log_length, rows.mean_length, rows.mean_length_slope)
    scaled = None if heights is None else weights * heights[:, None]
    return FusedRows(mu.contiguous(), weights, slopes, scaled, *(x.flatten() for x in lengths))


@on_its_own_device
def fused_log_totals(
    like: Tensor,
    first: FusedRows,
    second: FusedRows,
    own: bool,
    steps: Tensor,
    constants: tuple,
    tolerance: float,
    done: Done | None = None,
    owner: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """log sum_j r_ij in float64, and the same less the log length of row i in float32, (G, N) each.

    `like` is any tensor on the device. `steps` (T,) are the m_n of `rescaled_recurrence` (matching/tiled_sum.py), T
    even. `constants` are lambda_1 and the scale of the tail (`TailScale`), the depth, floor and tilt of series.py, and
    whether there is a tail. `own`: both sides are the anchors, and none is its own negative. What is
    `done` is left out. `owner` (N,) int32: with `own`, rows of one owner are not compared; None: each is its own.
    """
    done = done or nothing_done(like.device)
    groups, count, dim = first.mu.shape
    others, terms = second.mu.shape[1], len(first.weights)
    rows = 32  # sixteen pairs for each thread
    blocks = triton.cdiv(count, rows)
    splits = max(1, min(triton.cdiv(others, _COLUMNS), _PROGRAMS // (blocks * groups)))
    largest, total = (first.mu.new_empty(splits, groups, count) for _ in range(2))
    bounds1, bounds2 = (_bounds(x, groups, n, done) for x, n in ((first, rows), (second, _COLUMNS)))
    _totals_kernel[(blocks, groups, splits)](
        first.mu, first.weights, first.mean,
        second.mu, second.weights, second.scaled, second.mean, second.log_length,
        bounds1, bounds2, steps, done.everything, done.classes, _owners(owner, done), largest, total,
        done.rows, done.columns, done.classes.shape[1],
        groups * count, groups * others, count, others, dim, terms, tolerance, *constants[:-1],
        OWN=own, SEVERAL=owner is not None, TAIL=constants[-1],
        ROWS=rows, COLUMNS=_COLUMNS, PART=part_of_dimensions(dim), TERMS=triton.next_power_of_2(terms), num_warps=4,
    )  # fmt: skip
    return log_of_splits(largest, total, first.log_length)


@on_its_own_device
def fused_log_totals_backward(
    like: Tensor,
    grad: Tensor,
    totals: Tensor,
    first: FusedRows,
    second: FusedRows,
    own: bool,
    steps: Tensor,
    constants: tuple,
    tolerance: float,
    of_columns: bool,
    done: Done | None = None,
    owner: Tensor | None = None,
    weighted: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in mu (G, N, D), kappa (G, N) and, if `weighted`, log weights (G, N) of the first side, float32.

    `grad` and `totals` (less the log lengths) are those of the anchors: of the first side, or of the second with
    `of_columns`. With `own` the two sides are one, and the gradient is that of both.
    """
    done = done or nothing_done(like.device)
    groups, count, dim = first.mu.shape
    others, terms = second.mu.shape[1], len(first.weights)
    held = min(max(16, triton.next_power_of_2(dim)), _LARGEST_PART)
    rows, columns = 64, 16  # eight pairs for each thread: their sums fill its registers
    grad_mu, grad_kappa = torch.empty_like(first.mu), first.mu.new_empty(groups * count)
    bounds1, bounds2 = (_bounds(x, groups, n, done) for x, n in ((first, rows), (second, columns)))
    blocks = triton.cdiv(count, rows)
    splits = max(1, min(triton.cdiv(others, columns), _PROGRAMS // (blocks * groups)))
    if splits > 1:
        grad_mu, grad_kappa = grad_mu.new_empty(splits, *grad_mu.shape), grad_kappa.new_empty(splits, len(grad_kappa))
    grad_weight = torch.empty_like(grad_kappa) if weighted else grad_kappa
    _totals_backward_kernel[(blocks, groups * splits, triton.cdiv(dim, held))](
        grad.contiguous(), totals.contiguous(),
        first.mu, first.weights, first.slopes, first.mean, first.log_length, first.mean_slope,
        second.mu, second.weights, second.scaled, second.mean, second.log_length,
        bounds1, bounds2, steps, done.everything, done.classes, _owners(owner, done), grad_mu, grad_kappa, grad_weight,
        done.rows, done.columns, done.classes.shape[1],
        groups * count, groups * others, splits, count, others, dim, terms, tolerance, *constants[:-1],
        OWN=own, OF_COLUMNS=of_columns, SEVERAL=owner is not None, WEIGHTED=weighted, TAIL=constants[-1],
        ROWS=rows, COLUMNS=columns, PART=part_of_dimensions(dim), HELD=held,
        TERMS=triton.next_power_of_2(terms), num_warps=4,
    )  # fmt: skip
    if splits > 1:
        grad_mu, grad_kappa = grad_mu.sum(0), grad_kappa.sum(0)
        grad_weight = grad_weight.sum(0) if weighted else grad_kappa
    return grad_mu, grad_kappa.view(groups, count), grad_weight.view(groups, count) if weighted else None


def _owners(owner: Tensor | None, done: Done) -> Tensor:
    """The owners, or any tensor of integers in their place."""
    return done.classes if owner is None else owner


def log_of_splits(largest: Tensor, total: Tensor, log_length: Tensor | None) -> tuple[Tensor, Tensor]:
    """log sum over splits of total exp(largest), (S, ...): with the log lengths in float64, without in float32."""
    with_length = log_length is not None
    short = torch.empty_like(largest[0])
    full = torch.empty_like(short, dtype=torch.float64)
    _splits_kernel[(triton.cdiv(short.numel(), 128),)](
        largest,
        total,
        log_length if with_length else largest,
        full,
        short,
        short.numel(),
        len(largest),
        LENGTH=with_length,
        BLOCK=128,
        num_warps=1,
    )
    return full, short


def _bounds(side: FusedRows, groups: int, block: int, done: Done) -> Tensor:
    """(G, blocks, 2, T): what is left of the rows of a block from each term on, and their least |w_n|."""
    terms, count = len(side.weights), side.mu.shape[1]
    blocks = triton.cdiv(count, block)
    out = side.mu.new_empty(groups, blocks, 2, terms)
    _rest_kernel[(blocks, groups)](
        side.weights, out, done.everything, groups * count, count, terms, BLOCK=block, CHUNK=16, num_warps=1
    )
    return out


if triton is not None:

    @triton.jit
    def _splits_kernel(largest_ptr, total_ptr, length_ptr, full_ptr, short_ptr, count, splits, LENGTH: tl.constexpr,
                       BLOCK: tl.constexpr):  # fmt: skip
        """One thread per row: a running logsumexp over the splits."""
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        largest = tl.zeros([BLOCK], dtype=tl.float64) - 1e30
        total = tl.zeros([BLOCK], dtype=tl.float64)
        for split in range(splits):
            at = split * count + i
            here = tl.load(largest_ptr + at, mask=live, other=0.0).to(tl.float64)
            larger = tl.maximum(largest, here)
            here = tl.load(total_ptr + at, mask=live, other=1.0) * tl.exp(here - larger)
            total = total * tl.exp(largest - larger) + here
            largest = larger
        short = largest + tl.log(tl.where(total == 0.0, 1.0, total))  # no pair: log r = -1e30
        tl.store(short_ptr + i, short.to(tl.float32), mask=live)
        if LENGTH:
            short += tl.load(length_ptr + i, mask=live, other=0.0)
        tl.store(full_ptr + i, short, mask=live)

    @triton.jit
    def _rest_kernel(weight_ptr, out_ptr, done_ptr, stride, count, terms, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
        """Each program: the rows of one block, from the last terms to the first, CHUNK at a time."""
        block, group = tl.program_id(0), tl.program_id(1)
        i = block * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        here = weight_ptr + group.to(tl.int64) * count + i
        out = out_ptr + (group.to(tl.int64) * tl.num_programs(0) + block) * 2 * terms
        rest = tl.zeros([BLOCK], dtype=tl.float64)
        chunks = tl.where(tl.load(done_ptr) == 0, tl.cdiv(terms, CHUNK), 0)
        for k in range(chunks):
            n = (chunks - 1 - k) * CHUNK + tl.arange(0, CHUNK)
            term = n < terms
            place = here[None, :] + n[:, None].to(tl.int64) * stride
            weight = tl.load(place, mask=term[:, None] & live[None, :], other=0.0)
            square = weight * weight
            left = tl.cumsum(square, 0, reverse=True) + rest[None, :]
            tl.store(out + n, tl.sqrt(tl.max(left, 1)).to(tl.float32), mask=term)
            least = tl.min(tl.where(live[None, :], tl.abs(weight), 2.0), 1)
            tl.store(out + terms + n, least.to(tl.float32), mask=term)
            rest += tl.sum(square, 0)

    @triton.jit
    def _needed_terms(bounds1_ptr, bounds2_ptr, terms, tolerance, TERMS: tl.constexpr):
        """How many terms a tile sums."""
        n = tl.arange(0, TERMS)
        live = n < terms
        rest = tl.load(bounds1_ptr + n, mask=live, other=0.0) * tl.load(bounds2_ptr + n, mask=live, other=0.0)
        least1 = tl.load(bounds1_ptr + terms + n, mask=live, other=0.0)
        least = tl.max(least1 * tl.load(bounds2_ptr + terms + n, mask=live, other=0.0), 0)
        needed = tl.sum((rest > tolerance * least).to(tl.int32), 0)
        return tl.maximum(2, (needed + 1) // 2 * 2)  # an even number, as the tables have

    @triton.jit
    def _inner(a_ptr, stride1, at1, row_live, b_ptr, stride2, at2, column_live, used, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr):  # fmt: skip
        """sum_n a_in b_jn of a tile in float32: the sum at c = 1. Only the floor needs it, so float32 is enough."""
        product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for start in range(0, used, 16):
            n = start + tl.arange(0, 16)
            live = n < used
            a = tl.load(
                a_ptr + n[None, :].to(tl.int64) * stride1 + at1[:, None],
                mask=row_live[:, None] & live[None, :],
                other=0.0,
            )
            b = tl.load(
                b_ptr + n[:, None].to(tl.int64) * stride2 + at2[None, :],
                mask=live[:, None] & column_live[None, :],
                other=0.0,
            )
            product = tl.dot(a.to(tl.float32), b.to(tl.float32), product, input_precision="tf32x3")
        return product

    @triton.jit
    def _mean_lengths(mean_ptr, at, live):
        """A_1 and 1 - A_1 in float32."""
        mean = tl.load(mean_ptr + at, mask=live, other=0.5)
        return mean.to(tl.float32), (1.0 - mean).to(tl.float32)

    @triton.jit
    def _tail(c, mean1, rest1, mean2, rest2, lam, scale, depth, dim):
        """Where the series is summed, the slope of the tail, and R. 1 - R^2 is made of positive parts."""
        R = tl.maximum(lam * mean1[:, None] * mean2[None, :], 1e-30)
        complement = (1.0 - lam) + lam * (rest1[:, None] + mean1[:, None] * rest2[None, :])
        room = complement * (1.0 + R)
        rise = scale * R * (dim - R * R)
        inside = tl.maximum(c, 1.0 - depth * room / rise)
        return inside, rise / room, R, room

    @triton.jit
    def _totals_kernel(
        mu1_ptr, w1_ptr, mean1_ptr, mu2_ptr, w2_ptr, scaled2_ptr, mean2_ptr, length2_ptr,
        bounds1_ptr, bounds2_ptr, steps_ptr, everything_ptr, done_ptr, owner_ptr, largest_ptr, total_ptr,
        done_rows, done_columns, done_stride,
        stride1, stride2, count, others, dim, terms, tolerance, lam, scale, depth, floor, tilt,
        OWN: tl.constexpr, SEVERAL: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        PART: tl.constexpr, TERMS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS anchors of a group and a share of the tiles of columns. A running logsumexp."""
        block, group, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
        splits = tl.num_programs(2)
        row = block * ROWS + tl.arange(0, ROWS)
        row_live = row < count
        at1 = group * count + row
        mean1, rest1 = _mean_lengths(mean1_ptr, at1, row_live)
        bounds1 = bounds1_ptr + (group * tl.num_programs(0) + block) * 2 * terms
        blocks2 = tl.cdiv(others, COLUMNS)
        largest = tl.zeros([ROWS], dtype=tl.float32) - 1e30
        total = tl.zeros([ROWS], dtype=tl.float32)
        tiles = tl.where(tl.load(everything_ptr) == 0, blocks2, 0)
        for tile in range(split, tiles, splits):
            if tl.load(done_ptr + block * ROWS // done_rows * done_stride + tile * COLUMNS // done_columns) == 0:
                column = tile * COLUMNS + tl.arange(0, COLUMNS)
                column_live = column < others
                at2 = group * others + column
                c = cosines(mu1_ptr, mu2_ptr, at1, row_live, at2, column_live, dim, ROWS, COLUMNS, PART)
                inside = c
                if TAIL:
                    mean2, rest2 = _mean_lengths(mean2_ptr, at2, column_live)
                    inside, steepness, _, _ = _tail(c, mean1, rest1, mean2, rest2, lam, scale, depth, dim)
                    value = steepness * (c - inside)
                else:
                    value = c * 0.0
                used = _needed_terms(
                    bounds1, bounds2_ptr + (group * blocks2 + tile) * 2 * terms, terms, tolerance, TERMS
                )
                x = inside.to(tl.float64)
                y, after = x * 0.0, x * 0.0
                for k in range(used // 2):  # two terms at a time, so that no register is moved
                    n = (used - 1 - 2 * k).to(tl.int64)
                    m = tl.load(steps_ptr + n)
                    w1 = tl.load(w1_ptr + n * stride1 + at1, mask=row_live, other=0.0)
                    w2 = tl.load(scaled2_ptr + n * stride2 + at2, mask=column_live, other=0.0)
                    next_m = tl.load(steps_ptr + n - 1)
                    next_w1 = tl.load(w1_ptr + (n - 1) * stride1 + at1, mask=row_live, other=0.0)
                    next_w2 = tl.load(scaled2_ptr + (n - 1) * stride2 + at2, mask=column_live, other=0.0)
                    after = w1[:, None] * w2[None, :] + ((m * x) * y + after)
                    y = next_w1[:, None] * next_w2[None, :] + ((next_m * x) * after + y)
                s = y.to(tl.float32)
                if not TAIL:
                    peak = _inner(
                        w1_ptr, stride1, at1, row_live, w2_ptr, stride2, at2, column_live, used, ROWS, COLUMNS
                    )
                    least = floor * peak
                    least = least * least
                    square = s * s
                    root = tl.sqrt(square + 4.0 * least)
                    value += tilt * least / (least + square + 1e-38) * (inside - 1.0)
                    s = tl.where(s > 0.0, 0.5 * (s + root), 2.0 * least / (root - s + 1e-38))
                length2 = tl.load(length2_ptr + at2, mask=column_live, other=0.0).to(tl.float32)
                value += tl.log(tl.maximum(s, 1e-37)) + length2[None, :]
                value = tl.where(column_live[None, :], value, -float("inf"))
                if OWN:
                    apart = of_others(row, row_live, column, column_live, owner_ptr, SEVERAL)
                    value = tl.where(apart, value, -float("inf"))
                larger = tl.maximum(largest, tl.max(value, 1))
                total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger[:, None]), 1)
                largest = larger
        out = split.to(tl.int64) * stride1 + at1
        tl.store(largest_ptr + out, largest, mask=row_live)
        tl.store(total_ptr + out, total, mask=row_live)

    @triton.jit
    def _totals_backward_kernel(
        grad_ptr, totals_ptr,
        mu1_ptr, w1_ptr, d1_ptr, mean1_ptr, length1_ptr, mean_slope1_ptr,
        mu2_ptr, w2_ptr, scaled2_ptr, mean2_ptr, length2_ptr,
        bounds1_ptr, bounds2_ptr, steps_ptr, everything_ptr, done_ptr, owner_ptr,
        grad_mu_ptr, grad_kappa_ptr, grad_weight_ptr,
        done_rows, done_columns, done_stride,
        stride1, stride2, splits, count, others, dim, terms, tolerance, lam, scale, depth, floor, tilt,
        OWN: tl.constexpr, OF_COLUMNS: tl.constexpr, SEVERAL: tl.constexpr, WEIGHTED: tl.constexpr, TAIL: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, HELD: tl.constexpr, TERMS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS posteriors of a group, a share of the tiles of columns, and HELD dimensions of mu.

        The share of a pair is r_ij/sum_j r_ij = s exp(...), and its slopes are those of s divided by s. So no pair
        needs a logarithm or a division by s.
        """
        block, split = tl.program_id(0), tl.program_id(1) % splits
        group = (tl.program_id(1) // splits).to(tl.int64)
        held = tl.program_id(2) * HELD + tl.arange(0, HELD)
        row = block * ROWS + tl.arange(0, ROWS)
        row_live = row < count
        at1 = group * count + row
        mean1, rest1 = _mean_lengths(mean1_ptr, at1, row_live)
        length1 = tl.load(length1_ptr + at1, mask=row_live, other=0.0).to(tl.float32)
        grad1, total1 = length1, length1
        if OWN or not OF_COLUMNS:
            grad1 = tl.load(grad_ptr + at1, mask=row_live, other=0.0).to(tl.float32)
            total1 = tl.load(totals_ptr + at1, mask=row_live, other=0.0).to(tl.float32)
        bounds1 = bounds1_ptr + (group * tl.num_programs(0) + block) * 2 * terms
        blocks2 = tl.cdiv(others, COLUMNS)
        pull = tl.zeros([ROWS, HELD], dtype=tl.float32)
        by_kappa = tl.zeros([ROWS], dtype=tl.float32)
        by_mean = tl.zeros([ROWS], dtype=tl.float32)
        by_weight = tl.zeros([ROWS], dtype=tl.float32)
        tiles = tl.where(tl.load(everything_ptr) == 0, blocks2, 0)
        for tile in range(split, tiles, splits):
            if tl.load(done_ptr + block * ROWS // done_rows * done_stride + tile * COLUMNS // done_columns) == 0:
                column = tile * COLUMNS + tl.arange(0, COLUMNS)
                column_live = column < others
                at2 = group * others + column
                c = cosines(mu1_ptr, mu2_ptr, at1, row_live, at2, column_live, dim, ROWS, COLUMNS, PART)
                inside = c
                if TAIL:
                    mean2, rest2 = _mean_lengths(mean2_ptr, at2, column_live)
                    inside, _, _, _ = _tail(c, mean1, rest1, mean2, rest2, lam, scale, depth, dim)
                used = _needed_terms(
                    bounds1, bounds2_ptr + (group * blocks2 + tile) * 2 * terms, terms, tolerance, TERMS
                )
                x = inside.to(tl.float64)
                y, after, dy, d_after, z, z_after = x * 0.0, x * 0.0, x * 0.0, x * 0.0, x * 0.0, x * 0.0
                for k in range(used // 2):
                    n = (used - 1 - 2 * k).to(tl.int64)
                    m = tl.load(steps_ptr + n)
                    w1 = tl.load(w1_ptr + n * stride1 + at1, mask=row_live, other=0.0)
                    d1 = tl.load(d1_ptr + n * stride1 + at1, mask=row_live, other=0.0)
                    w2 = tl.load(scaled2_ptr + n * stride2 + at2, mask=column_live, other=0.0)
                    step = m * x
                    d_after = step * dy + (m * y + d_after)
                    after = w1[:, None] * w2[None, :] + (step * y + after)
                    z_after = d1[:, None] * w2[None, :] + (step * z + z_after)
                    m = tl.load(steps_ptr + n - 1)
                    w1 = tl.load(w1_ptr + (n - 1) * stride1 + at1, mask=row_live, other=0.0)
                    d1 = tl.load(d1_ptr + (n - 1) * stride1 + at1, mask=row_live, other=0.0)
                    w2 = tl.load(scaled2_ptr + (n - 1) * stride2 + at2, mask=column_live, other=0.0)
                    step = m * x
                    dy = step * d_after + (m * after + dy)
                    y = w1[:, None] * w2[None, :] + (step * after + y)
                    z = d1[:, None] * w2[None, :] + (step * z_after + z)
                s, s_c, s_1 = y.to(tl.float32), dy.to(tl.float32), z.to(tl.float32)
                if TAIL:  # a sum of too few terms can be negative; such a pair counts as r = 0
                    positive = s > 0.0
                    s, s_c, s_1 = tl.where(positive, s, 0.0), tl.where(positive, s_c, 0.0), tl.where(positive, s_1, 0.0)

                # r without its lengths is `s exponent`, and its slopes are `s_c exponent` and `s_1 exponent`.
                exponent = c * 0.0
                by_length = c * 0.0
                if TAIL:
                    _, steepness, R, room = _tail(c, mean1, rest1, mean2, rest2, lam, scale, depth, dim)
                    beyond = c < inside
                    exponent = steepness * (c - inside)
                    bend = scale * ((dim - 3.0 * R * R) * room + 2.0 * R * R * (dim - R * R)) / (room * room)
                    turn = (s_c - s * steepness) * (depth / tl.maximum(steepness * steepness, 1e-30)) + s * (c - inside)
                    by_length = tl.where(beyond, turn * bend * lam, 0.0) * mean2[None, :]
                    s_c = tl.where(beyond, s * steepness, s_c)
                else:
                    peak = _inner(
                        w1_ptr, stride1, at1, row_live, w2_ptr, stride2, at2, column_live, used, ROWS, COLUMNS
                    )
                    peak_1 = _inner(
                        d1_ptr, stride1, at1, row_live, w2_ptr, stride2, at2, column_live, used, ROWS, COLUMNS
                    )
                    least = floor * peak
                    least = least * least
                    square = s * s
                    root = tl.sqrt(square + 4.0 * least)
                    inverse = 1.0 / (least + square + 1e-38)
                    fade = least * inverse
                    above = tl.where(s > 0.0, 0.5 * (s + root), 2.0 * least / (root - s + 1e-38))
                    by_sum = above * (1.0 / (root + 1e-38) - 2.0 * tilt * fade * inverse * s * (inside - 1.0))
                    exponent = tilt * fade * (inside - 1.0)
                    peak = tl.where(tl.abs(peak) < 1e-30, 1e-30, peak)
                    s_1 = by_sum * s_1 + (above - by_sum * s) * (peak_1 / peak)
                    s_c = by_sum * s_c + above * tilt * fade
                    s = above
                length2 = tl.load(length2_ptr + at2, mask=column_live, other=0.0).to(tl.float32)
                live = column_live[None, :] & row_live[:, None]
                if OWN:
                    live = live & of_others(row, row_live, column, column_live, owner_ptr, SEVERAL)
                share = c * 0.0
                if OWN or not OF_COLUMNS:
                    share += grad1[:, None] * tl.exp(
                        tl.where(live, exponent + (length2[None, :] - total1[:, None]), -1e30)
                    )
                if OWN or OF_COLUMNS:
                    grad2 = tl.load(grad_ptr + at2, mask=column_live, other=0.0).to(tl.float32)
                    total2 = tl.load(totals_ptr + at2, mask=column_live, other=0.0).to(tl.float32)
                    share += grad2[None, :] * tl.exp(
                        tl.where(live, exponent + (length1[:, None] - total2[None, :]), -1e30)
                    )
                by_kappa += tl.sum(share * s_1, 1)
                if WEIGHTED:
                    by_weight += tl.sum(share * s, 1)
                if TAIL:
                    by_mean += tl.sum(share * by_length, 1)
                mu2 = tl.load(
                    mu2_ptr + at2[:, None] * dim + held[None, :],
                    mask=column_live[:, None] & (held < dim)[None, :],
                    other=0.0,
                )
                pull = tl.dot(share * s_c, mu2, pull, input_precision="tf32x3")
        if TAIL:
            by_kappa += by_mean * tl.load(mean_slope1_ptr + at1, mask=row_live, other=0.0).to(tl.float32)
        out = split.to(tl.int64) * stride1 + at1
        place = out[:, None] * dim + held[None, :]
        tl.store(grad_mu_ptr + place, pull, mask=row_live[:, None] & (held < dim)[None, :])
        if tl.program_id(2) == 0:
            tl.store(grad_kappa_ptr + out, by_kappa, mask=row_live)
            if WEIGHTED:
                tl.store(grad_weight_ptr + out, by_weight, mask=row_live)
