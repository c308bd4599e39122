"""GPU parts of matching/fused_pairs.py: cosines of pairs, and gradients of their log r, in one launch each."""

import torch
from torch import Tensor

from aleator.fused.triton_helpers import on_its_own_device, tl, triton

_ROWS, _PART = 8, 64


@on_its_own_device
def fused_pair_cosines(mu1: Tensor, mu2: Tensor) -> Tensor:
    """mu.mu' of N pairs of directions (N, D), float64."""
    mu1, mu2 = mu1.contiguous(), mu2.contiguous()
    count, dim = mu1.shape
    out = torch.empty(count, dtype=torch.float64, device=mu1.device)
    _cosines_kernel[(triton.cdiv(count, _ROWS),)](mu1, mu2, out, count, dim, ROWS=_ROWS, PART=_PART)
    return out


@on_its_own_device
def fused_pair_gradients(grad: Tensor, slopes: tuple[Tensor, ...], mu1: Tensor, mu2: Tensor) -> tuple[Tensor, ...]:
    """Gradients in mu (N, D), kappa (N,), mu' and kappa', float32, from those in log r (N,).

    `slopes` are those of log r in the cosine, kappa and kappa', (N,) each.
    """
    mu1, mu2 = mu1.contiguous(), mu2.contiguous()
    count, dim = mu1.shape
    out = (torch.empty_like(mu1), mu1.new_empty(count), torch.empty_like(mu2), mu2.new_empty(count))
    _gradients_kernel[(triton.cdiv(count, _ROWS),)](
        grad.contiguous(), *slopes, mu1, mu2, *out, count, dim, ROWS=_ROWS, PART=_PART
    )
    return out


if triton is not None:

    @triton.jit
    def _cosines_kernel(mu1_ptr, mu2_ptr, out_ptr, count, dim, ROWS: tl.constexpr, PART: tl.constexpr):
        """Each program: ROWS pairs."""
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = i < count
        total = tl.zeros([ROWS], dtype=tl.float64)
        for start in range(0, dim, PART):
            d = start + tl.arange(0, PART)
            at = i.to(tl.int64)[:, None] * dim + d[None, :]
            inside = live[:, None] & (d < dim)[None, :]
            a = tl.load(mu1_ptr + at, mask=inside, other=0.0).to(tl.float64)
            total += tl.sum(a * tl.load(mu2_ptr + at, mask=inside, other=0.0).to(tl.float64), 1)
        tl.store(out_ptr + i, total, mask=live)

    @triton.jit
    def _gradients_kernel(
        grad_ptr, slope_c_ptr, slope_1_ptr, slope_2_ptr, mu1_ptr, mu2_ptr,
        grad_mu1_ptr, grad_kappa1_ptr, grad_mu2_ptr, grad_kappa2_ptr, count, dim,
        ROWS: tl.constexpr, PART: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS pairs."""
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = i < count
        grad = tl.load(grad_ptr + i, mask=live, other=0.0)
        by_1 = grad * tl.load(slope_1_ptr + i, mask=live, other=0.0)
        by_2 = grad * tl.load(slope_2_ptr + i, mask=live, other=0.0)
        tl.store(grad_kappa1_ptr + i, by_1.to(tl.float32), mask=live)
        tl.store(grad_kappa2_ptr + i, by_2.to(tl.float32), mask=live)
        pull = (grad * tl.load(slope_c_ptr + i, mask=live, other=0.0)).to(tl.float32)
        for start in range(0, dim, PART):
            d = start + tl.arange(0, PART)
            at = i.to(tl.int64)[:, None] * dim + d[None, :]
            inside = live[:, None] & (d < dim)[None, :]
            a = tl.load(mu1_ptr + at, mask=inside, other=0.0)
            b = tl.load(mu2_ptr + at, mask=inside, other=0.0)
            tl.store(grad_mu1_ptr + at, pull[:, None] * b, mask=inside)
            tl.store(grad_mu2_ptr + at, pull[:, None] * a, mask=inside)
