"""GPU version of encoders/outputs.py: what follows the output layers of an encoder, in float32."""

import math

import torch
from torch import Tensor

from aleator.fused.triton_helpers import ROW_COUNT, clip, on_its_own_device, tl, triton

_BLOCK = 256  # numbers of a program
_TILE = 1024  # coordinates of a program


@on_its_own_device
def fused_directions(embeddings: Tensor, axis: Tensor, shortest: float, longest: float) -> tuple[Tensor, Tensor]:
    """Directions (..., D) of embeddings (..., D), and the lengths (...) of the embeddings."""
    embeddings = embeddings.contiguous()
    mu, norm = torch.empty_like(embeddings), embeddings.new_empty(embeddings.shape[:-1])
    count, dim = norm.numel(), embeddings.shape[-1]
    if count:
        width, rows = _tile(dim)
        _directions_kernel[(triton.cdiv(count, rows),)](
            embeddings, axis.contiguous(), mu, norm, count, dim, shortest, longest, width, rows
        )
    return mu, norm


@on_its_own_device
def fused_directions_backward(
    grad_mu: Tensor, grad_norm: Tensor, embeddings: Tensor, shortest: float, longest: float
) -> Tensor:
    """Gradient in the embeddings (..., D)."""
    embeddings = embeddings.contiguous()
    grad = torch.empty_like(embeddings)
    count, dim = grad_norm.numel(), embeddings.shape[-1]
    if count:
        width, rows = _tile(dim)
        _directions_backward_kernel[(triton.cdiv(count, rows),)](
            grad_mu.contiguous(), grad_norm.contiguous(), embeddings, grad, count, dim, shortest, longest, width, rows
        )
    return grad


@on_its_own_device
def fused_bounded_kappa(
    u: Tensor, scale: Tensor, shift: Tensor, middle: float, half_width: float
) -> tuple[Tensor, Tensor]:
    """kappa and its derivative in u, in the shape of u."""
    u = u.contiguous()
    kappa, slope = torch.empty_like(u), torch.empty_like(u)
    if u.numel():
        _kappa_kernel[(triton.cdiv(u.numel(), _BLOCK),)](
            u, scale, shift, kappa, slope, u.numel(), middle, half_width, math.pi / 2, _BLOCK
        )
    return kappa, slope


def _tile(dim: int) -> tuple[int, int]:
    """Columns of a tile that holds whole vectors, and its rows."""
    width = triton.next_power_of_2(dim)
    return width, max(1, _TILE // width)


if triton is not None:

    @triton.jit
    def _arctan(v):
        """arctan(v) to 1e-7: at most three quarters of a right angle, then a polynomial around 0 or an eighth turn."""
        x = tl.abs(v)
        steep = x > 2.414213562373095  # tan(3 pi / 8)
        x = tl.where(steep, -1.0 / tl.where(steep, x, 1.0), x)
        middle = x > 0.4142135623730951  # tan(pi / 8)
        x = tl.where(middle, (x - 1.0) / (x + 1.0), x)
        y = x * x
        series = ((-6.0263052230e-02 * y + 1.0569828797e-01) * y - 1.4239532667e-01) * y + 1.9998183041e-01
        series = ((series * y - 3.3333306893e-01) * y + 1.0) * x
        angle = series + tl.where(middle, 0.7853981633974483, 0.0) + tl.where(steep, 1.5707963267948966, 0.0)
        return tl.where(v < 0, -angle, angle)

    @triton.jit(do_not_specialize=ROW_COUNT)
    def _directions_kernel(
        e_ptr, axis_ptr, mu_ptr, norm_ptr, count, dim, shortest, longest, WIDTH: tl.constexpr, ROWS: tl.constexpr
    ):
        """Each program: ROWS embeddings."""
        row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        d = tl.arange(0, WIDTH)
        inside = (row < count)[:, None] & (d < dim)[None, :]
        at = row[:, None] * dim + d[None, :]
        e = clip(tl.load(e_ptr + at, mask=inside, other=0.0), -longest, longest)
        norm = tl.sqrt(tl.sum(e * e, 1))
        short = norm < shortest
        axis = tl.load(axis_ptr + d, mask=d < dim, other=0.0)
        mu = tl.where(short[:, None], axis[None, :], e / tl.where(short, 1.0, norm)[:, None])
        tl.store(mu_ptr + at, mu, mask=inside)
        tl.store(norm_ptr + row, norm, mask=row < count)

    @triton.jit(do_not_specialize=ROW_COUNT)
    def _directions_backward_kernel(
        grad_mu_ptr, grad_norm_ptr, e_ptr, grad_ptr, count, dim, shortest, longest,
        WIDTH: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS embeddings e = |e| mu: de.grad = (grad_mu - (mu.grad_mu) mu) / |e| + grad_norm mu."""
        row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        d = tl.arange(0, WIDTH)
        inside = (row < count)[:, None] & (d < dim)[None, :]
        at = row[:, None] * dim + d[None, :]
        given = tl.load(e_ptr + at, mask=inside, other=0.0)
        e = clip(given, -longest, longest)
        norm = tl.sqrt(tl.sum(e * e, 1))
        mu = e / tl.where(norm > 0, norm, 1.0)[:, None]
        grad_mu = tl.load(grad_mu_ptr + at, mask=inside, other=0.0)
        grad_norm = tl.load(grad_norm_ptr + row, mask=row < count, other=0.0)
        across = (grad_mu - tl.sum(mu * grad_mu, 1)[:, None] * mu) / tl.where(norm > 0, norm, 1.0)[:, None]
        grad = tl.where((norm < shortest)[:, None], 0.0, across) + grad_norm[:, None] * mu
        # Nothing flows through a coordinate that was limited.
        tl.store(grad_ptr + at, tl.where(tl.abs(given) > longest, 0.0, grad), mask=inside)

    @triton.jit
    def _kappa_kernel(
        u_ptr, scale_ptr, shift_ptr, kappa_ptr, slope_ptr, count, middle, half_width, half_pi, BLOCK: tl.constexpr
    ):
        """Each program: BLOCK kappas, and their derivatives in u."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        scale = tl.load(scale_ptr)
        v = half_pi * (tl.load(u_ptr + i, mask=i < count, other=0.0) * scale + tl.load(shift_ptr))
        kappa = tl.exp(middle + half_width / half_pi * _arctan(v))
        tl.store(kappa_ptr + i, kappa, mask=i < count)
        tl.store(slope_ptr + i, kappa * half_width * scale / (1.0 + v * v), mask=i < count)
