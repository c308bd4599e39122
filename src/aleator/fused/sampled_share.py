"""Gradients of the share among candidates with drawn cosines (losses/sampled_share.py), in float32."""

import torch
from torch import Tensor

from aleator.fused.pieces import on_its_own_device, tl, triton
from aleator.fused.softmax_share import log_value, log_value_slope

_SAMPLES = 512  # of a program, at most
_CANDIDATES = 16  # of a tile: Triton's smallest side of a matrix product


@on_its_own_device
def fused_sampled_share_gradients(
    grad: Tensor,
    z: Tensor,
    mu: Tensor,
    cosines: Tensor,
    total: Tensor,
    slope_c: Tensor,
    slope_kappa: Tensor | None,
    log_linear: tuple[float, float, bool],
    need_mu: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients in z (K, B, D), mu (B, 1 + M, D) and kappa (B, 1 + M) from that in the log shares (K, B).

    `total` (K, B) is the logarithm of the share's denominator, `log_linear` the kernel (fused/softmax_share.py).
    `slope_c` and `slope_kappa` are derivatives of the cosines (K, B, 1 + M), in the layout of `fused_sampled_cosines`.
    """
    samples, batch, dim = z.shape
    candidates = mu.shape[1]
    block = max(16, min(_SAMPLES, triton.next_power_of_2(samples)))
    blocks = triton.cdiv(samples, block)
    grad, total = (x.mT.contiguous() for x in (grad, total))
    cosines, slope_c = (x.permute(1, 2, 0).contiguous() for x in (cosines, slope_c))
    slopes = cosines if slope_kappa is None else slope_kappa.permute(1, 2, 0).contiguous()
    grad_z = torch.empty_like(z, memory_format=torch.contiguous_format)
    # Each block of samples has sums of its own.
    grad_mu, grad_kappa = mu.new_empty(blocks, *mu.shape), mu.new_empty(blocks, batch, candidates)
    slope, offset, saturates = log_linear
    if grad.numel():
        _share_gradients_kernel[(batch, blocks)](
            grad, cosines, total, slope_c, slopes, z.contiguous(), mu.contiguous(), grad_z, grad_mu, grad_kappa,
            samples, batch, candidates, dim, slope, offset, saturates, need_mu, slope_kappa is not None,
            max(16, triton.next_power_of_2(dim)), block, _CANDIDATES, num_warps=max(1, min(8, block // 64)),
        )  # fmt: skip
    return (
        grad_z,
        _over_blocks(grad_mu) if need_mu else None,
        None if slope_kappa is None else _over_blocks(grad_kappa),
    )


def _over_blocks(sums: Tensor) -> Tensor:
    return sums.squeeze(0) if len(sums) == 1 else sums.sum(0)


if triton is not None:

    @triton.jit
    def _share_gradients_kernel(
        grad_ptr, cosine_ptr, total_ptr, slope_c_ptr, slope_kappa_ptr, z_ptr, mu_ptr, grad_z_ptr, grad_mu_ptr,
        grad_kappa_ptr, samples, batch, candidates, dim, scale, offset, SATURATES: tl.constexpr,
        NEED_MU: tl.constexpr, SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
        CANDIDATES: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK samples of one anchor, with tiles of CANDIDATES negatives and then the positive."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = k < samples
        grad = tl.load(grad_ptr + anchor * samples + k, mask=live, other=0.0)
        total = tl.load(total_ptr + anchor * samples + k, mask=live, other=0.0)
        z_at = (k.to(tl.int64) * batch + anchor)[:, None] * dim + d[None, :]
        in_z = live[:, None] & (d < dim)[None, :]
        if NEED_MU:
            z = tl.load(z_ptr + z_at, mask=in_z, other=0.0)
        grad_z = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
        rest = tl.zeros([BLOCK], dtype=tl.float32)  # 1 - share, by summation: the subtraction would lose digits
        sums = (tl.program_id(1) * batch + anchor) * candidates
        first = anchor * candidates
        for begin in range(1, candidates, CANDIDATES):
            m = begin + tl.arange(0, CANDIDATES)
            inside = (m < candidates)[:, None] & live[None, :]
            at = (first + m)[:, None] * samples + k[None, :]
            t = tl.load(cosine_ptr + at, mask=inside, other=0.0)
            share = tl.exp(log_value(t, scale, offset, SATURATES) - total[None, :])
            share = tl.where(inside, share, 0.0)
            rest += tl.sum(share, 0)
            weight = -grad[None, :] * share * log_value_slope(t, scale, offset, SATURATES)
            weight_c = weight * tl.load(slope_c_ptr + at, mask=inside, other=0.0)
            in_mu = (m < candidates)[:, None] & (d < dim)[None, :]
            mu = tl.load(mu_ptr + (first + m)[:, None] * dim + d[None, :], mask=in_mu, other=0.0)
            grad_z += tl.dot(tl.trans(weight_c), mu, input_precision="tf32x3")
            if NEED_MU:
                of_mu = tl.dot(weight_c, z, input_precision="tf32x3")
                tl.store(grad_mu_ptr + (sums + m)[:, None] * dim + d[None, :], of_mu, mask=in_mu)
            if SLOPES:
                weight *= tl.load(slope_kappa_ptr + at, mask=inside, other=0.0)
                tl.store(grad_kappa_ptr + sums + m, tl.sum(weight, 1), mask=m < candidates)
        at = first * samples + k
        t = tl.load(cosine_ptr + at, mask=live, other=0.0)
        weight = grad * rest * log_value_slope(t, scale, offset, SATURATES)
        weight_c = weight * tl.load(slope_c_ptr + at, mask=live, other=0.0)
        mu = tl.load(mu_ptr + first * dim + d, mask=d < dim, other=0.0)
        grad_z += weight_c[:, None] * mu[None, :]
        tl.store(grad_z_ptr + z_at, grad_z, mask=in_z)
        if NEED_MU:
            tl.store(grad_mu_ptr + sums * dim + d, tl.sum(weight_c[:, None] * z, 0), mask=d < dim)
        if SLOPES:
            weight *= tl.load(slope_kappa_ptr + at, mask=live, other=0.0)
            tl.store(grad_kappa_ptr + sums, tl.sum(weight, 0))
