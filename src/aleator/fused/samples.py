"""vMF samples and their gradients, and what the table of their angles is asked with; in the dtype of what is given."""

from torch import Tensor

from aleator.fused.pieces import interval_of, on_its_own_device, polynomial, tl, triton

_PROGRAMS = 2048
_KAPPAS = 128  # to a program


@on_its_own_device
def fused_basis(kappa: Tensor, shift: float, degree: int, slopes: bool) -> tuple[Tensor, Tensor | None]:
    """quantile.plain_basis, with the polynomials by their recurrence, in float64 up to the last rounding."""
    kappa = kappa.contiguous()
    basis = kappa.new_empty(degree, len(kappa))
    parts = kappa.new_empty(2 * degree, len(kappa)) if slopes else None
    if len(kappa):
        _basis_kernel[(triton.cdiv(len(kappa), _KAPPAS),)](
            kappa, basis, basis if parts is None else parts, len(kappa), shift, degree, slopes, _KAPPAS
        )
    return basis, parts


@on_its_own_device
def fused_sample(
    z: Tensor, mu: Tensor, value: Tensor, slope: Tensor | None, first: float, spacing: float
) -> Tensor | None:
    """Turns the noise z (K, B, D) into samples, in place; with slopes, returns d(theta)/dkappa / sin(theta), (K, B).

    `value` and `slope` (B, intervals, 4) are the rows of quantile.AngleTable.
    """
    count, dim = z.shape[0] * z.shape[1], z.shape[2]
    kept = z.new_empty(z.shape[:2]) if slope is not None else None
    width = triton.next_power_of_2(dim)
    block = max(1, 2048 // width)
    if count:
        _sample_kernel[(triton.cdiv(count, block),)](
            z,
            mu.contiguous(),
            value.contiguous(),
            value if slope is None else slope.contiguous(),
            z if kept is None else kept,
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
    return kept


@on_its_own_device
def fused_sample_backward(grad: Tensor, z: Tensor, mu: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients in mu (B, D) and kappa (B,), summed over the samples (K, B, D)."""
    samples, batch, dim = z.shape
    width = triton.next_power_of_2(dim)
    block = max(1, 512 // width)
    rows = triton.cdiv(batch, block)
    # A program sums a stretch of the samples; enough of them to fill the device, each with enough to do.
    parts = max(1, min(samples // 8, _PROGRAMS // max(rows, 1)))
    grad_mu, grad_kappa = mu.new_zeros(parts, batch, dim), mu.new_zeros(parts, batch)
    if z.numel():
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
            slope is not None,
            width,
            block,
        )
    return grad_mu.sum(0), grad_kappa.sum(0)


if triton is not None:

    @triton.jit
    def _basis_kernel(kappa_ptr, basis_ptr, parts_ptr, count, shift, degree, SLOPES: tl.constexpr, BLOCK: tl.constexpr):
        """BLOCK kappas a program: T_n and what multiplies it."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        complement = shift / (tl.load(kappa_ptr + i, mask=live, other=1.0).to(tl.float64) + shift)
        x = 1.0 - 2.0 * complement
        scale2 = complement / shift
        scale = tl.sqrt(scale2)
        before, now = x, x * 0.0 + 1.0  # T_-1 = T_1
        for n in range(degree):
            tl.store(basis_ptr + n * count + i, now * scale, mask=live)
            if SLOPES:
                tl.store(parts_ptr + n * count + i, now * (shift * scale2 * scale2 * scale), mask=live)
                tl.store(parts_ptr + (n + degree) * count + i, now * (scale2 * scale * -0.5), mask=live)
            before, now = now, 2.0 * x * now - before

    @triton.jit
    def _sample_kernel(
        z_ptr, mu_ptr, value_ptr, slope_ptr, kept_ptr, count, batch, dim, intervals, first, per_node,
        SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """BLOCK samples a program: the part of the noise orthogonal to mu, its length, the angle, the sample."""
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
            tl.store(kept_ptr + i, slope / tl.maximum(sine, 1e-30), mask=live)

    @triton.jit
    def _sample_backward_kernel(
        grad_ptr, z_ptr, mu_ptr, slope_ptr, grad_mu_ptr, grad_kappa_ptr, samples, stretch, batch, dim,
        SLOPES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """BLOCK posteriors a program, summed over a stretch of their samples."""
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
            total_mu += cosine[:, None] * grad - along[:, None] * z
            if SLOPES:
                slope = tl.load(slope_ptr + i, mask=live, other=0.0)
                total_kappa += slope * (cosine * tl.sum(grad * z, 1) - along)
        row += part * batch
        tl.store(grad_mu_ptr + row[:, None] * dim + d[None, :], total_mu, mask=inside)
        if SLOPES:
            tl.store(grad_kappa_ptr + row, total_kappa, mask=live)
