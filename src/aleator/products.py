"""Inner products of each anchor's sample with those of its negatives: (..., D) and (..., M, D) -> (..., M).

A sum over a product is three passes over all the negatives' samples, and three more for the gradient; they are the
largest tensors of a Monte-Carlo loss. On a GPU one kernel reads them once each way.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch comes without Triton
    triton = None

_WIDEST = 4096  # numbers a program holds: negatives at a time, times the dimension


def row_products(z: Tensor, others: Tensor) -> Tensor:
    """z (..., D), others (..., M, D), with the same leading shape."""
    wide = triton is not None and triton.next_power_of_2(z.shape[-1]) > _WIDEST
    if triton is None or wide or not z.is_cuda or z.shape[:-1] != others.shape[:-2] or z.dtype != others.dtype:
        return plain_row_products(z, others)
    return _RowProducts.apply(z, others)


def plain_row_products(z: Tensor, others: Tensor) -> Tensor:
    return (z.unsqueeze(-2) * others).sum(-1)


class _RowProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, others):
        z, others = z.contiguous(), others.contiguous()
        ctx.save_for_backward(z, others)
        out = others.new_empty(others.shape[:-1])
        _launch(_products_kernel, z, others, out, others, z)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        z, others = ctx.saved_tensors
        grad_z, grad_others = torch.empty_like(z), torch.empty_like(others)
        _launch(_gradients_kernel, z, others, grad.contiguous(), grad_others, grad_z)
        return grad_z, grad_others


def _launch(kernel, z: Tensor, others: Tensor, table: Tensor, grad_others: Tensor, grad_z: Tensor) -> None:
    count, dim = z.numel() // z.shape[-1], z.shape[-1]
    width = triton.next_power_of_2(dim)
    block = min(triton.next_power_of_2(others.shape[-2]), max(1, _WIDEST // width))
    if count and others.numel():
        kernel[(count,)](z, others, table, grad_others, grad_z, others.shape[-2], dim, width, block, num_warps=1)


if triton is not None:

    @triton.jit
    def _products_kernel(
        z_ptr, others_ptr, out_ptr, unused_others_ptr, unused_z_ptr, negatives, dim,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        z = tl.load(z_ptr + row * dim + d, mask=d < dim, other=0.0)
        for first in range(0, negatives, BLOCK):
            m = first + tl.arange(0, BLOCK)
            at = (row * negatives + m)[:, None] * dim + d[None, :]
            other = tl.load(others_ptr + at, mask=(m < negatives)[:, None] & (d < dim)[None, :], other=0.0)
            tl.store(out_ptr + row * negatives + m, tl.sum(other * z[None, :], 1), mask=m < negatives)

    @triton.jit
    def _gradients_kernel(
        z_ptr, others_ptr, grad_ptr, grad_others_ptr, grad_z_ptr, negatives, dim,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        z = tl.load(z_ptr + row * dim + d, mask=d < dim, other=0.0)
        total = z * 0.0
        for first in range(0, negatives, BLOCK):
            m = first + tl.arange(0, BLOCK)
            inside = (m < negatives)[:, None] & (d < dim)[None, :]
            at = (row * negatives + m)[:, None] * dim + d[None, :]
            grad = tl.load(grad_ptr + row * negatives + m, mask=m < negatives, other=0.0)
            other = tl.load(others_ptr + at, mask=inside, other=0.0)
            total += tl.sum(other * grad[:, None], 0)
            tl.store(grad_others_ptr + at, grad[:, None] * z[None, :], mask=inside)
        tl.store(grad_z_ptr + row * dim + d, total, mask=d < dim)
