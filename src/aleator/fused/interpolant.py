r"""GPU sums of expected positivity over negatives, log r from polynomials (matching/interpolant.py), in float32.

Both sides are sorted by kappa. Each program has some rows of one row class. For each column class it first writes what
its rows make of the polynomials,

    U_bk = sum_a G_abk T_a(z),

into a piece of memory of its own, for its slopes in kappa also the derivative of U. Then it goes through the columns of
the class: a pair takes V_k = U_0k + U_1k z' + U_2k z'^2 + U_3k z'^3 and Clenshaw's rule over k. No pair needs float64.

Matrix products take each float32 as two float16 (fused/float16_products.py). A program keeps the directions of its
rows, and loads those of its columns once, for the cosines and for the gradient.

Of a kernel without a tail, log r of far pairs, c < 1 - w, goes on as a straight line.

Pairs of classes that are not usable are left out here. fused/totals.py sums these, and only these.

The coefficients come from log r on a grid of nodes, in float64 (`fused_log_grid`). All pairs of nodes of two classes
share their cosines, so P_n(c) is made once for all of them, and a term of the series is an outer product: P_n at some
cosines times w_n w'_n of the pairs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aleator.fused.float16_products import (
    LARGEST_PART,
    UNIT,
    add_pull,
    cosines_of_halves,
    load_halves,
    shape_of_halves,
    split_directions,
)
from aleator.fused.totals import log_of_splits
from aleator.fused.triton_helpers import of_others, on_its_own_device, tl, triton

# Tiles and warps, forward and backward. The row counts divide matching/interpolant.py's CLASS_UNIT.
FORWARD = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}
BACKWARD = {"ROWS": 64, "COLUMNS": 32, "num_warps": 4}
MANY_DIMENSIONS = 256  # from here on tiles have half the columns, because directions and gradient take more room
_COSINES = 16  # of one program of the grid
PROGRAMS = 2112  # enough for every multiprocessor of a large GPU, several times


class SortedSide(NamedTuple):
    """One side on the device, in ascending order of kappa."""

    mu: Tensor  # (N, D) float32
    kappa: Tensor  # (N,) float64
    log_weights: Tensor | None  # (N,) float32, if rows are components of mixtures
    owner: Tensor | None  # (N,) int32: the posterior that a row belongs to, if it has several
    halves: Tensor  # (2, N, E) float16, mu as rows of a table, of `split_directions`
    column_halves: Tensor  # (2, N, E) float16, mu as columns


@on_its_own_device
def sorted_side(
    mu: Tensor, kappa: Tensor, log_weights: Tensor | None = None, owner: Tensor | None = None
) -> SortedSide:
    """A side from what is already in order."""
    return SortedSide(mu, kappa, log_weights, owner, *split_directions(mu))


@on_its_own_device
def fused_log_grid(
    weights: Tensor, log_length: Tensor, sign: Tensor, recurrence: Tensor, y: Tensor, half: Tensor, nodes: tuple
) -> Tensor:
    """log r without a floor, (K, P, a, Q, b).

    Args:
        weights: w_n of the rows' nodes and then of the columns', (P a + Q b, T) with T even.
        log_length: Their log lengths, (P a + Q b,).
        sign: Signs of lambda_n, (T,).
        recurrence: The factors of P_n and P_{n-1} in the recurrence of P_{n+1}, (2, T).
        y: Nodes in [-1, 1], (K,); the cosines are 1 - half (1 - y).
        half: (P, Q).
        nodes: a and b.
    """
    (P, Q), (a, b), terms = half.shape, nodes, weights.shape[1]
    weights = weights.movedim(-1, 0).contiguous()
    out = torch.empty(len(y), P, a, Q, b, dtype=torch.float64, device=half.device)
    _grid_kernel[(P * Q, triton.cdiv(len(y), _COSINES))](
        weights, log_length.contiguous(), sign, recurrence, y, half.contiguous(), out,
        weights.shape[1], P, Q, len(y), terms,
        A=a, B=b, COSINES=_COSINES, PAIRS=triton.next_power_of_2(a * b), num_warps=4,
    )  # fmt: skip
    return out


@on_its_own_device
def fused_interpolated_totals(
    like: Tensor,
    first: SortedSide,
    second: SortedSide,
    polynomials: Any,
    own: bool,
    scale: float,
    depth: float,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """log w_i + log sum_j w_j r_ij over the usable classes, (N,) float64; -1e30 for a row without any.

    `like` is any tensor on the device. `polynomials` is an `Interpolant` of the two sides, with a steepness if `depth`
    is above 0. `own`: both sides are the anchors, and none is its own negative. The second result is what `too_far`
    (matching/interpolant.py) needs of a kernel without a tail.
    """
    count, others = len(first.mu), len(second.mu)
    rows = FORWARD["ROWS"]
    blocks, splits = triton.cdiv(count, rows), _splits(count, rows, polynomials)
    shape = _shape(polynomials)
    scratch = like.new_empty(blocks * splits * (shape["K"] + 1) * 4 * rows, dtype=torch.float32)
    largest, total, far = (like.new_empty(splits, count, dtype=torch.float32) for _ in range(3))
    _interpolated_kernel[(blocks, splits)](
        first.halves, first.kappa, second.column_halves, _column_places(second, polynomials.columns, scale),
        polynomials.coefficients, polynomials.width, polynomials.slope, polynomials.usable, polynomials.degree,
        polynomials.rows.middle, polynomials.rows.half, _weights(first), _weights(second), _owner(first),
        scratch, largest, total, far,
        count, others, first.halves.shape[2], len(polynomials.rows.middle), len(polynomials.columns.middle),
        polynomials.rows.size, polynomials.columns.size, scale, depth,
        OWN=own, SEVERAL=first.owner is not None, WEIGHTS1=first.log_weights is not None,
        WEIGHTS2=second.log_weights is not None,
        TAIL=depth > 0, **shape_of_halves(first.mu.shape[1]), **shape, **_tile(FORWARD, first),
    )  # fmt: skip
    return log_of_splits(largest, total, None)[0], (largest, total, far)


@on_its_own_device
def fused_interpolated_backward(
    like: Tensor,
    grad: Tensor,
    totals: Tensor,
    first: SortedSide,
    second: SortedSide,
    polynomials: Any,
    own: bool,
    scale: float,
    depth: float,
    of_columns: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Over the usable classes: gradients in mu (S, N, D), kappa (S, N) and any log weights (S, N) of the rows.

    They are float32, in S splits.

    `grad` and `totals` are those of the anchors: of the rows, or of the columns with `of_columns`. With `own`
    the two sides are one, and the gradient is that of both.
    """
    count, others, dim = len(first.mu), len(second.mu), first.mu.shape[1]
    rows = BACKWARD["ROWS"]
    padded = first.halves.shape[2]
    held = min(padded, LARGEST_PART)
    parts = triton.cdiv(padded, held)
    blocks, splits = triton.cdiv(count, rows), _splits(count, rows, polynomials)
    shape = _shape(polynomials)
    scratch = like.new_empty(blocks * splits * parts * (shape["K"] + 1) * 8 * rows, dtype=torch.float32)
    grad_mu = like.new_empty(splits, count, dim, dtype=torch.float32)
    grad_kappa = like.new_empty(splits, count, dtype=torch.float32)
    grad_weight = grad_kappa if first.log_weights is None else torch.empty_like(grad_kappa)
    _interpolated_backward_kernel[(blocks, splits, parts)](
        grad, totals, first.halves, first.kappa, second.column_halves,
        _column_places(second, polynomials.columns, scale),
        polynomials.coefficients, polynomials.width, polynomials.slope, polynomials.usable, polynomials.degree,
        polynomials.rows.middle, polynomials.rows.half, _weights(first), _weights(second), _owner(first),
        scratch, grad_mu, grad_kappa, grad_weight,
        count, others, dim, padded, len(polynomials.rows.middle), len(polynomials.columns.middle),
        polynomials.rows.size, polynomials.columns.size, scale, depth,
        OWN=own, OF_COLUMNS=of_columns, SEVERAL=first.owner is not None, WEIGHTS1=first.log_weights is not None,
        WEIGHTS2=second.log_weights is not None,
        TAIL=depth > 0, HELD=held, UNIT=UNIT, **shape_of_halves(dim), **shape, **_tile(BACKWARD, first),
    )  # fmt: skip
    return grad_mu, grad_kappa, None if first.log_weights is None else grad_weight


