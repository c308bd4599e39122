"""GPU version of losses/mean_sigmoid.py: HIB's log probabilities of a match or mismatch, in float32."""

import torch
from torch import Tensor

from aleator.fused.triton_helpers import log_sigmoid, on_its_own_device, tl, triton

_SAMPLES, _COLUMNS = 64, 16  # of a tile, where the candidates lie side by side in memory


@on_its_own_device
def fused_log_mean_sigmoid(cosines: Tensor, a: Tensor, b: Tensor, matches: int) -> Tensor:
    """Log probabilities (B, C) from cosines (K, B, C). The first `matches` candidates are asked for a match."""
    samples, anchors, candidates = cosines.shape
    mean = cosines.new_empty(anchors, candidates)
    tile = _tile(cosines)
    _mean_sigmoid_kernel[(triton.cdiv(mean.numel(), tile[1]),)](
        cosines, a, b, mean, samples, mean.numel(), candidates, matches, *cosines.stride(), *tile
    )
    return mean


@on_its_own_device
def fused_log_mean_sigmoid_backward(
    grad: Tensor, cosines: Tensor, a: Tensor, b: Tensor, mean: Tensor, matches: int, learned: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients in the cosines, in their layout, and if a and b are learned also in them."""
    samples, _, candidates = cosines.shape
    out = torch.empty_like(cosines)
    tile = _tile(cosines)
    grid = triton.cdiv(mean.numel(), tile[1]), triton.cdiv(samples, tile[0])
    parts = cosines.new_empty(2, *grid) if learned else mean  # of a and b, from each program
    _mean_sigmoid_backward_kernel[grid](
        grad.contiguous(), cosines, a, b, mean, out, parts, samples, mean.numel(), candidates, matches,
        *cosines.stride(), *out.stride(), learned, *tile,
    )  # fmt: skip
    of_a, of_b = parts.sum((1, 2)) if learned else (None, None)
    return out, of_a, of_b


def _tile(cosines: Tensor) -> tuple[int, int]:
    """Samples and columns of a tile; a column is a candidate of an anchor."""
    return (_SAMPLES * _COLUMNS, 1) if cosines.stride(0) == 1 else (_SAMPLES, _COLUMNS)


if triton is not None:

    @triton.jit
    def _places(k, anchor, candidate, sample_stride, anchor_stride, candidate_stride):
        """Where a tile of samples and columns is."""
        column = anchor.to(tl.int64) * anchor_stride + candidate.to(tl.int64) * candidate_stride
        return k[:, None].to(tl.int64) * sample_stride + column[None, :]

    @triton.jit
    def _mean_sigmoid_kernel(
        cosine_ptr, a_ptr, b_ptr, mean_ptr, samples, columns, candidates, matches,
        sample_stride, anchor_stride, candidate_stride, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: COLUMNS columns. A running sum of probabilities relative to the largest."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        anchor, candidate = column // candidates, column % candidates
        sign = tl.where(candidate < matches, 1.0, -1.0)
        a, b = sign * tl.load(a_ptr), sign * tl.load(b_ptr)
        largest = tl.zeros([COLUMNS], dtype=tl.float32) - 3e38
        total = tl.zeros([COLUMNS], dtype=tl.float32)
        for begin in range(0, samples, SAMPLES):
            k = begin + tl.arange(0, SAMPLES)
            inside = (k < samples)[:, None] & (column < columns)[None, :]
            at = _places(k, anchor, candidate, sample_stride, anchor_stride, candidate_stride)
            t = tl.load(cosine_ptr + at, mask=inside, other=0.0)
            x = a[None, :] * t + b[None, :]
            value = tl.where(x == x, log_sigmoid(x), x)  # keeps a NaN
            value = tl.where((k < samples)[:, None], value, -float("inf"))
            larger = tl.maximum(largest, tl.max(value, 0))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger[None, :]), 0)
            largest = larger
        tl.store(mean_ptr + column, largest + tl.log(total / samples), mask=column < columns)

    @triton.jit
    def _mean_sigmoid_backward_kernel(
        grad_ptr, cosine_ptr, a_ptr, b_ptr, mean_ptr, out_ptr, parts_ptr, samples, columns, candidates, matches,
        sample_stride, anchor_stride, candidate_stride, out_sample_stride, out_anchor_stride, out_candidate_stride,
        LEARNED: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Each program: some samples of COLUMNS columns. A sample counts by its part of the sum over the samples."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        anchor, candidate = column // candidates, column % candidates
        sign = tl.where(candidate < matches, 1.0, -1.0)
        a = tl.load(a_ptr)
        k = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
        inside = (k < samples)[:, None] & (column < columns)[None, :]
        at = _places(k, anchor, candidate, sample_stride, anchor_stride, candidate_stride)
        t = tl.load(cosine_ptr + at, mask=inside, other=0.0)
        x = sign[None, :] * (a * t + tl.load(b_ptr))
        small = tl.exp(-tl.abs(x))
        rest = tl.where(x > 0.0, small, 1.0) / (1.0 + small)  # 1 - s(x), the derivative of log s(x)
        mean = tl.load(mean_ptr + column, mask=column < columns, other=0.0)
        grad = tl.load(grad_ptr + column, mask=column < columns, other=0.0)
        slope = (grad * sign)[None, :] * tl.exp(log_sigmoid(x) - mean[None, :]) * rest / samples
        slope = tl.where(inside, slope, 0.0)
        at = _places(k, anchor, candidate, out_sample_stride, out_anchor_stride, out_candidate_stride)
        tl.store(out_ptr + at, a * slope, mask=inside)
        if LEARNED:
            programs = tl.num_programs(0) * tl.num_programs(1)
            part = parts_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
            tl.store(part, tl.sum(tl.sum(slope * t, 0), 0))
            tl.store(part + programs, tl.sum(tl.sum(slope, 0), 0))
