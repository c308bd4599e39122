"""Draws in proportion to expected positivity (matching/draws.py): of many points, the one with the smallest u / r.

A point mass has the same weights wherever it is, so a pair takes its cosine and Clenshaw's rule, in float64 as in
fused/totals.py. Nothing of the size of the table of pairs is written. Where rounding makes r negative it is far too
small to be drawn, and the pair is left out.
"""

import torch
from torch import Tensor

from aleator.fused.pieces import cosines, on_its_own_device, part_of_dimensions, tl, triton

_ROWS, _COLUMNS = 32, 64
_PROGRAMS = 1056  # enough for every multiprocessor of a large GPU


@on_its_own_device
def fused_smallest(u: Tensor, mu: Tensor, weights: Tensor, z: Tensor, point: Tensor, steps: Tensor) -> Tensor:
    """Index j (G, N) of the smallest u_ij / r_ij.

    `u` (G, N, M) is float64, `mu` (G, N, D) and `z` (G, M, D) are float32. `weights` (T, G N) are the w_n of the rows,
    `point` (T,) the h_n w_n of a point mass, `steps` (T,) the m_n of `rescaled_recurrence` (matching/tiles.py), all
    float64; T is even.
    """
    groups, count, others = u.shape
    dim = mu.shape[-1]
    blocks = triton.cdiv(count, _ROWS)
    splits = max(1, min(triton.cdiv(others, _COLUMNS), _PROGRAMS // (blocks * groups)))
    smallest = mu.new_empty(splits, groups, count)
    found = torch.empty_like(smallest, dtype=torch.int64)
    _smallest_kernel[(blocks, groups, splits)](
        u.contiguous(), mu.contiguous(), weights, z.contiguous(), point, steps, smallest, found,
        groups * count, count, others, dim, len(point),
        ROWS=_ROWS, COLUMNS=_COLUMNS, PART=part_of_dimensions(dim), num_warps=4,
    )  # fmt: skip
    return found.gather(0, smallest.argmin(0, keepdim=True))[0]


if triton is not None:

    @triton.jit
    def _smallest_kernel(
        u_ptr, mu_ptr, weight_ptr, z_ptr, point_ptr, steps_ptr, smallest_ptr, found_ptr,
        stride, count, others, dim, terms, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS posteriors of a group and a share of the tiles of points. A running minimum."""
        block, group, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
        splits = tl.num_programs(2)
        row = block * ROWS + tl.arange(0, ROWS)
        row_live = row < count
        at1 = group * count + row
        smallest = tl.zeros([ROWS], dtype=tl.float32) + float("inf")
        found = tl.zeros([ROWS], dtype=tl.int64)
        for tile in range(split, tl.cdiv(others, COLUMNS), splits):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            column_live = column < others
            at2 = group * others + column
            c = cosines(mu_ptr, z_ptr, at1, row_live, at2, column_live, dim, ROWS, COLUMNS, PART)
            x = c.to(tl.float64)
            y, after = x * 0.0, x * 0.0
            for k in range(terms // 2):  # two terms at a time, so that no register is moved
                n = (terms - 1 - 2 * k).to(tl.int64)
                w = tl.load(weight_ptr + n * stride + at1, mask=row_live, other=0.0) * tl.load(point_ptr + n)
                next_w = tl.load(weight_ptr + (n - 1) * stride + at1, mask=row_live, other=0.0)
                next_w *= tl.load(point_ptr + n - 1)
                after = w[:, None] + ((tl.load(steps_ptr + n) * x) * y + after)
                y = next_w[:, None] + ((tl.load(steps_ptr + n - 1) * x) * after + y)
            live = row_live[:, None] & column_live[None, :]
            u = tl.load(u_ptr + at1[:, None] * others + column[None, :], mask=live, other=1.0)
            key = tl.log(u.to(tl.float32)) - tl.log(tl.maximum(y, 1e-37).to(tl.float32))
            key = tl.where(live & (y > 0.0), key, float("inf"))
            least, place = tl.min(key, 1, return_indices=True)
            found = tl.where(least < smallest, tile * COLUMNS + place, found)
            smallest = tl.minimum(least, smallest)
        out = split.to(tl.int64) * stride + at1
        tl.store(smallest_ptr + out, smallest, mask=row_live)
        tl.store(found_ptr + out, found, mask=row_live)