def _tile(usual: dict[str, int], side: SortedSide) -> dict[str, int]:
    """Tile and warps for the dimension of a side."""
    if side.halves.shape[2] < MANY_DIMENSIONS:
        return usual
    return {**usual, "COLUMNS": usual["COLUMNS"] // 2}


def _weights(side: SortedSide) -> Tensor:
    """The log weights, or any tensor in their place."""
    return side.kappa if side.log_weights is None else side.log_weights


def _owner(side: SortedSide) -> Tensor:
    """The owners, or any tensor in their place."""
    return side.kappa if side.owner is None else side.owner


def _column_places(side: SortedSide, classes: Any, scale: float) -> Tensor:
    """z' of the columns in their classes, (M,) float32."""
    out = torch.empty_like(side.kappa, dtype=torch.float32)
    count = len(out)
    _places_kernel[(triton.cdiv(count, 128),)](
        side.kappa, classes.middle, classes.half, out, count, classes.size, scale, BLOCK=128
    )
    return out


def _splits(count: int, rows: int, polynomials: Any) -> int:
    """How many programs share the column classes of a block of rows."""
    return max(1, min(len(polynomials.columns.middle), PROGRAMS // triton.cdiv(count, rows)))


def _shape(polynomials: Any) -> dict[str, int]:
    """Numbers of nodes: K in the cosine, A in kappa. Those in kappa' are four."""
    return {"K": polynomials.cosine_nodes, "A": polynomials.coefficients.shape[2] - 1}


if triton is not None:

    @triton.jit
    def _grid_kernel(
        weight_ptr, length_ptr, sign_ptr, recurrence_ptr, y_ptr, half_ptr, out_ptr,
        count, classes1, classes2, cosines, terms,
        A: tl.constexpr, B: tl.constexpr, COSINES: tl.constexpr, PAIRS: tl.constexpr,
    ):  # fmt: skip
        """Each program: the nodes of two classes at COSINES cosines."""
        p, q = tl.program_id(0) // classes2, tl.program_id(0) % classes2
        k = tl.program_id(1) * COSINES + tl.arange(0, COSINES)
        m = tl.arange(0, PAIRS)
        live = m < A * B
        i1, i2 = p * A + m // B, classes1 * A + q * B + m % B
        c = 1.0 - tl.load(half_ptr + tl.program_id(0)) * (1.0 - tl.load(y_ptr + k, mask=k < cosines, other=1.0))
        now, before = c * 0.0 + 1.0, c * 0.0
        total = tl.zeros([COSINES, PAIRS], dtype=tl.float64)
        for half_n in range(terms // 2):
            for step in tl.static_range(2):  # two terms at a time, so that their loads overlap
                n = 2 * half_n + step
                w1 = tl.load(weight_ptr + n * count + i1, mask=live, other=0.0)
                w2 = tl.load(weight_ptr + n * count + i2, mask=live, other=0.0)
                total += now[:, None] * (w1 * w2 * tl.load(sign_ptr + n))[None, :]
                after = tl.load(recurrence_ptr + n) * c * now - tl.load(recurrence_ptr + terms + n) * before
                before = now
                now = after
        length = tl.load(length_ptr + i1, mask=live, other=0.0) + tl.load(length_ptr + i2, mask=live, other=0.0)
        # A sum that is not positive is lost in rounding. Its classes are then not usable.
        value = tl.log(tl.where(total < 1e-300, 1e-300, total)) + length[None, :]
        place = ((k[:, None] * classes1 + p) * A + (m // B)[None, :]) * (classes2 * B) + q * B + (m % B)[None, :]
        tl.store(out_ptr + place, value, mask=(k < cosines)[:, None] & live[None, :])

    @triton.jit
    def _places(kappa_ptr, at, live, scale, middle, half):
        """z of some posteriors in their class in float64, and its slope in kappa."""
        kappa = tl.load(kappa_ptr + at, mask=live, other=1.0)
        left = 1.0 / (1.0 + kappa / scale)  # 1 - kappa/(kappa + scale)
        return tl.where(live, (1.0 - left - middle) / half, 0.0), left * left / (scale * half)

    @triton.jit
    def _places_kernel(kappa_ptr, middle_ptr, half_ptr, out_ptr, count, size, scale, BLOCK: tl.constexpr):
        """One thread per posterior."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        middle = tl.load(middle_ptr + i // size, mask=live, other=0.0)
        half = tl.load(half_ptr + i // size, mask=live, other=1.0)
        place, _ = _places(kappa_ptr, i, live, scale, middle, half)
        tl.store(out_ptr + i, place.to(tl.float32), mask=live)

    @triton.jit
    def _write(out_ptr, table_ptr, m, live, z, slope, local, plane, step, A: tl.constexpr, SLOPES: tl.constexpr,
               SLOPE_AT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
        """U of WIDE pairs of b and k, for the rows z; its slopes SLOPE_AT behind it."""
        here = table_ptr + m // 4 * plane + m % 4
        value = tl.zeros([ROWS, WIDE], dtype=tl.float64)
        rise = tl.zeros([ROWS, WIDE], dtype=tl.float64)
        now, before = z * 0.0 + 1.0, z
        d_now, d_before = z * 0.0, z * 0.0 + 1.0  # T_{-1} = T_1, so that the recurrence gives T_1
        for a in tl.static_range(A):
            g = tl.load(here + a * step, mask=live, other=0.0)
            value += now[:, None] * g[None, :]
            if SLOPES:
                rise += d_now[:, None] * g[None, :]
            after = 2.0 * z * now - before
            d_after = 2.0 * (now + z * d_now) - d_before
            before, d_before = now, d_now
            now, d_now = after, d_after
        place = out_ptr + m[None, :] * ROWS + local[:, None]
        tl.store(place, value.to(tl.float32), mask=live[None, :] & (local >= 0)[:, None])
        if SLOPES:
            rise = rise * slope[:, None]
            tl.store(place + SLOPE_AT, rise.to(tl.float32), mask=live[None, :] & (local >= 0)[:, None])

    @triton.jit
    def _write_rows(out_ptr, coefficients_ptr, degree, z, slope, p, q, classes1, classes2, local, TAIL: tl.constexpr,
                    SLOPES: tl.constexpr, K: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
        """All of U for a column class. The steepness of the tail comes last, as number K."""
        step = classes2 * 5
        plane = classes1 * (A + 1) * step
        table = coefficients_ptr + p * (A + 1) * step + q * 5
        behind: tl.constexpr = (K + 1) * 4 * ROWS
        for start in range(0, degree * 4, 16):
            m = start + tl.arange(0, 16)
            _write(out_ptr, table, m, m < degree * 4, z, slope, local, plane, step, A, SLOPES, behind, ROWS, 16)
        if TAIL:  # behind the K coefficients and the check
            m = tl.arange(0, 4)
            steepness = table + (K + 1) * plane
            _write(
                out_ptr + K * 4 * ROWS, steepness, m, m < 4, z, slope, local, plane, step, A, SLOPES, behind, ROWS, 4
            )

    @triton.jit
    def _mix(table_ptr, k, local, v, ROWS: tl.constexpr):
        """V_k of a tile: a cubic in z' with coefficients of the rows."""
        here = table_ptr + k * (4 * ROWS) + local
        u0, u1 = tl.load(here), tl.load(here + ROWS)
        u2, u3 = tl.load(here + 2 * ROWS), tl.load(here + 3 * ROWS)
        return u0[:, None] + v[None, :] * (u1[:, None] + v[None, :] * (u2[:, None] + v[None, :] * u3[:, None]))

    @triton.jit
    def _interpolated_kernel(
        halves1_ptr, kappa1_ptr, halves2_ptr, place2_ptr, coefficients_ptr, width_ptr, slope_ptr, usable_ptr,
        degree_ptr, middle1_ptr, half1_ptr, weight1_ptr, weight2_ptr, owner_ptr, scratch_ptr, largest_ptr, total_ptr,
        far_ptr, count, others, padded, classes1, classes2, size1, size2, scale, depth,
        OWN: tl.constexpr, SEVERAL: tl.constexpr, WEIGHTS1: tl.constexpr, WEIGHTS2: tl.constexpr, TAIL: tl.constexpr,
        PART: tl.constexpr, WHOLE: tl.constexpr, WITH_LOW: tl.constexpr, SCALE: tl.constexpr, K: tl.constexpr,
        A: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS anchors and a share of the column classes. A running logsumexp."""
        block, split = tl.program_id(0), tl.program_id(1)
        splits = tl.num_programs(1)
        local = tl.arange(0, ROWS)
        row = block * ROWS + local
        row_live = row < count
        p = block * ROWS // size1
        scratch = scratch_ptr + (split * tl.num_programs(0) + block).to(tl.int64) * ((K + 1) * 4 * ROWS)
        z, slope = _places(kappa1_ptr, row, row_live, scale, tl.load(middle1_ptr + p), tl.load(half1_ptr + p))
        high1, low1 = load_halves(halves1_ptr, row, row_live, 0, count, padded, PART)
        largest = tl.zeros([ROWS], dtype=tl.float32) - 1e30
        total = tl.zeros([ROWS], dtype=tl.float32)
        far = tl.zeros([ROWS], dtype=tl.float32)
        for q in range(split, classes2, splits):
            if tl.load(usable_ptr + p * classes2 + q) != 0:
                degree = tl.load(degree_ptr + p * classes2 + q)
                width = tl.load(width_ptr + p * classes2 + q)
                stretch = (2.0 / width).to(tl.float32)
                start_far = (1.0 - width).to(tl.float32)
                slope_far = tl.load(slope_ptr + p * classes2 + q).to(tl.float32)
                tl.debug_barrier()
                _write_rows(scratch, coefficients_ptr, degree, z, slope, p, q, classes1, classes2, local,
                            TAIL, False, K, A, ROWS)  # fmt: skip
                tl.debug_barrier()
                for start in range(q * size2, tl.minimum((q + 1) * size2, others), COLUMNS):
                    column = start + tl.arange(0, COLUMNS)
                    column_live = column < others
                    high2, low2 = load_halves(halves2_ptr, column, column_live, 0, others, padded, PART)
                    c = cosines_of_halves(
                        high1, low1, high2, low2, halves1_ptr, halves2_ptr, row, row_live, column, column_live, count,
                        others, padded, PART, WHOLE, WITH_LOW, SCALE,
                    )  # fmt: skip
                    v = tl.load(place2_ptr + column, mask=column_live, other=0.0)
                    if TAIL:
                        steepness = tl.maximum(_mix(scratch, K, local, v, ROWS), 1e-20)
                        root = tl.rsqrt(steepness)
                        inside = tl.maximum(c, 1.0 - depth * (root * root))
                        beyond = steepness * (c - inside)
                    else:
                        inside = tl.maximum(c, start_far)
                        beyond = slope_far * (c - inside)
                    y = 1.0 - stretch * (1.0 - inside)
                    twice = y + y
                    now, after = c * 0.0, c * 0.0
                    for j in range(degree // 2):  # two terms at a time, so that no register is moved
                        k = degree - 1 - 2 * j
                        after = twice * now + (_mix(scratch, k, local, v, ROWS) - after)
                        now = twice * after + (_mix(scratch, k - 1, local, v, ROWS) - now)
                    value = now - y * after + beyond
                    if WEIGHTS2:
                        value += tl.load(weight2_ptr + column, mask=column_live, other=0.0)[None, :]
                    value = tl.where(column_live[None, :], value, -float("inf"))
                    if OWN:
                        apart = of_others(row, row_live, column, column_live, owner_ptr, SEVERAL)
                        value = tl.where(apart, value, -float("inf"))
                    larger = tl.maximum(largest, tl.max(value, 1))
                    part = tl.exp(value - larger[:, None])
                    total = total * tl.exp(largest - larger) + tl.sum(part, 1)
                    if not TAIL:
                        far = far * tl.exp(largest - larger) + tl.sum(tl.where(c < inside, part, 0.0), 1)
                    largest = larger
        if WEIGHTS1:
            largest += tl.load(weight1_ptr + row, mask=row_live, other=0.0)
        out = split.to(tl.int64) * count + row
        tl.store(largest_ptr + out, largest, mask=row_live)
        tl.store(total_ptr + out, total, mask=row_live)
        if not TAIL:
            tl.store(far_ptr + out, far, mask=row_live)

    @triton.jit
    def _interpolated_backward_kernel(
        grad_ptr, totals_ptr, halves1_ptr, kappa1_ptr, halves2_ptr, place2_ptr,
        coefficients_ptr, width_ptr, slope_ptr, usable_ptr, degree_ptr, middle1_ptr, half1_ptr,
        weight1_ptr, weight2_ptr, owner_ptr, scratch_ptr, grad_mu_ptr, grad_kappa_ptr, grad_weight_ptr,
        count, others, dim, padded, classes1, classes2, size1, size2, scale, depth,
        OWN: tl.constexpr, OF_COLUMNS: tl.constexpr, SEVERAL: tl.constexpr, WEIGHTS1: tl.constexpr,
        WEIGHTS2: tl.constexpr, TAIL: tl.constexpr, HELD: tl.constexpr, UNIT: tl.constexpr,
        PART: tl.constexpr, WHOLE: tl.constexpr, WITH_LOW: tl.constexpr, SCALE: tl.constexpr, K: tl.constexpr,
        A: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS posteriors, a share of the column classes, and HELD dimensions of mu."""
        block, split, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        splits = tl.num_programs(1)
        held = part * HELD + tl.arange(0, HELD)
        local = tl.arange(0, ROWS)
        row = block * ROWS + local
        row_live = row < count
        p = block * ROWS // size1
        behind: tl.constexpr = (K + 1) * 4 * ROWS
        program = (part * splits + split) * tl.num_programs(0) + block
        scratch = scratch_ptr + program.to(tl.int64) * (2 * behind)
        z, slope = _places(kappa1_ptr, row, row_live, scale, tl.load(middle1_ptr + p), tl.load(half1_ptr + p))
        grad1, total1 = slope.to(tl.float32), slope.to(tl.float32)
        if OWN or not OF_COLUMNS:
            grad1 = tl.load(grad_ptr + row, mask=row_live, other=0.0).to(tl.float32)
            total1 = tl.load(totals_ptr + row, mask=row_live, other=0.0).to(tl.float32)
        high1, low1 = load_halves(halves1_ptr, row, row_live, 0, count, padded, PART)
        pull = tl.zeros([ROWS, HELD], dtype=tl.float32)
        top = tl.zeros([ROWS], dtype=tl.float32) + 2.0**-100
        by_kappa = tl.zeros([ROWS], dtype=tl.float32)
        by_weight = tl.zeros([ROWS], dtype=tl.float32)
        weight1 = tl.zeros([ROWS], dtype=tl.float32)
        if WEIGHTS1:
            weight1 = tl.load(weight1_ptr + row, mask=row_live, other=0.0)
        for q in range(split, classes2, splits):
            if tl.load(usable_ptr + p * classes2 + q) != 0:
                degree = tl.load(degree_ptr + p * classes2 + q)
                width = tl.load(width_ptr + p * classes2 + q)
                stretch = (2.0 / width).to(tl.float32)
                start_far = (1.0 - width).to(tl.float32)
                slope_far = tl.load(slope_ptr + p * classes2 + q).to(tl.float32)
                tl.debug_barrier()
                _write_rows(scratch, coefficients_ptr, degree, z, slope, p, q, classes1, classes2, local,
                            TAIL, True, K, A, ROWS)  # fmt: skip
                tl.debug_barrier()
                for start in range(q * size2, tl.minimum((q + 1) * size2, others), COLUMNS):
                    column = start + tl.arange(0, COLUMNS)
                    column_live = column < others
                    high2, low2 = load_halves(halves2_ptr, column, column_live, 0, others, padded, PART)
                    c = cosines_of_halves(
                        high1, low1, high2, low2, halves1_ptr, halves2_ptr, row, row_live, column, column_live, count,
                        others, padded, PART, WHOLE, WITH_LOW, SCALE,
                    )  # fmt: skip
                    v = tl.load(place2_ptr + column, mask=column_live, other=0.0)
                    if TAIL:
                        root = tl.rsqrt(tl.maximum(_mix(scratch, K, local, v, ROWS), 1e-20))
                        inside = tl.maximum(c, 1.0 - depth * (root * root))
                    else:
                        inside = tl.maximum(c, start_far)
                    y = 1.0 - stretch * (1.0 - inside)
                    twice = y + y
                    now, after, d_now, d_after = c * 0.0, c * 0.0, c * 0.0, c * 0.0
                    e_now, e_after = c * 0.0, c * 0.0
                    for j in range(degree // 2):
                        k = degree - 1 - 2 * j
                        d_after = twice * d_now + (2.0 * now - d_after)
                        after = twice * now + (_mix(scratch, k, local, v, ROWS) - after)
                        e_after = twice * e_now + (_mix(scratch + behind, k, local, v, ROWS) - e_after)
                        d_now = twice * d_after + (2.0 * after - d_now)
                        now = twice * after + (_mix(scratch, k - 1, local, v, ROWS) - now)
                        e_now = twice * e_after + (_mix(scratch + behind, k - 1, local, v, ROWS) - e_now)
                    value = now - y * after
                    by_c = (d_now - y * d_after - after) * stretch
                    by_k = e_now - y * e_after
                    if TAIL:
                        steepness = tl.maximum(_mix(scratch, K, local, v, ROWS), 1e-20)
                        start = tl.rsqrt(steepness)
                        start = start * start
                        steeper = _mix(scratch + behind, K, local, v, ROWS)
                        outside = c < inside
                        value += steepness * (c - inside)
                        # A steeper tail turns about its start, and its start moves.
                        turn = (by_c - steepness) * (depth * start * start) + (c - inside)
                        by_k += tl.where(outside, turn * steeper, 0.0)
                        by_c = tl.where(outside, steepness, by_c)
                    else:
                        value += slope_far * (c - inside)
                        by_c = tl.where(c < inside, slope_far, by_c)
                    if WEIGHTS1:
                        value += weight1[:, None]
                    if WEIGHTS2:
                        value += tl.load(weight2_ptr + column, mask=column_live, other=0.0)[None, :]
                    live = column_live[None, :] & row_live[:, None]
                    if OWN:
                        live = live & of_others(row, row_live, column, column_live, owner_ptr, SEVERAL)
                    share = c * 0.0
                    if OWN or not OF_COLUMNS:
                        share += grad1[:, None] * tl.exp(tl.where(live, value - total1[:, None], -1e30))
                    if OWN or OF_COLUMNS:
                        grad2 = tl.load(grad_ptr + column, mask=column_live, other=0.0).to(tl.float32)
                        total2 = tl.load(totals_ptr + column, mask=column_live, other=0.0).to(tl.float32)
                        share += grad2[None, :] * tl.exp(tl.where(live, value - total2[None, :], -1e30))
                    by_kappa += tl.sum(share * by_k, 1)
                    if WEIGHTS1:
                        by_weight += tl.sum(share, 1)
                    if not WHOLE:
                        high2, low2 = load_halves(halves2_ptr, column, column_live, part * HELD, others, padded, HELD)
                    pull, top = add_pull(pull, top, share * by_c, high2, low2, UNIT)
        pull = pull * (top / (UNIT * SCALE))[:, None]
        out = split.to(tl.int64) * count + row
        tl.store(grad_mu_ptr + out[:, None] * dim + held[None, :], pull, mask=row_live[:, None] & (held < dim)[None, :])
        if part == 0:
            tl.store(grad_kappa_ptr + out, by_kappa, mask=row_live)
            if WEIGHTS1:
                tl.store(grad_weight_ptr + out, by_weight, mask=row_live)
