"""GPU version of losses/sampled_cosines.py. The noise is drawn where it is used and never stored."""

from typing import Any

import torch
from torch import Tensor

from aleator.fused.triton_helpers import clip, interval_of, on_its_own_device, polynomial, tl, triton

_CHUNK, _SAMPLES = 12, 512  # to a program, at most


@on_its_own_device
def fused_sampled_cosines(
    z: Tensor, mu: Tensor, kappa: Tensor, noise: Any, table: Any, slopes: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """z.z' of z (K, B, D) with samples of posteriors (B, M), its derivative in c and, with `slopes`, in kappa.

    (K, B, M) each, with k fastest in memory. `table` is an `AngleTable` or an `AngleSeries`. `noise` is a seed on the
    device, or the noise itself as `draw_noise` of losses/sampled_cosines.py returns it.
    """
    samples, batch, dim = z.shape
    others = kappa.shape[1]
    scale, scale_slope = table.rows(kappa.reshape(-1), slopes)
    is_series = scale.dim() == 2  # of an AngleSeries
    is_seed = isinstance(noise, Tensor)
    first, sigma = (noise, noise) if is_seed else (x.permute(1, 2, 0).contiguous() for x in noise)
    out = [z.new_empty(*kappa.shape, samples) for _ in range(3 if slopes else 2)]
    block = min(triton.next_power_of_2(samples), _SAMPLES)
    chunk = triton.cdiv(others, triton.cdiv(others, _CHUNK))
    if out[0].numel():
        _cosines_kernel[(batch, triton.cdiv(samples, block), triton.cdiv(others, chunk))](
            _samples_last(z),
            mu.contiguous(),
            scale.contiguous(),
            scale if scale_slope is None else scale_slope.contiguous(),
            first,
            sigma,
            out[0],
            out[1],
            out[-1],
            samples,
            others,
            dim,
            (dim - 2) // 2,
            scale.shape[1],
            table.middle if is_series else table.first,
            1 / (table.half if is_series else table.spacing),
            chunk,
            TERMS=scale.shape[1] if is_series else 0,
            IS_SEED=is_seed,
            SLOPES=slopes,
            BLOCK=block,
        )
    cosine, slope_c, *slope_kappa = (x.permute(2, 0, 1) for x in out)
    return cosine, slope_c, slope_kappa[0] if slope_kappa else None


@on_its_own_device
def fused_sampled_cosines_backward(
    grad: Tensor, z: Tensor, mu: Tensor, slope_c: Tensor, slope_kappa: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients in z, mu and kappa, as `plain_sampled_cosines_backward` returns them."""
    samples, batch, dim = z.shape
    others = mu.shape[1]
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    grad, slope_c = (x.permute(1, 2, 0).contiguous() for x in (grad, slope_c))
    z, mu = z.contiguous(), mu.contiguous()
    grad_z, grad_mu, grad_kappa = torch.empty_like(z), torch.empty_like(mu), mu.new_empty(batch, others)
    if grad.numel() and needed[0]:
        _anchors_kernel[(batch, triton.cdiv(samples, block))](
            grad, slope_c, mu, grad_z, samples, batch, others, dim, width, block
        )
    if grad.numel() and (needed[1] or slope_kappa is not None):
        slope_kappa = None if slope_kappa is None else slope_kappa.permute(1, 2, 0).contiguous()
        _posteriors_kernel[(batch * others,)](
            grad, slope_c, slope_c if slope_kappa is None else slope_kappa, z, grad_mu, grad_kappa,
            samples, batch, others, dim, needed[1], slope_kappa is not None, width, block,
        )  # fmt: skip
    return (
        grad_z if needed[0] else None,
        grad_mu if needed[1] else None,
        None if slope_kappa is None else grad_kappa,
    )


def _samples_last(z: Tensor) -> Tensor:
    """z (K, B, D) laid out as (B, D, K)."""
    samples, batch, dim = z.shape
    last = z.permute(1, 2, 0)
    if last.is_contiguous():
        return last
    last = torch.empty_like(last, memory_format=torch.contiguous_format)
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    _samples_last_kernel[(batch, triton.cdiv(samples, block))](z.contiguous(), last, samples, batch, dim, width, block)
    return last


if triton is not None:

    @triton.jit
    def _samples_last_kernel(z_ptr, last_ptr, samples, batch, dim, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
        """Each program: BLOCK samples of an anchor."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        inside = (k < samples)[:, None] & (d < dim)[None, :]
        z = tl.load(z_ptr + (k.to(tl.int64) * batch + anchor)[:, None] * dim + d[None, :], mask=inside, other=0.0)
        tl.store(last_ptr + (anchor * dim + d)[None, :] * samples + k[:, None], z, mask=inside)

    @triton.jit
    def _uniform(bits, SIZE: tl.constexpr):
        """Uniform number in (0, 1) from SIZE random bits; never 0."""
        return (bits.to(tl.float32) + 0.5) * (1.0 / (1 << SIZE))

    @triton.jit
    def _sine_cosine(angle):
        """Sine and cosine for |angle| <= pi, to 1e-7, from polynomials for half the angle.

        tl.sin and tl.cos are slower, because they take any angle.
        """
        t = 0.5 * angle
        x = t * t
        s = -2.388970765e-08 * x + 2.752530233e-06
        s = ((s * x - 1.984086194e-04) * x + 8.333330982e-03) * x - 1.666666662e-01
        s = (s * x + 1.0) * t
        c = -2.605140119e-07 * x + 2.476015853e-05
        c = ((c * x - 1.388836142e-03) * x + 4.166663627e-02) * x - 4.999999936e-01
        c = c * x + 1.0
        return 2.0 * s * c, 1.0 - 2.0 * s * s

    @triton.jit
    def _noise(seed, at, dim, pairs):
        """First coordinate and squared length of a standard normal vector in D-1 dimensions, for each number `at`.

        Philox with seven rounds passes all tests of randomness (Salmon et al. 2011). One call gives 128 bits: 28 for
        the radius and 20 for the angle of two normal numbers, 20 for each of four uniform numbers.
        """
        low = (at & 0xFFFFFFFF).to(tl.uint32)
        high = (at >> 32).to(tl.uint32)
        none = low * 0
        a, b, e, f = tl.philox(seed, low, high, none, none, 7)
        # Box and Muller 1958: two normals from two uniforms. The angle lies in (-pi, pi).
        radius = tl.sqrt(-2.0 * tl.log(_uniform(a >> 4, 28)))
        sine, cosine = _sine_cosine(6.283185307179586 * (_uniform(((a & 0xF) << 16) | (b >> 16), 20) - 0.5))
        first = radius * cosine
        square = first * first
        if dim % 2 == 1:
            square += radius * sine * radius * sine
        # The squares of two coordinates sum to -2 log u.
        product = tl.where(pairs > 0, _uniform(((b & 0xFFFF) << 4) | (e >> 28), 20), 1.0)
        product *= tl.where(pairs > 1, _uniform((e >> 8) & 0xFFFFF, 20), 1.0)
        product *= tl.where(pairs > 2, _uniform(((e & 0xFF) << 12) | (f >> 20), 20), 1.0)
        product *= tl.where(pairs > 3, _uniform(f & 0xFFFFF, 20), 1.0)
        square -= 2.0 * tl.log(product)
        for j in range(4, pairs, 4):
            a, b, e, f = tl.philox(seed, low, high, none + j // 4, none, 7)
            product = _uniform(a >> 12, 20)
            product *= tl.where(j + 1 < pairs, _uniform(b >> 12, 20), 1.0)
            product *= tl.where(j + 2 < pairs, _uniform(e >> 12, 20), 1.0)
            product *= tl.where(j + 3 < pairs, _uniform(f >> 12, 20), 1.0)
            square -= 2.0 * tl.log(product)
        return first, square

    @triton.jit
    def _series(coefficients_ptr, x, TERMS: tl.constexpr):
        """Chebyshev series at x by Clenshaw's rule."""
        now, before = x * 0.0, x * 0.0
        for j in tl.static_range(1, TERMS):
            now, before = 2.0 * x * now - before + tl.load(coefficients_ptr + (TERMS - j)), now
        return x * now - before + tl.load(coefficients_ptr)

    @triton.jit
    def _cosines_kernel(
        z_ptr, mu_ptr, scale_ptr, scale_slope_ptr, first_ptr, sigma_ptr, cosine_ptr, slope_c_ptr, slope_kappa_ptr,
        samples, others, dim, pairs, intervals, start, per_unit, chunk,
        TERMS: tl.constexpr, IS_SEED: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK samples of one anchor and up to `chunk` of the posteriors it is compared with.

        z is laid out as (B, D, K). A sum over D in a loop, and not over an axis of a tile, gives each sample to one
        thread: after a sum over an axis, all threads that held parts of it would repeat the work on the result. TERMS
        is the number of terms of the series of angles, or 0 for the table.
        """
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = k < samples
        z_here = z_ptr + anchor * dim * samples + k
        begin = tl.program_id(2) * chunk
        for m in range(begin, tl.minimum(begin + chunk, others)):
            row = anchor * others + m
            at = row * samples + k
            c = tl.zeros([BLOCK], dtype=z_ptr.dtype.element_ty)
            for j in range(dim):
                c += tl.load(z_here + j * samples, mask=live, other=0.0) * tl.load(mu_ptr + row * dim + j)
            c = clip(c, -1.0, 1.0)
            if IS_SEED:
                first, square = _noise(tl.load(first_ptr), at, dim, pairs)
                first, square = first.to(c.dtype), square.to(c.dtype)
                sigma = tl.sqrt(square)
            else:
                first = tl.load(first_ptr + at, mask=live, other=1.0)
                sigma = tl.load(sigma_ptr + at, mask=live, other=1.0)
                square = sigma * sigma
            if TERMS:
                cell = row * TERMS
                x = tl.minimum(tl.maximum((square - start) * per_unit, -1.0), 1.0)
                theta = _series(scale_ptr + cell, x, TERMS) * sigma
                sine, cosine = _sine_cosine(theta)
            else:
                interval, x = interval_of(sigma, start, per_unit, intervals)
                cell = (row * intervals + interval) * 4
                theta = polynomial(scale_ptr + cell, 4, x) * sigma
                sine, cosine = tl.sin(theta), tl.cos(theta)
            around = tl.sqrt(tl.maximum(1.0 - c * c, 1e-12))
            s = first / tl.maximum(sigma, 1e-30)
            tl.store(cosine_ptr + at, cosine * c + sine * s * around, mask=live)
            tl.store(slope_c_ptr + at, cosine - sine * s * c / around, mask=live)
            if SLOPES:
                if TERMS:
                    scale_slope = _series(scale_slope_ptr + cell, x, TERMS)
                else:
                    scale_slope = polynomial(scale_slope_ptr + cell, 4, x)
                tl.store(slope_kappa_ptr + at, scale_slope * sigma * (cosine * s * around - sine * c), mask=live)

    @triton.jit
    def _anchors_kernel(
        grad_ptr, slope_c_ptr, mu_ptr, grad_z_ptr, samples, batch, others, dim, WIDTH: tl.constexpr, BLOCK: tl.constexpr
    ):
        """Each program: BLOCK samples of one anchor. The gradient in z, summed over the posteriors."""
        anchor = tl.program_id(0).to(tl.int64)
        k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = k < samples
        total = tl.zeros([BLOCK, WIDTH], dtype=grad_z_ptr.dtype.element_ty)
        for m in range(others):
            row = anchor * others + m
            grad_c = tl.load(grad_ptr + row * samples + k, mask=live, other=0.0)
            grad_c *= tl.load(slope_c_ptr + row * samples + k, mask=live, other=0.0)
            mu = tl.load(mu_ptr + row * dim + d, mask=d < dim, other=0.0)
            total += grad_c[:, None] * mu[None, :]
        z_at = (k.to(tl.int64) * batch + anchor)[:, None] * dim + d[None, :]
        tl.store(grad_z_ptr + z_at, total, mask=live[:, None] & (d < dim)[None, :])

    @triton.jit
    def _posteriors_kernel(
        grad_ptr, slope_c_ptr, slope_kappa_ptr, z_ptr, grad_mu_ptr, grad_kappa_ptr, samples, batch, others, dim,
        NEED_MU: tl.constexpr, SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: one posterior. The gradients in its mu and kappa, summed over the samples of its anchor."""
        row = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        in_mu = tl.zeros([WIDTH], dtype=grad_mu_ptr.dtype.element_ty)
        in_kappa = tl.zeros([BLOCK], dtype=grad_mu_ptr.dtype.element_ty)
        for begin in range(0, samples, BLOCK):
            k = begin + tl.arange(0, BLOCK)
            live = k < samples
            grad = tl.load(grad_ptr + row * samples + k, mask=live, other=0.0)
            if SLOPES:
                in_kappa += grad * tl.load(slope_kappa_ptr + row * samples + k, mask=live, other=0.0)
            if NEED_MU:
                grad_c = grad * tl.load(slope_c_ptr + row * samples + k, mask=live, other=0.0)
                z_at = (k.to(tl.int64) * batch + row // others)[:, None] * dim + d[None, :]
                z = tl.load(z_ptr + z_at, mask=live[:, None] & (d < dim)[None, :], other=0.0)
                in_mu += tl.sum(grad_c[:, None] * z, 0)
        if NEED_MU:
            tl.store(grad_mu_ptr + row * dim + d, in_mu, mask=d < dim)
        if SLOPES:
            tl.store(grad_kappa_ptr + row, tl.sum(in_kappa, 0))
