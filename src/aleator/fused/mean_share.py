"""GPU version of losses/mean_share.py: the mean over the samples of the positive's share, in float32."""

import math

import torch
from torch import Tensor

from aleator.fused.triton_helpers import on_its_own_device, tl, triton

_SAMPLES, _ANCHORS = 64, 16  # of a tile, where the anchors lie side by side in memory


@on_its_own_device
def fused_log_mean_share(share: Tensor, averaged: int) -> Tensor:
    """log of the mean over the samples, (B,), from log shares (K, B)."""
    samples, anchors = share.shape
    mean = share.new_empty(anchors)
    tile = _tile(share)
    _mean_share_kernel[(triton.cdiv(anchors, tile[1]),)](
        share, mean, samples, anchors, *share.stride(), *_constants(averaged), averaged > 1, *tile
    )
    return mean


@on_its_own_device
def fused_log_mean_share_backward(grad: Tensor, share: Tensor, mean: Tensor, averaged: int) -> Tensor:
    """Gradient in the log shares, in their layout, from that in the means."""
    samples, anchors = share.shape
    out = torch.empty_like(share)
    tile = _tile(share)
    _mean_share_backward_kernel[(triton.cdiv(anchors, tile[1]), triton.cdiv(samples, tile[0]))](
        grad.contiguous(), share, mean, out, samples, anchors, *share.stride(), *out.stride(), *_constants(averaged),
        averaged, averaged > 1, *tile,
    )  # fmt: skip
    return out


def _constants(averaged: int) -> tuple[float, float]:
    """Logarithms of 1/M and of 1 - 1/M."""
    return -math.log(averaged), math.log1p(-1 / averaged) if averaged > 1 else 0.0


def _tile(share: Tensor) -> tuple[int, int]:
    """Samples and anchors of a tile."""
    return (_SAMPLES, _ANCHORS) if share.stride(1) == 1 else (_SAMPLES * _ANCHORS, 1)


if triton is not None:

    @triton.jit
    def _among_average(share, log_part, log_rest, AVERAGED: tl.constexpr):
        """The log share if the negatives are averaged and not summed."""
        if AVERAGED:
            other = share + log_rest
            larger = tl.maximum(other, log_part)
            share -= larger + tl.log(1.0 + tl.exp(tl.minimum(other, log_part) - larger))
        return share

    @triton.jit
    def _mean_share_kernel(
        share_ptr, mean_ptr, samples, anchors, sample_stride, anchor_stride, log_part, log_rest,
        AVERAGED: tl.constexpr, SAMPLES: tl.constexpr, ANCHORS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ANCHORS anchors. A running sum of shares relative to the largest."""
        anchor = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS)
        largest = tl.zeros([ANCHORS], dtype=tl.float32) - float("inf")
        total = tl.zeros([ANCHORS], dtype=tl.float32)
        for begin in range(0, samples, SAMPLES):
            k = begin + tl.arange(0, SAMPLES)
            inside = (k < samples)[:, None] & (anchor < anchors)[None, :]
            at = k[:, None].to(tl.int64) * sample_stride + anchor[None, :].to(tl.int64) * anchor_stride
            share = _among_average(tl.load(share_ptr + at, mask=inside, other=0.0), log_part, log_rest, AVERAGED)
            share = tl.where((k < samples)[:, None], share, -float("inf"))
            larger = tl.maximum(tl.maximum(largest, tl.max(share, 0)), -3e38)  # finite, also if all shares are 0
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(share - larger[None, :]), 0)
            largest = larger
        tl.store(mean_ptr + anchor, largest + tl.log(total / samples), mask=anchor < anchors)

    @triton.jit
    def _mean_share_backward_kernel(
        grad_ptr, share_ptr, mean_ptr, out_ptr, samples, anchors, sample_stride, anchor_stride, out_sample_stride,
        out_anchor_stride, log_part, log_rest, averaged,
        AVERAGED: tl.constexpr, SAMPLES: tl.constexpr, ANCHORS: tl.constexpr,
    ):  # fmt: skip
        """Each program: some samples of ANCHORS anchors. A sample counts by its part of the sum over the samples.

        With s and s' the shares among summed and averaged negatives, d log s' / d log s = s' / (M s).
        """
        anchor = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS)
        k = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
        inside = (k < samples)[:, None] & (anchor < anchors)[None, :]
        k, column = k[:, None].to(tl.int64), anchor[None, :].to(tl.int64)
        given = tl.load(share_ptr + k * sample_stride + column * anchor_stride, mask=inside, other=0.0)
        share = _among_average(given, log_part, log_rest, AVERAGED)
        mean = tl.load(mean_ptr + anchor, mask=anchor < anchors, other=0.0)
        grad = tl.load(grad_ptr + anchor, mask=anchor < anchors, other=0.0)
        weight = grad[None, :] * tl.exp(share - mean[None, :]) / samples
        if AVERAGED:
            weight *= tl.exp(share - given) / averaged
        tl.store(out_ptr + k * out_sample_stride + column * out_anchor_stride, weight, mask=inside)
