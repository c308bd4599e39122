"""GPU version of posteriors/sampling.py: vMF samples and their gradients, in the dtype of the samples."""

from torch import Tensor

from aleator.fused.triton_helpers import interval_of, on_its_own_device, polynomial, tl, triton

_PROGRAMS = 2048


@on_its_own_device
def fused_sample(
    z: Tensor, mu: Tensor, value: Tensor, slope: Tensor | None, first: float, spacing: float
) -> Tensor | None:
    """Turn the noise z (K, B, D) into samples, in place. With `slope`, return d(theta)/dkappa / sin(theta), (K, B).

    `value` and `slope` (B, intervals, 4) are the rows of `AngleTable` (special/angles.py).
    """
    count, dim = z.shape[0] * z.shape[1], z.shape[2]
    angle_slope = z.new_empty(z.shape[:2]) if slope is not None else None
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    if count:
        _sample_kernel[(triton.cdiv(count, block),)](
            z,
            mu.contiguous(),
            value.contiguous(),
            value if slope is None else slope.contiguous(),
            z if angle_slope is None else angle_slope,
            count,
            z.shape[1],
            dim,
            value.shape[1],
            first,
            1 / spacing,
            slope is not None,
            width,
            block,
        )
    return angle_slope


@on_its_own_device
def fused_sample_backward(
    grad: Tensor, z: Tensor, mu: Tensor, slope: Tensor | None, need_mu: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in mu (B, D) and kappa (B,), summed over the samples (K, B, D); None for one that is not needed."""
    samples, batch, dim = z.shape
    width = triton.next_power_of_2(dim)
    block = max(1, 512 // width)
    rows = triton.cdiv(batch, block)
    # Each program sums over some of the samples: enough programs to fill the device, enough samples for each.
    parts = max(1, min(samples // 8, _PROGRAMS // max(rows, 1)))
    parts = parts if z.numel() else 0  # then nothing is summed
    # Zeros, so that the lines are in the cache: rows of D numbers fill a line in parts, which would be read first.
    grad_mu, grad_kappa = mu.new_zeros(parts, batch, dim if need_mu else 0), mu.new_empty(parts, batch)
    if parts:
        _sample_backward_kernel[(rows, parts)](
            grad.contiguous(),
            z,
            mu.contiguous(),
            z if slope is None else slope,
            grad_mu,
            grad_kappa,
            samples,
            triton.cdiv(samples, parts),
            batch,
            dim,
            need_mu,
            slope is not None,
            width,
            block,
        )
    return grad_mu.sum(0) if need_mu else None, None if slope is None else grad_kappa.sum(0)


if triton is not None:

    @triton.jit
    def _sample_kernel(
        z_ptr, mu_ptr, value_ptr, slope_ptr, angle_slope_ptr, count, batch, dim, intervals, first, per_node,
        SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK samples. The part of the noise orthogonal to mu, its length, the angle, the sample."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        live = i < count
        inside = live[:, None] & (d < dim)[None, :]
        at = i.to(tl.int64)[:, None] * dim + d[None, :]
        row = i % batch
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        mu = tl.load(mu_ptr + row[:, None] * dim + d[None, :], mask=inside, other=0.0)
        z -= tl.sum(z * mu, 1)[:, None] * mu
        sigma = tl.sqrt(tl.sum(z * z, 1))
        interval, x = interval_of(sigma, first, per_node, intervals)
        cell = (row.to(tl.int64) * intervals + interval) * 4
        scale = polynomial(value_ptr + cell, 4, x)
        theta = scale * sigma
        sine = tl.where(theta > 0, tl.sin(theta) / theta, 1.0) * scale  # sin(theta) / sigma
        tl.store(z_ptr + at, sine[:, None] * z + tl.cos(theta)[:, None] * mu, mask=inside)
        if SLOPES:
            slope = polynomial(slope_ptr + cell, 4, x)
            tl.store(angle_slope_ptr + i, slope / tl.maximum(sine, 1e-30), mask=live)

    @triton.jit
    def _sample_backward_kernel(
        grad_ptr, z_ptr, mu_ptr, slope_ptr, grad_mu_ptr, grad_kappa_ptr, samples, stretch, batch, dim,
        NEED_MU: tl.constexpr, SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Each program: BLOCK posteriors and `stretch` of their samples, over which the gradients are summed."""
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = tl.program_id(1)
        d = tl.arange(0, WIDTH)
        live = row < batch
        inside = live[:, None] & (d < dim)[None, :]
        mu = tl.load(mu_ptr + row[:, None] * dim + d[None, :], mask=inside, other=0.0)
        total_mu = mu * 0.0
        total_kappa = tl.sum(mu, 1) * 0.0
        for k in range(part * stretch, tl.minimum(part * stretch + stretch, samples)):
            i = tl.cast(k, tl.int64) * batch + row
            at = i[:, None] * dim + d[None, :]
            z = tl.load(z_ptr + at, mask=inside, other=0.0)
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
            cosine = tl.sum(z * mu, 1)
            along = tl.sum(grad * mu, 1)
            if NEED_MU:
                total_mu += cosine[:, None] * grad - along[:, None] * z
            if SLOPES:
                slope = tl.load(slope_ptr + i, mask=live, other=0.0)
                total_kappa += slope * (cosine * tl.sum(grad * z, 1) - along)
        row += part * batch
        if NEED_MU:
            tl.store(grad_mu_ptr + row[:, None] * dim + d[None, :], total_mu, mask=inside)
        if SLOPES:
            tl.store(grad_kappa_ptr + row, total_kappa, mask=live)
