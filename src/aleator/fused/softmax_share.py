"""GPU version of losses/softmax_share.py: the positive's softmax share among its candidates, in float32.

`log_linear` holds slope, offset and saturates of the kernel: log g(t) = slope t - offset, or log sigmoid of that if g
saturates. Where groups of anchors share their negatives, the cosines stay in registers, and the backward pass computes
them again.
"""

from typing import Any

import torch
from torch import Tensor

from aleator.fused.triton_helpers import log_sigmoid, on_its_own_device, tl, triton

_BLOCK = 256
_LEAST = 16  # Triton's smallest side of a matrix product
_SMALL_TILE = 512  # anchors times negatives, in 16 dimensions; one warp is fastest then


@on_its_own_device
def fused_candidate_log_softmax_share(cosines: Tensor, log_linear: tuple[float, float, bool]) -> tuple[Tensor, Tensor]:
    """Log share and log of its denominator, (K, B) each, from the cosines with all candidates (K, B, 1 + M)."""
    cosines = cosines.permute(1, 2, 0).contiguous()  # the layout of fused_sampled_cosines, so usually no copy
    batch, candidates, samples = cosines.shape
    share, total = (cosines.new_empty(batch, samples) for _ in range(2))
    if share.numel():
        slope, offset, saturates = log_linear
        _candidates_kernel[(batch, triton.cdiv(samples, _BLOCK))](
            cosines, share, total, samples, candidates, slope, offset, SATURATES=saturates, BLOCK=_BLOCK
        )
    return share.mT, total.mT


@on_its_own_device
def fused_candidate_log_softmax_share_backward(
    grad: Tensor, cosines: Tensor, total: Tensor, log_linear: tuple[float, float, bool]
) -> Tensor:
    """Gradient in the cosines, (K, B, 1 + M)."""
    cosines, grad, total = cosines.permute(1, 2, 0).contiguous(), grad.mT.contiguous(), total.mT.contiguous()
    batch, candidates, samples = cosines.shape
    grad_cosines = torch.empty_like(cosines)
    if grad.numel():
        slope, offset, saturates = log_linear
        _candidates_backward_kernel[(batch, triton.cdiv(samples, _BLOCK))](
            grad, cosines, total, grad_cosines, samples, candidates, slope, offset, SATURATES=saturates, BLOCK=_BLOCK
        )
    return grad_cosines.permute(2, 0, 1)


@on_its_own_device
def fused_shared_log_softmax_share(
    to_positive: Tensor, z: Tensor, negatives: Tensor, log_linear: tuple[float, float, bool]
) -> tuple[Tensor, Tensor]:
    """Log share and log of its denominator, (K, B) each, from the arguments of `shared_log_softmax_share`."""
    to_positive, z, negatives = (x.contiguous() for x in (to_positive, z, negatives))
    share, total = torch.empty_like(to_positive), torch.empty_like(to_positive)
    if share.numel():
        slope, offset, saturates = log_linear
        sizes = _sizes(z, negatives)
        _shared_kernel[_grid(z, negatives, sizes["ANCHORS"], sizes["ROWS"])](
            to_positive, z, negatives, share, total, slope, offset, SATURATES=saturates, **sizes
        )
    return share, total


