"""Shares of positives among all that anchors' latents meet.

In float32. Where groups of anchors share their negatives, the cosines stay in registers and are made again on the way
back.
"""

import torch
from torch import Tensor

from aleator.fused.pieces import on_its_own_device, tl, triton

_BLOCK = 256
_LEAST = 16  # the smallest side of a matrix product


@on_its_own_device
def fused_log_shares(cosines: Tensor, log_linear: tuple[float, float, bool]) -> tuple[Tensor, Tensor]:
    """The log share and the log of its denominator, (K, B) each, from cosines (K, B, 1 + M)."""
    cosines = cosines.permute(1, 2, 0).contiguous()  # as encounters.fused_cosines keeps them
    batch, met, samples = cosines.shape
    share, total = (cosines.new_empty(batch, samples) for _ in range(2))
    if share.numel():
        slope, offset, saturates = log_linear
        _shares_kernel[(batch, triton.cdiv(samples, _BLOCK))](
            cosines, share, total, samples, met, slope, offset, SATURATES=saturates, BLOCK=_BLOCK
        )
    return share.mT, total.mT


@on_its_own_device
def fused_log_shares_backward(
    grad: Tensor, cosines: Tensor, total: Tensor, log_linear: tuple[float, float, bool]
) -> Tensor:
    """The gradient in the cosines."""
    cosines, grad, total = cosines.permute(1, 2, 0).contiguous(), grad.mT.contiguous(), total.mT.contiguous()
    batch, met, samples = cosines.shape
    grad_cosines = torch.empty_like(cosines)
    if grad.numel():
        slope, offset, saturates = log_linear
        _shares_backward_kernel[(batch, triton.cdiv(samples, _BLOCK))](
            grad, cosines, total, grad_cosines, samples, met, slope, offset, SATURATES=saturates, BLOCK=_BLOCK
        )
    return grad_cosines.permute(2, 0, 1)


@on_its_own_device
def fused_crowd_log_shares(
    own: Tensor, z: Tensor, others: Tensor, log_linear: tuple[float, float, bool]
) -> tuple[Tensor, Tensor]:
    """The log share and the log of its denominator, (K, B) each; arguments as of shares.crowd_log_shares."""
    own, z, others = (x.contiguous() for x in (own, z, others))
    share, total = torch.empty_like(own), torch.empty_like(own)
    if share.numel():
        slope, offset, saturates = log_linear
        sizes = _sizes(z, others)
        _crowd_shares_kernel[_grid(z, others, sizes["GROUP"], sizes["ROWS"])](
            own, z, others, share, total, slope, offset, SATURATES=saturates, num_warps=2, **sizes
        )
    return share, total


