"""GPU version of special/angles.py: basis functions of the table of angles, in the dtype of kappa."""

from torch import Tensor

from aleator.fused.triton_helpers import on_its_own_device, tl, triton

_KAPPAS = 128  # to a program


@on_its_own_device
def fused_basis(kappa: Tensor, shift: float, degree: int, slopes: bool) -> tuple[Tensor, Tensor | None]:
    """`plain_basis` of special/angles.py: the polynomials by their recurrence, in float64 up to the last rounding."""
    kappa = kappa.contiguous()
    basis = kappa.new_empty(degree, len(kappa))
    parts = kappa.new_empty(2 * degree, len(kappa)) if slopes else None
    if len(kappa):
        _basis_kernel[(triton.cdiv(len(kappa), _KAPPAS),)](
            kappa, basis, basis if parts is None else parts, len(kappa), shift, degree, slopes, _KAPPAS
        )
    return basis, parts


if triton is not None:

    @triton.jit
    def _basis_kernel(kappa_ptr, basis_ptr, parts_ptr, count, shift, degree, SLOPES: tl.constexpr, BLOCK: tl.constexpr):
        """Each program: BLOCK kappas. The Chebyshev polynomials T_n times their factors."""
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