@on_its_own_device
def fused_shared_log_softmax_share_backward(
    grad: Tensor,
    to_positive: Tensor,
    z: Tensor,
    negatives: Tensor,
    total: Tensor,
    log_linear: tuple[float, float, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in to_positive, z and negatives."""
    grad, to_positive, z, negatives = (x.contiguous() for x in (grad, to_positive, z, negatives))
    grads = torch.empty_like(to_positive), torch.empty_like(z), torch.empty_like(negatives)
    if grad.numel():
        slope, offset, saturates = log_linear
        sizes = _sizes(z, negatives)
        one_tile = sizes["NEGATIVES"] <= sizes["COLUMNS"]
        stretch = sizes["ANCHORS"] if one_tile else sizes["ROWS"]
        _shared_anchors_kernel[_grid(z, negatives, sizes["ANCHORS"], stretch)](
            grad, to_positive, z, negatives, total, *grads, slope, offset,
            SATURATES=saturates, STRETCH=stretch, **sizes,
        )  # fmt: skip
        if not one_tile:
            _shared_negatives_kernel[_grid(z, negatives, sizes["NEGATIVES"], sizes["COLUMNS"])](
                grad, z, negatives, total, grads[2], slope, offset, SATURATES=saturates, **sizes
            )
    return grads


def _sizes(z: Tensor, negatives: Tensor) -> dict[str, Any]:
    """Sizes of a group and of its tiles, for the kernels of shared negatives, and how these are launched."""
    anchors, count, dim = z.shape[1] // negatives.shape[1], negatives.shape[2], z.shape[2]
    rows, columns = (min(32, max(_LEAST, triton.next_power_of_2(n))) for n in (anchors, count))
    width = max(_LEAST, triton.next_power_of_2(dim))
    return {
        "ANCHORS": anchors,
        "NEGATIVES": count,
        "DIM": dim,
        "WIDTH": width,
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": 1 if rows * columns * width <= _SMALL_TILE * _LEAST else 2,
    }


def _grid(z: Tensor, negatives: Tensor, count: int, tile: int) -> tuple[int, int]:
    """One program for each sample of each group and each tile of its anchors or negatives."""
    return z.shape[0] * negatives.shape[1], triton.cdiv(count, tile)


if triton is not None:

    @triton.jit
    def _log_value(t, scale, offset, SATURATES: tl.constexpr):
        """log g(t)."""
        value = scale * t - offset
        if SATURATES:
            value = log_sigmoid(value)
        return value

    @triton.jit
    def _slope(t, scale, offset, SATURATES: tl.constexpr):
        """Derivative of log g at t."""
        slope = t * 0.0 + scale
        if SATURATES:
            slope /= 1.0 + tl.exp(scale * t - offset)
        return slope

    @triton.jit
    def _candidates_kernel(
        cosine_ptr, share_ptr, total_ptr, samples, candidates, scale, offset,
        SATURATES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK samples of an anchor. A running sum of g relative to its largest term."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = k < samples
        here = cosine_ptr + anchor * candidates * samples + k
        log_positive = _log_value(tl.load(here, mask=live, other=0.0), scale, offset, SATURATES)
        largest, total = log_positive, log_positive * 0.0 + 1.0
        for m in range(1, candidates):
            value = _log_value(tl.load(here + m * samples, mask=live, other=0.0), scale, offset, SATURATES)
            larger = tl.maximum(largest, value)
            total = total * tl.exp(largest - larger) + tl.exp(value - larger)
            largest = larger
        total = largest + tl.log(total)
        tl.store(share_ptr + anchor * samples + k, log_positive - total, mask=live)
        tl.store(total_ptr + anchor * samples + k, total, mask=live)

    @triton.jit
    def _candidates_backward_kernel(
        grad_ptr, cosine_ptr, total_ptr, grad_cosine_ptr, samples, candidates, scale, offset,
        SATURATES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK samples of an anchor. The gradient in the cosines."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = k < samples
        here = anchor * candidates * samples + k
        grad = tl.load(grad_ptr + anchor * samples + k, mask=live, other=0.0)
        total = tl.load(total_ptr + anchor * samples + k, mask=live, other=0.0)
        rest = grad * 0.0  # 1 - share, by summation: the subtraction would lose digits
        for m in range(1, candidates):
            t = tl.load(cosine_ptr + here + m * samples, mask=live, other=0.0)
            share = tl.exp(_log_value(t, scale, offset, SATURATES) - total)
            rest += share
            tl.store(
                grad_cosine_ptr + here + m * samples, -grad * share * _slope(t, scale, offset, SATURATES), mask=live
            )
        slope = _slope(tl.load(cosine_ptr + here, mask=live, other=0.0), scale, offset, SATURATES)
        tl.store(grad_cosine_ptr + here, grad * slope * rest, mask=live)

    @triton.jit
    def _place(first, count, begin, DIM: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
        """Offsets of the vectors number begin, begin + 1, ... after `first`, and a mask of those below `count`."""
        i = begin + tl.arange(0, SIZE)
        d = tl.arange(0, WIDTH)
        return (first + i)[:, None] * DIM + d[None, :], (i < count)[:, None] & (d < DIM)[None, :]

    @triton.jit
    def _tile(ptr, first, count, begin, DIM: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
        """The vectors at `_place`; zero where the mask is false."""
        at, inside = _place(first, count, begin, DIM, WIDTH, SIZE)
        return tl.load(ptr + at, mask=inside, other=0.0)

    @triton.jit
    def _shared_kernel(
        to_positive_ptr, z_ptr, negatives_ptr, share_ptr, total_ptr, scale, offset, SATURATES: tl.constexpr,
        ANCHORS: tl.constexpr, NEGATIVES: tl.constexpr, DIM: tl.constexpr,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS anchors of a group. A running sum of g relative to its largest term."""
        group = tl.program_id(0).to(tl.int64)
        begin = tl.program_id(1) * ROWS
        row = begin + tl.arange(0, ROWS)
        at = group * ANCHORS + row
        z = _tile(z_ptr, group * ANCHORS, ANCHORS, begin, DIM, WIDTH, ROWS)
        log_positive = _log_value(
            tl.load(to_positive_ptr + at, mask=row < ANCHORS, other=0.0), scale, offset, SATURATES
        )
        largest, total = log_positive, log_positive * 0.0 + 1.0
        for first in range(0, NEGATIVES, COLUMNS):
            negative = _tile(negatives_ptr, group * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
            t = tl.dot(z, tl.trans(negative), input_precision="ieee")
            value = _log_value(t, scale, offset, SATURATES)
            value = tl.where((first + tl.arange(0, COLUMNS) < NEGATIVES)[None, :], value, -float("inf"))
            larger = tl.maximum(largest, tl.max(value, 1))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger[:, None]), 1)
            largest = larger
        total = largest + tl.log(total)
        tl.store(share_ptr + at, log_positive - total, mask=row < ANCHORS)
        tl.store(total_ptr + at, total, mask=row < ANCHORS)

    @triton.jit
    def _shared_anchors_kernel(
        grad_ptr, to_positive_ptr, z_ptr, negatives_ptr, total_ptr, grad_to_positive_ptr, grad_z_ptr,
        grad_negatives_ptr, scale, offset, SATURATES: tl.constexpr, ANCHORS: tl.constexpr, NEGATIVES: tl.constexpr,
        DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCH: tl.constexpr,
    ):  # fmt: skip
        """Each program: STRETCH anchors of a group, ROWS at a time. The gradients in z.z+ and z.

        If the negatives are one tile, the stretch is the whole group, and the gradient in them is summed here too.
        """
        group = tl.program_id(0).to(tl.int64)
        start = tl.program_id(1) * STRETCH
        of_negatives = tl.zeros([COLUMNS, WIDTH], dtype=tl.float32)
        for further in range(0, STRETCH, ROWS):  # constant bounds, so that a single round is no loop
            begin = start + further
            row = begin + tl.arange(0, ROWS)
            at = group * ANCHORS + row
            grad = tl.load(grad_ptr + at, mask=row < ANCHORS, other=0.0)
            total = tl.load(total_ptr + at, mask=row < ANCHORS, other=0.0)
            z = _tile(z_ptr, group * ANCHORS, ANCHORS, begin, DIM, WIDTH, ROWS)
            slope = _slope(tl.load(to_positive_ptr + at, mask=row < ANCHORS, other=0.0), scale, offset, SATURATES)
            rest = tl.zeros([ROWS], dtype=tl.float32)  # 1 - share, by summation: the subtraction would lose digits
            pull = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
            for first in range(0, NEGATIVES, COLUMNS):
                negative = _tile(negatives_ptr, group * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
                t = tl.dot(z, tl.trans(negative), input_precision="ieee")
                live = (first + tl.arange(0, COLUMNS) < NEGATIVES)[None, :]
                share = tl.where(live, tl.exp(_log_value(t, scale, offset, SATURATES) - total[:, None]), 0.0)
                rest += tl.sum(share, 1)
                weight = share * _slope(t, scale, offset, SATURATES)
                pull += tl.dot(weight, negative, input_precision="ieee")
                if NEGATIVES <= COLUMNS:
                    of_negatives += tl.dot(tl.trans(weight * grad[:, None]), z, input_precision="ieee")
            tl.store(grad_to_positive_ptr + at, grad * slope * rest, mask=row < ANCHORS)
            place, inside = _place(group * ANCHORS, ANCHORS, begin, DIM, WIDTH, ROWS)
            tl.store(grad_z_ptr + place, -grad[:, None] * pull, mask=inside)
        if NEGATIVES <= COLUMNS:
            place, inside = _place(group * NEGATIVES, NEGATIVES, 0, DIM, WIDTH, COLUMNS)
            tl.store(grad_negatives_ptr + place, -of_negatives, mask=inside)

    @triton.jit
    def _shared_negatives_kernel(
        grad_ptr, z_ptr, negatives_ptr, total_ptr, grad_negatives_ptr, scale, offset,
        SATURATES: tl.constexpr, ANCHORS: tl.constexpr, NEGATIVES: tl.constexpr, DIM: tl.constexpr,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: COLUMNS negatives of a group. The gradient in them, summed over the anchors."""
        group = tl.program_id(0).to(tl.int64)
        first = tl.program_id(1) * COLUMNS
        negative = _tile(negatives_ptr, group * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
        pull = tl.zeros([COLUMNS, WIDTH], dtype=tl.float32)
        for begin in range(0, ANCHORS, ROWS):
            row = begin + tl.arange(0, ROWS)
            at = group * ANCHORS + row
            grad = tl.load(grad_ptr + at, mask=row < ANCHORS, other=0.0)
            total = tl.load(total_ptr + at, mask=row < ANCHORS, other=0.0)
            z = _tile(z_ptr, group * ANCHORS, ANCHORS, begin, DIM, WIDTH, ROWS)
            t = tl.dot(negative, tl.trans(z), input_precision="ieee")
            share = tl.exp(_log_value(t, scale, offset, SATURATES) - total[None, :])
            weight = share * _slope(t, scale, offset, SATURATES) * grad[None, :]
            pull += tl.dot(tl.where((row < ANCHORS)[None, :], weight, 0.0), z, input_precision="ieee")
        place, inside = _place(group * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
        tl.store(grad_negatives_ptr + place, -pull, mask=inside)