@on_its_own_device
def fused_crowd_log_shares_backward(
    grad: Tensor, own: Tensor, z: Tensor, others: Tensor, total: Tensor, log_linear: tuple[float, float, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in own, z and others."""
    grad, own, z, others = (x.contiguous() for x in (grad, own, z, others))
    grads = torch.empty_like(own), torch.empty_like(z), torch.empty_like(others)
    if grad.numel():
        slope, offset, saturates = log_linear
        sizes = _sizes(z, others)
        _crowd_anchors_kernel[_grid(z, others, sizes["GROUP"], sizes["ROWS"])](
            grad, own, z, others, total, grads[0], grads[1], slope, offset, SATURATES=saturates, num_warps=2, **sizes
        )
        _crowd_negatives_kernel[_grid(z, others, sizes["NEGATIVES"], sizes["COLUMNS"])](
            grad, z, others, total, grads[2], slope, offset, SATURATES=saturates, num_warps=2, **sizes
        )
    return grads


def _sizes(z: Tensor, others: Tensor) -> dict[str, int]:
    group, negatives, dim = z.shape[1] // others.shape[1], others.shape[2], z.shape[2]
    side = lambda n: min(32, max(_LEAST, triton.next_power_of_2(n)))  # noqa: E731
    return {
        "GROUP": group,
        "NEGATIVES": negatives,
        "DIM": dim,
        "WIDTH": max(_LEAST, triton.next_power_of_2(dim)),
        "ROWS": side(group),
        "COLUMNS": side(negatives),
    }


def _grid(z: Tensor, others: Tensor, count: int, tile: int) -> tuple[int, int]:
    """A program for each sample of each group, and each tile of its anchors or negatives."""
    return z.shape[0] * others.shape[1], triton.cdiv(count, tile)


if triton is not None:

    @triton.jit
    def _log_value(t, scale, offset, SATURATES: tl.constexpr):
        """log g."""
        value = scale * t - offset
        if SATURATES:  # log sigmoid
            value = tl.minimum(value, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(value)))
        return value

    @triton.jit
    def _slope(t, scale, offset, SATURATES: tl.constexpr):
        """Of log g."""
        slope = t * 0.0 + scale
        if SATURATES:
            slope /= 1.0 + tl.exp(scale * t - offset)
        return slope

    @triton.jit
    def _shares_kernel(
        cosine_ptr, share_ptr, total_ptr, samples, met, scale, offset, SATURATES: tl.constexpr, BLOCK: tl.constexpr
    ):
        """BLOCK samples of an anchor a program: a running sum of g, relative to its largest term."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = k < samples
        here = cosine_ptr + anchor * met * samples + k
        log_own = _log_value(tl.load(here, mask=live, other=0.0), scale, offset, SATURATES)
        largest, total = log_own, log_own * 0.0 + 1.0
        for m in range(1, met):
            value = _log_value(tl.load(here + m * samples, mask=live, other=0.0), scale, offset, SATURATES)
            larger = tl.maximum(largest, value)
            total = total * tl.exp(largest - larger) + tl.exp(value - larger)
            largest = larger
        total = largest + tl.log(total)
        tl.store(share_ptr + anchor * samples + k, log_own - total, mask=live)
        tl.store(total_ptr + anchor * samples + k, total, mask=live)

    @triton.jit
    def _shares_backward_kernel(
        grad_ptr, cosine_ptr, total_ptr, grad_cosine_ptr, samples, met, scale, offset,
        SATURATES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = k < samples
        here = anchor * met * samples + k
        grad = tl.load(grad_ptr + anchor * samples + k, mask=live, other=0.0)
        total = tl.load(total_ptr + anchor * samples + k, mask=live, other=0.0)
        rest = grad * 0.0  # 1 - share, which would cancel
        for m in range(1, met):
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
        """Where vectors begin, begin + 1, ... of the `count` from `first` on are kept, and which there are."""
        i = begin + tl.arange(0, SIZE)
        d = tl.arange(0, WIDTH)
        return (first + i)[:, None] * DIM + d[None, :], (i < count)[:, None] & (d < DIM)[None, :]

    @triton.jit
    def _tile(ptr, first, count, begin, DIM: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
        """Those vectors; zero where there are none."""
        at, inside = _place(first, count, begin, DIM, WIDTH, SIZE)
        return tl.load(ptr + at, mask=inside, other=0.0)

    @triton.jit
    def _crowd_shares_kernel(
        own_ptr, z_ptr, others_ptr, share_ptr, total_ptr, scale, offset, SATURATES: tl.constexpr,
        GROUP: tl.constexpr, NEGATIVES: tl.constexpr, DIM: tl.constexpr,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """ROWS anchors of a group a program: a running sum of g, relative to its largest term."""
        crowd = tl.program_id(0).to(tl.int64)
        begin = tl.program_id(1) * ROWS
        row = begin + tl.arange(0, ROWS)
        at = crowd * GROUP + row
        z = _tile(z_ptr, crowd * GROUP, GROUP, begin, DIM, WIDTH, ROWS)
        log_own = _log_value(tl.load(own_ptr + at, mask=row < GROUP, other=0.0), scale, offset, SATURATES)
        largest, total = log_own, log_own * 0.0 + 1.0
        for first in range(0, NEGATIVES, COLUMNS):
            other = _tile(others_ptr, crowd * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
            t = tl.dot(z, tl.trans(other), input_precision="ieee")
            value = _log_value(t, scale, offset, SATURATES)
            value = tl.where((first + tl.arange(0, COLUMNS) < NEGATIVES)[None, :], value, -float("inf"))
            larger = tl.maximum(largest, tl.max(value, 1))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger[:, None]), 1)
            largest = larger
        total = largest + tl.log(total)
        tl.store(share_ptr + at, log_own - total, mask=row < GROUP)
        tl.store(total_ptr + at, total, mask=row < GROUP)

    @triton.jit
    def _crowd_anchors_kernel(
        grad_ptr, own_ptr, z_ptr, others_ptr, total_ptr, grad_own_ptr, grad_z_ptr, scale, offset,
        SATURATES: tl.constexpr, GROUP: tl.constexpr, NEGATIVES: tl.constexpr, DIM: tl.constexpr,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """ROWS anchors of a group a program: the gradients in z.z+ and z."""
        crowd = tl.program_id(0).to(tl.int64)
        begin = tl.program_id(1) * ROWS
        row = begin + tl.arange(0, ROWS)
        at = crowd * GROUP + row
        grad = tl.load(grad_ptr + at, mask=row < GROUP, other=0.0)
        total = tl.load(total_ptr + at, mask=row < GROUP, other=0.0)
        z = _tile(z_ptr, crowd * GROUP, GROUP, begin, DIM, WIDTH, ROWS)
        slope = _slope(tl.load(own_ptr + at, mask=row < GROUP, other=0.0), scale, offset, SATURATES)
        rest = tl.zeros([ROWS], dtype=tl.float32)  # 1 - share, which would cancel
        pull = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
        for first in range(0, NEGATIVES, COLUMNS):
            other = _tile(others_ptr, crowd * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
            t = tl.dot(z, tl.trans(other), input_precision="ieee")
            live = (first + tl.arange(0, COLUMNS) < NEGATIVES)[None, :]
            share = tl.where(live, tl.exp(_log_value(t, scale, offset, SATURATES) - total[:, None]), 0.0)
            rest += tl.sum(share, 1)
            pull += tl.dot(share * _slope(t, scale, offset, SATURATES), other, input_precision="ieee")
        tl.store(grad_own_ptr + at, grad * slope * rest, mask=row < GROUP)
        place, inside = _place(crowd * GROUP, GROUP, begin, DIM, WIDTH, ROWS)
        tl.store(grad_z_ptr + place, -grad[:, None] * pull, mask=inside)

    @triton.jit
    def _crowd_negatives_kernel(
        grad_ptr, z_ptr, others_ptr, total_ptr, grad_others_ptr, scale, offset,
        SATURATES: tl.constexpr, GROUP: tl.constexpr, NEGATIVES: tl.constexpr, DIM: tl.constexpr,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """COLUMNS negatives of a group a program: the gradient in them, summed over the anchors."""
        crowd = tl.program_id(0).to(tl.int64)
        first = tl.program_id(1) * COLUMNS
        other = _tile(others_ptr, crowd * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
        pull = tl.zeros([COLUMNS, WIDTH], dtype=tl.float32)
        for begin in range(0, GROUP, ROWS):
            row = begin + tl.arange(0, ROWS)
            at = crowd * GROUP + row
            grad = tl.load(grad_ptr + at, mask=row < GROUP, other=0.0)
            total = tl.load(total_ptr + at, mask=row < GROUP, other=0.0)
            z = _tile(z_ptr, crowd * GROUP, GROUP, begin, DIM, WIDTH, ROWS)
            t = tl.dot(other, tl.trans(z), input_precision="ieee")
            share = tl.exp(_log_value(t, scale, offset, SATURATES) - total[None, :])
            weight = share * _slope(t, scale, offset, SATURATES) * grad[None, :]
            pull += tl.dot(tl.where((row < GROUP)[None, :], weight, 0.0), z, input_precision="ieee")
        place, inside = _place(crowd * NEGATIVES, NEGATIVES, first, DIM, WIDTH, COLUMNS)
        tl.store(grad_others_ptr + place, -pull, mask=inside)
