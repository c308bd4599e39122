"""GPU version of special/bessel.py: logarithms of Bessel functions, in float64."""

import torch
from torch import Tensor

from aleator.fused.triton_helpers import clip, on_device, on_its_own_device, polynomial, tl, triton

_BLOCK = 128


@on_its_own_device
def fused_log_growth(
    order: float,
    kappa: Tensor,
    steps: int,
    value_start: tuple[float, ...],
    ratio_start: tuple[float, ...],
    largest: float,
) -> tuple[Tensor, Tensor]:
    """`plain_log_growth` of special/bessel.py: log_growth and its derivative, for kappa of any shape.

    The recurrence starts at order + steps, where `value_start` and `ratio_start` are Debye's polynomials E and G, and
    goes down to `order`. Beyond `largest` the leading term is exact.
    """
    flat = kappa.double().contiguous().view(-1)
    top = order + steps
    # Through memory, because Triton passes a float argument as a float32.
    scalars = (top, 2 * (top + 1), 2 * (order + 1), largest)
    factors = tuple(1 / (4 * v * (v + 1)) for v in (order + j for j in range(steps, 0, -1)))
    value, ratio = torch.empty_like(flat), torch.empty_like(flat)
    if flat.numel():
        _log_growth_kernel[(triton.cdiv(flat.numel(), _BLOCK),)](
            flat,
            on_device((*scalars, *value_start, *ratio_start, *factors), flat.device),
            value,
            ratio,
            flat.numel(),
            len(value_start),
            len(ratio_start),
            steps,
            _BLOCK,
        )
    return value.view(kappa.shape), ratio.view(kappa.shape)


if triton is not None:

    @triton.jit
    def _log1p(x):
        """log(1 + x) for x >= 0, corrected to first order for the rounding of 1 + x."""
        u = 1.0 + x
        return tl.log(u) + (x - (u - 1.0)) / u

    @triton.jit
    def _log_growth_kernel(
        kappa_ptr, table_ptr, value_ptr, ratio_ptr, count, value_degree, ratio_degree, steps, BLOCK: tl.constexpr
    ):
        """One thread per kappa: Debye's expansion at the highest order, then the recurrence of `plain_log_growth`."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = i < count
        kappa_in = tl.load(kappa_ptr + i, mask=live, other=1.0)
        top, above_scale = tl.load(table_ptr), tl.load(table_ptr + 1)
        ratio_scale, largest = tl.load(table_ptr + 2), tl.load(table_ptr + 3)
        value_ptrs = table_ptr + 4
        ratio_ptrs = value_ptrs + value_degree
        factor_ptrs = ratio_ptrs + ratio_degree

        kappa = clip(kappa_in, 0.0, largest)
        kappa2 = kappa * kappa
        p = tl.sqrt(kappa2 + top * top)
        t = top / p
        excess = kappa / (p + top) * kappa / top
        growth = polynomial(value_ptrs, value_degree, t) + top * excess - top * _log1p(excess * 0.5)
        growth += 0.5 * tl.log(t)
        f = kappa * 0.0 + 1.0
        above = (1.0 / (p + top) - polynomial(ratio_ptrs, ratio_degree, t) / p / p) * above_scale
        for k in range(steps):
            following = f + tl.load(factor_ptrs + k) * kappa2 * above
            above = f
            f = following
            if (steps - k) % 10 == 1:
                growth += tl.log(f)
                above = above / f
                f = f * 0.0 + 1.0
        ratio = above / ratio_scale * kappa
        growth = tl.where(growth < 0.0, 0.0, growth)
        tl.store(value_ptr + i, tl.where(kappa_in > largest, kappa_in, growth), mask=live)
        tl.store(ratio_ptr + i, tl.where(ratio > 1.0, 1.0, ratio), mask=live)
