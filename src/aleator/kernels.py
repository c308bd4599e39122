"""The GPU's versions of plain functions, as Triton kernels.

    series.plain_rows and series.plain_log_series, in float64 as there: the plain ones launch some
    hundreds of small kernels, which in a training step is all the time there is;
    bessel.plain_log_growth, in float64 and for the same reason;
    vmf.plain_sample and its backward, in the samples' dtype: the plain ones pass ten times over them;
    encounters.plain_cosines and its backward, likewise; the noise is drawn as it is needed and never stored.

The tests marked `gpu` hold the two versions equal.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch comes without Triton
    triton = None

_BLOCK = 128
_ROWS, _TILE = 16, 16
_PROGRAMS = 2048


def triton_available() -> bool:
    return triton is not None


def fused_rows(
    order: float,
    kappa: Tensor,
    log_weight: Tensor,
    sign: Tensor | None,
    top: float,
    steps: int,
    start: tuple[float, ...],
) -> tuple[Tensor, ...]:
    """The fields of series.Rows for kappa of any shape, with log_weight = log(dim_n |lambda_n|)/2 (terms,).

    The recurrence of bessel.log_ratios_and_slopes starts at order `top`, where `start` is Debye's G.
    """
    flat = kappa.contiguous().view(-1)
    terms, count = len(log_weight), flat.numel()
    weight, slope = (flat.new_empty(terms, count) for _ in range(2))
    log_length, mean, mean_slope = (torch.empty_like(flat) for _ in range(3))
    if count:
        _rows_kernel[(triton.cdiv(count, _ROWS),)](
            flat,
            _on_device(start, flat.device),
            log_weight,
            log_weight if sign is None else sign,
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
            _ROWS,
            _TILE,
            num_warps=2,
        )
    tables = (x.view(terms, *kappa.shape).movedim(0, -1) for x in (weight, slope))
    return *tables, *(x.view(kappa.shape) for x in (log_length, mean, mean_slope))


def fused_log_growth(
    order: float,
    kappa: Tensor,
    steps: int,
    value_start: tuple[float, ...],
    ratio_start: tuple[float, ...],
    largest: float,
) -> tuple[Tensor, Tensor]:
    """bessel.log_growth and its derivative, for kappa of any shape.

    The recurrence takes `steps` down to `order` from where `value_start` and `ratio_start` are Debye's polynomials E
    and G; beyond `largest`, the leading term is exact.
    """
    flat = kappa.double().contiguous().view(-1)
    top = order + steps
    # Through memory, because Triton takes a float argument for a float32.
    scalars = (top, 2 * (top + 1), 2 * (order + 1), largest)
    factors = tuple(1 / (4 * v * (v + 1)) for v in (order + j for j in range(steps, 0, -1)))
    value, ratio = torch.empty_like(flat), torch.empty_like(flat)
    if flat.numel():
        with torch.cuda.device_of(flat):  # Triton launches on the current device
            _log_growth_kernel[(triton.cdiv(flat.numel(), _BLOCK),)](
                flat,
                _on_device((*scalars, *value_start, *ratio_start, *factors), flat.device),
                value,
                ratio,
                flat.numel(),
                len(value_start),
                len(ratio_start),
                steps,
                _BLOCK,
            )
    return value.view(kappa.shape), ratio.view(kappa.shape)


def fused_log_series(
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
    """(log r,) or (log r, slope_c, slope_1, slope_2) at cosines (N, M) or (G, N, M).

    `first` and `second` are series.Rows; `recurrences` (5, terms) holds a, b of P_n, the factor of P_n', and a, b of
    the Q_{n-1} that it multiplies; `constants` are the depth, floor and tilt.
    """
    terms = len(log_lam)
    cosine = cosine.contiguous()
    out = [torch.empty_like(cosine) for _ in range(4 if slopes else 1)]
    sides: list = []
    for side in (first, second):
        weight, slope = (x.movedim(-1, 0).contiguous() for x in (side.weight, side.slope))
        lengths = [x.contiguous() for x in (side.log_length, side.mean, side.mean_slope)]
        # a pair's index into this side's rows: group * stride_0 + row * stride_1 + column * stride_2
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


def fused_sample(
    z: Tensor, mu: Tensor, value: Tensor, slope: Tensor | None, first: float, spacing: float
) -> Tensor | None:
    """Turns the noise z (K, B, D) into samples, in place; with slopes, returns d(theta)/dkappa / sin(theta), (K, B).

    `value` and `slope` (B, intervals, 4) are the rows of quantile.AngleTable.
    """
    count, dim = z.shape[0] * z.shape[1], z.shape[2]
    kept = z.new_empty(z.shape[:2]) if slope is not None else None
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    if count:
        _sample_kernel[(triton.cdiv(count, block),)](
            z,
            mu.contiguous(),
            value.contiguous(),
            value if slope is None else slope.contiguous(),
            z if kept is None else kept,
            count,
            z.shape[1],
            dim,
            value.shape[1],
            first,
            1 / spacing,
            slope is not None,
            width,
            block,
        )
    return kept


def fused_sample_backward(grad: Tensor, z: Tensor, mu: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients in mu (B, D) and kappa (B,), summed over the samples (K, B, D)."""
    samples, batch, dim = z.shape
    width = triton.next_power_of_2(dim)
    block = max(1, 512 // width)
    rows = triton.cdiv(batch, block)
    # A program sums a stretch of the samples; enough of them to fill the device, each with enough to do.
    parts = max(1, min(samples // 8, _PROGRAMS // max(rows, 1)))
    grad_mu, grad_kappa = mu.new_zeros(parts, batch, dim), mu.new_zeros(parts, batch)
    if z.numel():
        _sample_backward_kernel[(rows, parts)](
            grad.contiguous(),
            z,
            mu.contiguous(),
            z if slope is None else slope,
            grad_mu,
            grad_kappa,
            samples,
            triton.cdiv(samples, parts),
            batch,
            dim,
            slope is not None,
            width,
            block,
        )
    return grad_mu.sum(0), grad_kappa.sum(0)


def fused_cosines(
    z: Tensor, mu: Tensor, kappa: Tensor, noise: Any, table: Any, slopes: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """z.z' of z (K, B, D) with samples of posteriors (B, M), and its slopes in c and kappa; (K, B, M) each, k fastest.

    `noise` is a seed on the device, or the noise itself as encounters.draw_noise gives it.
    """
    samples, _, dim = z.shape
    value, bend = table.rows(kappa.reshape(-1), slopes)
    drawn = isinstance(noise, Tensor)
    first, sigma = (noise, noise) if drawn else (x.permute(1, 2, 0).contiguous() for x in noise)
    out = [z.new_empty(*kappa.shape, samples) for _ in range(3 if slopes else 2)]
    width = triton.next_power_of_2(dim)
    block = min(triton.next_power_of_2(samples), max(1, 2048 // width))
    if out[0].numel():
        _cosines_kernel[(kappa.numel(), triton.cdiv(samples, block))](
            z.transpose(0, 1).contiguous(),
            mu.contiguous(),
            value.contiguous(),
            value if bend is None else bend.contiguous(),
            first,
            sigma,
            out[0],
            out[1],
            out[-1],
            samples,
            kappa.shape[1],
            dim,
            (dim - 2) // 2,
            value.shape[1],
            table.first,
            1 / table.spacing,
            drawn,
            slopes,
            width,
            block,
        )
    cosine, turn, *slope = (x.permute(2, 0, 1) for x in out)
    return cosine, turn, slope[0] if slope else None


def fused_cosines_backward(
    grad: Tensor, z: Tensor, mu: Tensor, turn: Tensor, slope: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    samples, batch, dim = z.shape
    negatives = mu.shape[1]
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    grad, turn = (x.permute(1, 2, 0).contiguous() for x in (grad, turn))
    z, mu = z.transpose(0, 1).contiguous(), mu.contiguous()
    grad_z = torch.zeros_like(z)
    grad_mu, grad_kappa = torch.zeros_like(mu), mu.new_zeros(batch, negatives)
    if grad.numel() and needed[0]:
        _encounter_kernel[(batch, triton.cdiv(samples, block))](
            grad, turn, mu, grad_z, samples, negatives, dim, width, block
        )
    if grad.numel() and (needed[1] or slope is not None):
        slope = None if slope is None else slope.permute(1, 2, 0).contiguous()
        _others_kernel[(batch * negatives,)](
            grad, turn, turn if slope is None else slope, z, grad_mu, grad_kappa,
            samples, negatives, dim, needed[1], slope is not None, width, block,
        )  # fmt: skip
    return (
        grad_z.transpose(0, 1) if needed[0] else None,
        grad_mu if needed[1] else None,
        None if slope is None else grad_kappa,
    )


@lru_cache(maxsize=1024)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


if triton is not None:

    @triton.jit
    def _polynomial(coefficients_ptr, count, x):
        """c_0 + c_1 x + ... by Horner's rule, from a pointer to c_0 or one for each x."""
        value = x * 0.0 + tl.load(coefficients_ptr + (count - 1))  # of x's shape, and of the wider of the two dtypes
        for j in range(2, count + 1):
            value = value * x + tl.load(coefficients_ptr + (count - j))
        return value

    @triton.jit
    def _clip(x, low, high):
        """Into an interval. `minimum` and `maximum` would hide a NaN."""
        return tl.where(x < low, low, tl.where(x > high, high, x))

    @triton.jit
    def _log1p(x):
        """log(1 + x) for x >= 0; what rounding 1 + x has lost comes back to first order."""
        u = 1.0 + x
        return tl.log(u) + (x - (u - 1.0)) / u

    @triton.jit
    def _rows_kernel(
        kappa_ptr, start_ptr, log_weight_ptr, sign_ptr, weight_ptr, slope_ptr, length_ptr, mean_ptr, mean_slope_ptr,
        count, order, top, terms, steps, degree, SIGN: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """BLOCK posteriors a program: down from the highest order, storing rho_n; then up, in tiles of terms, first to
        log w_n = log weight_n + sum_{j < n} log rho_j and the row's length, then to the scaled row and its slopes."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        kappa = tl.load(kappa_ptr + i, mask=live, other=1.0)
        kappa2 = kappa * kappa
        order = order.to(tl.float64)
        top = top.to(tl.float64)
        p = tl.sqrt(kappa2 + top * top)
        t = top / p
        G = _polynomial(start_ptr, degree, t)
        y = kappa2 * (1.0 / (p + top) - G / (p * p))  # kappa * rho at the top
        for k in range(steps):
            j = steps - 1 - k
            y = kappa2 / (y + 2.0 * (order + j + 1.0))
            tl.store(slope_ptr + j * count + i, _clip(y / kappa, 0.0, 1.0), mask=live & (j < terms))
        rho_0 = _clip(y / kappa, 0.0, 1.0)
        tl.debug_barrier()

        n = tl.arange(0, TILE)
        total = tl.zeros([BLOCK], dtype=tl.float64)
        largest = tl.zeros([BLOCK], dtype=tl.float64) - 1e300
        for first in range(0, terms, TILE):
            inside = (first + n < terms)[:, None] & live[None, :]
            at = (first + n)[:, None] * count + i[None, :]
            log_rho = tl.log(tl.load(slope_ptr + at, mask=inside, other=1.0))
            log_w = tl.cumsum(log_rho, 0) - log_rho + total[None, :]
            log_w += tl.load(log_weight_ptr + first + n, mask=first + n < terms, other=-1e300)[:, None]
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
    def _log_growth_kernel(
        kappa_ptr, table_ptr, value_ptr, ratio_ptr, count, value_degree, ratio_degree, steps, BLOCK: tl.constexpr
    ):
        """One thread per kappa: bessel._debye and the recurrence of bessel.plain_log_growth."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        given = tl.load(kappa_ptr + i, mask=live, other=1.0)
        top, above_scale = tl.load(table_ptr), tl.load(table_ptr + 1)
        ratio_scale, largest = tl.load(table_ptr + 2), tl.load(table_ptr + 3)
        value_ptrs = table_ptr + 4
        ratio_ptrs = value_ptrs + value_degree
        factor_ptrs = ratio_ptrs + ratio_degree

        kappa = _clip(given, 0.0, largest)
        kappa2 = kappa * kappa
        p = tl.sqrt(kappa2 + top * top)
        t = top / p
        excess = kappa / (p + top) * kappa / top
        growth = _polynomial(value_ptrs, value_degree, t) + top * excess - top * _log1p(excess * 0.5)
        growth += 0.5 * tl.log(t)
        f = kappa * 0.0 + 1.0
        above = (1.0 / (p + top) - _polynomial(ratio_ptrs, ratio_degree, t) / p / p) * above_scale
        for k in range(steps):
            following = f + tl.load(factor_ptrs + k) * kappa2 * above
            above = f
            f = following
            if (steps - k) % 10 == 1:
                growth += tl.log(f)
                above = above / f
                f = f * 0.0 + 1.0
        ratio = above / ratio_scale * kappa
        growth = tl.where(growth < 0.0, 0.0, growth)
        tl.store(value_ptr + i, tl.where(given > largest, given, growth), mask=live)
        tl.store(ratio_ptr + i, tl.where(ratio > 1.0, 1.0, ratio), mask=live)

    @triton.jit
    def _series_kernel(
        c_ptr,
        w1_ptr, d1_ptr, length1_ptr, mean1_ptr, turn1_ptr, rows1, group1, row1, column1,
        w2_ptr, d2_ptr, length2_ptr, mean2_ptr, turn2_ptr, rows2, group2, row2, column2,
        table_ptr, log_lam_ptr, log_r_ptr, slope_c_ptr, slope_1_ptr, slope_2_ptr,
        count, height, width, terms, dim, kappa_pos, depth, floor, tilt,
        LINE: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One thread per pair: the sums of series._sums and series._inner together, then series.plain_log_series."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        group, row, column = i // (height * width), (i // width) % height, i % width
        i1 = group * group1 + row * row1 + column * column1
        i2 = group * group2 + row * row2 + column * column2
        kappa_pos = kappa_pos.to(tl.float64)
        floor = floor.to(tl.float64)
        c = _clip(tl.load(c_ptr + i, mask=live, other=0.0), -1.0, 1.0)
        inside = c
        line = c
        a1, a2, lam, scale, turn = c, c, c, c, c
        if LINE:
            lam = tl.exp(tl.load(log_lam_ptr + 1))
            scale = kappa_pos * (1.0 - lam * lam) / (lam * (dim - lam * lam))
            a1 = tl.load(mean1_ptr + i1, mask=live, other=0.5)
            a2 = tl.load(mean2_ptr + i2, mask=live, other=0.5)
            R = tl.minimum(tl.maximum(lam * a1 * a2, 1e-150), 1.0 - 1e-15)
            R2 = R * R
            line = scale * R * (dim - R2) / (1.0 - R2)
            turn = scale * ((dim - 3.0 * R2) * (1.0 - R2) + 2.0 * R2 * (dim - R2)) / ((1.0 - R2) * (1.0 - R2))
            inside = tl.maximum(c, 1.0 - depth / line)
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
        if LINE:
            log_r += line * (c - inside)
        tl.store(log_r_ptr + i, log_r, mask=live)
        if SLOPES:
            du = 1.0 / root - 2.0 * tilt * fade * fade * u / (floor * floor) * (inside - 1.0)
            slope_c = du * s_c / peak + tilt * fade
            slope_1 = (peak_1 + du * (s_1 - u * peak_1)) / peak
            slope_2 = (peak_2 + du * (s_2 - u * peak_2)) / peak
            if LINE:
                beyond = c < inside
                moved = tl.where(beyond, (slope_c - line) * depth / (line * line) + (c - inside), 0.0) * turn * lam
                slope_1 += moved * a2 * tl.load(turn1_ptr + i1, mask=live, other=0.0)
                slope_2 += moved * a1 * tl.load(turn2_ptr + i2, mask=live, other=0.0)
                slope_c = tl.where(beyond, line, slope_c)
            tl.store(slope_c_ptr + i, slope_c, mask=live)
            tl.store(slope_1_ptr + i, slope_1, mask=live)
            tl.store(slope_2_ptr + i, slope_2, mask=live)

    @triton.jit
    def _interval(sigma, first, per_node, intervals):
        """Where quantile.AngleTable keeps sigma: the interval, and the place in it for its cubic."""
        position = tl.minimum(tl.maximum((sigma - first) * per_node, 0.0), intervals * 1.0)
        interval = tl.minimum(position.to(tl.int32), intervals - 1)
        return interval, position - interval

    @triton.jit
    def _sample_kernel(
        z_ptr, mu_ptr, value_ptr, slope_ptr, kept_ptr, count, batch, dim, intervals, first, per_node,
        SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """BLOCK samples a program: the part of the noise orthogonal to mu, its length, the angle, the sample."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = i < count
        inside = live[:, None] & (d < dim)[None, :]
        at = i.to(tl.int64)[:, None] * dim + d[None, :]
        row = i % batch
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        mu = tl.load(mu_ptr + row[:, None] * dim + d[None, :], mask=inside, other=0.0)
        z -= tl.sum(z * mu, 1)[:, None] * mu
        sigma = tl.sqrt(tl.sum(z * z, 1))
        interval, x = _interval(sigma, first, per_node, intervals)
        cell = (row.to(tl.int64) * intervals + interval) * 4
        scale = _polynomial(value_ptr + cell, 4, x)
        theta = scale * sigma
        sine = tl.where(theta > 0, tl.sin(theta) / theta, 1.0) * scale  # sin(theta) / sigma
        tl.store(z_ptr + at, sine[:, None] * z + tl.cos(theta)[:, None] * mu, mask=inside)
        if SLOPES:
            slope = _polynomial(slope_ptr + cell, 4, x)
            tl.store(kept_ptr + i, slope / tl.maximum(sine, 1e-30), mask=live)

    @triton.jit
    def _sample_backward_kernel(
        grad_ptr, z_ptr, mu_ptr, slope_ptr, grad_mu_ptr, grad_kappa_ptr, samples, stretch, batch, dim,
        SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """BLOCK posteriors a program, summed over a stretch of their samples."""
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = tl.program_id(1)
        d = tl.arange(0, WIDTH)
        live = row < batch
        inside = live[:, None] & (d < dim)[None, :]
        mu = tl.load(mu_ptr + row[:, None] * dim + d[None, :], mask=inside, other=0.0)
        total_mu = mu * 0.0
        total_kappa = tl.sum(mu, 1) * 0.0
        for k in range(part * stretch, tl.minimum(part * stretch + stretch, samples)):
            i = tl.cast(k, tl.int64) * batch + row
            at = i[:, None] * dim + d[None, :]
            z = tl.load(z_ptr + at, mask=inside, other=0.0)
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
            cosine = tl.sum(z * mu, 1)
            along = tl.sum(grad * mu, 1)
            total_mu += cosine[:, None] * grad - along[:, None] * z
            if SLOPES:
                slope = tl.load(slope_ptr + i, mask=live, other=0.0)
                total_kappa += slope * (cosine * tl.sum(grad * z, 1) - along)
        row += part * batch
        tl.store(grad_mu_ptr + row[:, None] * dim + d[None, :], total_mu, mask=inside)
        if SLOPES:
            tl.store(grad_kappa_ptr + row, total_kappa, mask=live)

    @triton.jit
    def _log_uniform(bits):
        """log u, u uniform on 2^31 steps; never log 0."""
        return tl.log(tl.maximum(tl.uint_to_uniform_float(bits), 2.3e-10))

    @triton.jit
    def _cosines_kernel(
        z_ptr, mu_ptr, value_ptr, bend_ptr, first_ptr, sigma_ptr, cosine_ptr, turn_ptr, slope_ptr,
        samples, negatives, dim, pairs, intervals, start, per_node,
        DRAWN: tl.constexpr, SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One posterior a program, BLOCK of the latents that it meets."""
        row = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = k < samples
        at = row * samples + k
        mu = tl.load(mu_ptr + row * dim + d, mask=d < dim, other=0.0)
        place = ((row // negatives) * samples + k)[:, None] * dim + d[None, :]
        z = tl.load(z_ptr + place, mask=live[:, None] & (d < dim)[None, :], other=0.0)
        c = _clip(tl.sum(z * mu[None, :], 1), -1.0, 1.0)
        if DRAWN:
            seed = tl.load(first_ptr)
            low = (at & 0xFFFFFFFF).to(tl.uint32)
            high = (at >> 32).to(tl.uint32)
            none = low * 0
            a, b, _, _ = tl.philox(seed, low, high, none, none)
            radius = tl.sqrt(-2.0 * _log_uniform(a))  # Box and Muller 1958: two normals from two uniforms
            angle = 6.283185307179586 * tl.uint_to_uniform_float(b)
            first = radius * tl.cos(angle)
            square = first * first
            if dim % 2 == 1:
                second = radius * tl.sin(angle)
                square += second * second
            for j in range(0, pairs, 4):
                a, b, e, f = tl.philox(seed, low, high, none + (j // 4 + 1), none)
                total = _log_uniform(a)
                total += tl.where(j + 1 < pairs, _log_uniform(b), 0.0)
                total += tl.where(j + 2 < pairs, _log_uniform(e), 0.0)
                total += tl.where(j + 3 < pairs, _log_uniform(f), 0.0)
                square -= 2.0 * total
            sigma = tl.sqrt(square)
        else:
            first = tl.load(first_ptr + at, mask=live, other=1.0)
            sigma = tl.load(sigma_ptr + at, mask=live, other=1.0)
        interval, x = _interval(sigma, start, per_node, intervals)
        cell = (row * intervals + interval) * 4
        scale = _polynomial(value_ptr + cell, 4, x)
        theta = scale * sigma
        cosine, sine = tl.cos(theta), tl.sin(theta)
        around = tl.sqrt(tl.maximum(1.0 - c * c, 1e-12))
        share = first / tl.maximum(sigma, 1e-30)
        tl.store(cosine_ptr + at, cosine * c + sine * share * around, mask=live)
        tl.store(turn_ptr + at, cosine - sine * share * c / around, mask=live)
        if SLOPES:
            bend = _polynomial(bend_ptr + cell, 4, x)
            tl.store(slope_ptr + at, bend * sigma * (cosine * share * around - sine * c), mask=live)

    @triton.jit
    def _encounter_kernel(
        grad_ptr, turn_ptr, mu_ptr, grad_z_ptr, samples, negatives, dim, WIDTH: tl.constexpr, BLOCK: tl.constexpr
    ):
        """BLOCK latents of one anchor a program: the gradient in z, summed over its negatives."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = k < samples
        total = tl.zeros([BLOCK, WIDTH], dtype=grad_z_ptr.dtype.element_ty)
        for m in range(negatives):
            row = anchor * negatives + m
            along = tl.load(grad_ptr + row * samples + k, mask=live, other=0.0)
            along *= tl.load(turn_ptr + row * samples + k, mask=live, other=0.0)
            mu = tl.load(mu_ptr + row * dim + d, mask=d < dim, other=0.0)
            total += along[:, None] * mu[None, :]
        place = (anchor * samples + k)[:, None] * dim + d[None, :]
        tl.store(grad_z_ptr + place, total, mask=live[:, None] & (d < dim)[None, :])

    @triton.jit
    def _others_kernel(
        grad_ptr, turn_ptr, slope_ptr, z_ptr, grad_mu_ptr, grad_kappa_ptr, samples, negatives, dim,
        TURNS: tl.constexpr, SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One posterior a program: the gradients in its mu and kappa, summed over the latents that it meets."""
        row = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        in_mu = tl.zeros([WIDTH], dtype=grad_mu_ptr.dtype.element_ty)
        in_kappa = tl.zeros([BLOCK], dtype=grad_mu_ptr.dtype.element_ty)
        for begin in range(0, samples, BLOCK):
            k = begin + tl.arange(0, BLOCK)
            live = k < samples
            grad = tl.load(grad_ptr + row * samples + k, mask=live, other=0.0)
            if SLOPES:
                in_kappa += grad * tl.load(slope_ptr + row * samples + k, mask=live, other=0.0)
            if TURNS:
                along = grad * tl.load(turn_ptr + row * samples + k, mask=live, other=0.0)
                place = ((row // negatives) * samples + k)[:, None] * dim + d[None, :]
                z = tl.load(z_ptr + place, mask=live[:, None] & (d < dim)[None, :], other=0.0)
                in_mu += tl.sum(along[:, None] * z, 0)
        if TURNS:
            tl.store(grad_mu_ptr + row * dim + d, in_mu, mask=d < dim)
        if SLOPES:
            tl.store(grad_kappa_ptr + row, tl.sum(in_kappa, 0))
