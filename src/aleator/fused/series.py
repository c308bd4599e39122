"""GPU version of matching/series.py: the series of expected positivity, in float64."""

from typing import Any

import torch
from torch import Tensor

from aleator.fused.triton_helpers import clip, on_device, on_its_own_device, polynomial, tl, triton

_BLOCK = 128
_ROWS, _TILE = 16, 16


@on_its_own_device
def fused_row_weights(
    order: float,
    kappa: Tensor,
    log_scale: Tensor,
    sign: Tensor | None,
    top: float,
    steps: int,
    start: tuple[float, ...],
    unused: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Fields of `RowWeights` (matching/series.py) for kappa of any shape.

    log_scale (terms,) is log(dim_n |lambda_n|)/2. The recurrence of `log_ratios_and_slopes` (special/bessel.py) starts
    at order `top`, where `start` holds the coefficients of Debye's G. If `unused` (an int32 scalar) is not 0, no
    one looks at the rows, and they are left out.
    """
    flat = kappa.contiguous().view(-1)
    terms, count = len(log_scale), flat.numel()
    weight, slope = (flat.new_empty(terms, count) for _ in range(2))
    log_length, mean, mean_slope = (torch.empty_like(flat) for _ in range(3))
    if count:
        _rows_kernel[(triton.cdiv(count, _ROWS),)](
            flat,
            on_device(start, flat.device),
            log_scale,
            log_scale if sign is None else sign,
            log_scale if unused is None else unused,
            weight,
            slope,
            log_length,
            mean,
            mean_slope,
            count,
            order,
            top,
            terms,
            steps,
            len(start),
            sign is not None,
            unused is not None,
            _ROWS,
            _TILE,
            num_warps=2,
        )
    tables = (x.view(terms, *kappa.shape).movedim(0, -1) for x in (weight, slope))
    return *tables, *(x.view(kappa.shape) for x in (log_length, mean, mean_slope))


@on_its_own_device
def fused_positivity_table(
    dim: int,
    cosine: Tensor,
    first: Any,
    second: Any,
    recurrences: Tensor,
    log_lam: Tensor,
    kappa_pos: float | Tensor | None,
    constants: tuple[float, float, float],
    slopes: bool,
) -> tuple[Tensor, ...]:
    """(log r,) or (log r, slope_cosine, slope_kappa1, slope_kappa2) at cosines (N, M) or (G, N, M).

    `first` and `second` are `RowWeights`. `recurrences` (5, terms) holds a and b of P_n, the factor of P_n', and a and
    b of the Q_{n-1} that this factor multiplies. `constants` are the depth, floor and tilt.
    """
    terms = len(log_lam)
    cosine = cosine.contiguous()
    out = [torch.empty_like(cosine) for _ in range(4 if slopes else 1)]
    sides: list = []
    for side in (first, second):
        weight, slope = (x.movedim(-1, 0).contiguous() for x in (side.weights, side.slopes))
        lengths = [x.contiguous() for x in (side.log_length, side.mean_length, side.mean_length_slope)]
        # index of a pair into the rows of this side: group * stride_0 + row * stride_1 + column * stride_2
        groups, height, width = (1, *side.log_length.shape)[-3:]
        strides = (height * width if groups > 1 else 0, width if height > 1 else 0, 1 if width > 1 else 0)
        sides += [weight, slope, *lengths, weight[0].numel(), *strides]
    if cosine.numel():
        _series_kernel[(triton.cdiv(cosine.numel(), _BLOCK),)](
            cosine,
            *sides,
            recurrences,
            log_lam,
            *(out if slopes else out * 4),
            cosine.numel(),
            cosine.shape[-2],
            cosine.shape[-1],
            terms,
            dim,
            0.0 if kappa_pos is None else float(kappa_pos),
            *constants,
            kappa_pos is not None,
            slopes,
            _BLOCK,
        )
    return tuple(out)


if triton is not None:

    @triton.jit
    def _rows_kernel(
        kappa_ptr, start_ptr, log_scale_ptr, sign_ptr, unused_ptr, weight_ptr, slope_ptr, length_ptr, mean_ptr,
        mean_slope_ptr, count, order, top, terms, steps, degree,
        SIGN: tl.constexpr, MAYBE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK posteriors.

        First down from the highest order, storing rho_n. Then up in tiles of terms: log w_n = log weight_n +
        sum_{j < n} log rho_j and the length of the row. Then up again: the scaled row and its slopes.
        """
        if MAYBE:
            used = (tl.load(unused_ptr) == 0).to(tl.int32)
            terms = terms * used
            steps = steps * used
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        kappa = tl.load(kappa_ptr + i, mask=live, other=1.0)
        if MAYBE:  # without terms nothing else writes it, and no sum may meet a NaN
            tl.store(mean_slope_ptr + i, kappa * 0.0, mask=live)
        kappa2 = kappa * kappa
        order = order.to(tl.float64)
        top = top.to(tl.float64)
        p = tl.sqrt(kappa2 + top * top)
        t = top / p
        G = polynomial(start_ptr, degree, t)
        y = kappa2 * (1.0 / (p + top) - G / (p * p))  # kappa * rho at the top
        for k in range(steps):
            j = steps - 1 - k
            y = kappa2 / (y + 2.0 * (order + j + 1.0))
            tl.store(slope_ptr + j * count + i, clip(y / kappa, 0.0, 1.0), mask=live & (j < terms))
        rho_0 = clip(y / kappa, 0.0, 1.0)
        tl.debug_barrier()

        n = tl.arange(0, TILE)
        total = tl.zeros([BLOCK], dtype=tl.float64)
        largest = tl.zeros([BLOCK], dtype=tl.float64) - 1e300
        for first in range(0, terms, TILE):
            inside = (first + n < terms)[:, None] & live[None, :]
            at = (first + n)[:, None] * count + i[None, :]
            log_rho = tl.log(tl.load(slope_ptr + at, mask=inside, other=1.0))
            log_w = tl.cumsum(log_rho, 0) - log_rho + total[None, :]
            log_w += tl.load(log_scale_ptr + first + n, mask=first + n < terms, other=-1e300)[:, None]
            tl.store(weight_ptr + at, log_w, mask=inside)
            total += tl.sum(log_rho, 0)
            largest = tl.maximum(largest, tl.max(tl.where(inside, log_w, -1e300), 0))
        tl.debug_barrier()

        squares = tl.zeros([BLOCK], dtype=tl.float64)
        for first in range(0, terms, TILE):
            inside = (first + n < terms)[:, None] & live[None, :]
            at = (first + n)[:, None] * count + i[None, :]
            log_w = tl.load(weight_ptr + at, mask=inside, other=-1e300)
            squares += tl.sum(tl.exp(2.0 * (log_w - largest[None, :])), 0)
        length = largest + 0.5 * tl.log(squares)

        for first in range(0, terms, TILE):
            inside = (first + n < terms)[:, None] & live[None, :]
            at = (first + n)[:, None] * count + i[None, :]
            weight = tl.exp(tl.load(weight_ptr + at, mask=inside, other=-1e300) - length[None, :])
            rho = tl.load(slope_ptr + at, mask=inside, other=0.0)
            if SIGN:
                weight *= tl.load(sign_ptr + first + n, mask=first + n < terms, other=1.0)[:, None]
            log_slope = rho - rho_0[None, :] + (first + n)[:, None] / kappa[None, :]
            second = inside & (first + n == 1)[:, None]
            tl.store(mean_slope_ptr + i[None, :] + 0 * n[:, None], rho_0[None, :] * log_slope, mask=second)
            tl.store(weight_ptr + at, weight, mask=inside)
            tl.store(slope_ptr + at, weight * log_slope, mask=inside)
        tl.store(length_ptr + i, length, mask=live)
        tl.store(mean_ptr + i, rho_0, mask=live)

    @triton.jit
    def _series_kernel(
        c_ptr,
        w1_ptr, d1_ptr, length1_ptr, mean1_ptr, mean_slope1_ptr, rows1, group1, row1, column1,
        w2_ptr, d2_ptr, length2_ptr, mean2_ptr, mean_slope2_ptr, rows2, group2, row2, column2,
        table_ptr, log_lam_ptr, log_r_ptr, slope_c_ptr, slope_1_ptr, slope_2_ptr,
        count, height, width, terms, dim, kappa_pos, depth, floor, tilt,
        TAIL: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One thread per pair: all sums over the terms in one loop, then the formulas of `plain_positivity_table`."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        group, row, column = i // (height * width), (i // width) % height, i % width
        i1 = group * group1 + row * row1 + column * column1
        i2 = group * group2 + row * row2 + column * column2
        kappa_pos = kappa_pos.to(tl.float64)
        floor = floor.to(tl.float64)
        c = clip(tl.load(c_ptr + i, mask=live, other=0.0), -1.0, 1.0)
        inside = c
        tail_slope = c
        a1, a2, lam, scale, tail_bend = c, c, c, c, c
        if TAIL:
            lam = tl.exp(tl.load(log_lam_ptr + 1))
            scale = kappa_pos * (1.0 - lam * lam) / (lam * (dim - lam * lam))
            a1 = tl.load(mean1_ptr + i1, mask=live, other=0.5)
            a2 = tl.load(mean2_ptr + i2, mask=live, other=0.5)
            R = tl.minimum(tl.maximum(lam * a1 * a2, 1e-150), 1.0 - 1e-15)
            R2 = R * R
            tail_slope = scale * R * (dim - R2) / (1.0 - R2)
            tail_bend = scale * ((dim - 3.0 * R2) * (1.0 - R2) + 2.0 * R2 * (dim - R2)) / ((1.0 - R2) * (1.0 - R2))
            inside = tl.maximum(c, 1.0 - depth / tail_slope)
        s, s_c, s_1, s_2 = c * 0.0, c * 0.0, c * 0.0, c * 0.0
        peak, peak_1, peak_2 = s, s, s
        P, before = s + 1.0, s
        Q, Q_before = P, s
        for n in range(terms):
            w1 = tl.load(w1_ptr + n * rows1 + i1, mask=live, other=0.0)
            w2 = tl.load(w2_ptr + n * rows2 + i2, mask=live, other=0.0)
            w = w1 * w2
            peak += w
            s += w * P
            if SLOPES:
                d1 = tl.load(d1_ptr + n * rows1 + i1, mask=live, other=0.0) * w2
                d2 = tl.load(d2_ptr + n * rows2 + i2, mask=live, other=0.0) * w1
                peak_1 += d1
                peak_2 += d2
                s_1 += d1 * P
                s_2 += d2 * P
                if n > 0:
                    s_c += w * Q * tl.load(table_ptr + 2 * terms + n)
                    following = (
                        tl.load(table_ptr + 3 * terms + n) * inside * Q - tl.load(table_ptr + 4 * terms + n) * Q_before
                    )
                    Q_before = Q
                    Q = following
            after = tl.load(table_ptr + n) * inside * P - tl.load(table_ptr + terms + n) * before
            before = P
            P = after
        u = s / peak
        root = tl.sqrt(u * u + 4.0 * floor * floor)
        fade = floor * floor / (floor * floor + u * u)
        length = tl.load(length1_ptr + i1, mask=live, other=0.0) + tl.load(length2_ptr + i2, mask=live, other=0.0)
        log_r = length + tl.log(peak) + tl.log((u + root) * 0.5) + tilt * fade * (inside - 1.0)
        if TAIL:
            log_r += tail_slope * (c - inside)
        tl.store(log_r_ptr + i, log_r, mask=live)
        if SLOPES:
            du = 1.0 / root - 2.0 * tilt * fade * fade * u / (floor * floor) * (inside - 1.0)
            slope_c = du * s_c / peak + tilt * fade
            slope_1 = (peak_1 + du * (s_1 - u * peak_1)) / peak
            slope_2 = (peak_2 + du * (s_2 - u * peak_2)) / peak
            if TAIL:
                beyond = c < inside
                moved = (
                    tl.where(beyond, (slope_c - tail_slope) * depth / (tail_slope * tail_slope) + (c - inside), 0.0)
                    * tail_bend
                    * lam
                )
                slope_1 += moved * a2 * tl.load(mean_slope1_ptr + i1, mask=live, other=0.0)
                slope_2 += moved * a1 * tl.load(mean_slope2_ptr + i2, mask=live, other=0.0)
                slope_c = tl.where(beyond, tail_slope, slope_c)
            tl.store(slope_c_ptr + i, slope_c, mask=live)
            tl.store(slope_1_ptr + i, slope_1, mask=live)
            tl.store(slope_2_ptr + i, slope_2, mask=live)
