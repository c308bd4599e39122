"""GPU part of matching/sums/interpolant.py: log r on the grid of nodes of pairs of classes, in float64.

All pairs of nodes of two classes share their cosines, so P_n(c) is made once for all of them, and a term of the series
is an outer product: P_n at some cosines times w_n w'_n of the pairs.
"""

import torch
from torch import Tensor

from aleator.fused.pieces import on_its_own_device, tl, triton

_COSINES = 16  # of one program


@on_its_own_device
def fused_log_grid(
    weights: Tensor, log_length: Tensor, sign: Tensor, recurrence: Tensor, y: Tensor, half: Tensor, nodes: tuple
) -> Tensor:
    """log r without a floor, (K, P, a, Q, b).

    Args:
        weights: w_n of the rows' nodes and then of the columns', (P a + Q b, T) with T even.
        log_length: Their log lengths, (P a + Q b,).
        sign: Signs of lambda_n, (T,).
        recurrence: The factors of P_n and P_{n-1} in the recurrence of P_{n+1}, (2, T).
        y: Nodes in [-1, 1], (K,); the cosines are 1 - half (1 - y).
        half: (P, Q).
        nodes: a and b.
    """
    (P, Q), (a, b), terms = half.shape, nodes, weights.shape[1]
    weights = weights.movedim(-1, 0).contiguous()
    out = torch.empty(len(y), P, a, Q, b, dtype=torch.float64, device=half.device)
    _grid_kernel[(P * Q, triton.cdiv(len(y), _COSINES))](
        weights, log_length.contiguous(), sign, recurrence, y, half.contiguous(), out,
        weights.shape[1], P, Q, len(y), terms,
        A=a, B=b, COSINES=_COSINES, PAIRS=triton.next_power_of_2(a * b), num_warps=4,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit
    def _grid_kernel(
        weight_ptr, length_ptr, sign_ptr, recurrence_ptr, y_ptr, half_ptr, out_ptr,
        count, classes1, classes2, cosines, terms,
        A: tl.constexpr, B: tl.constexpr, COSINES: tl.constexpr, PAIRS: tl.constexpr,
    ):  # fmt: skip
        """Each program: the nodes of two classes at COSINES cosines."""
        p, q = tl.program_id(0) // classes2, tl.program_id(0) % classes2
        k = tl.program_id(1) * COSINES + tl.arange(0, COSINES)
        m = tl.arange(0, PAIRS)
        live = m < A * B
        i1, i2 = p * A + m // B, classes1 * A + q * B + m % B
        c = 1.0 - tl.load(half_ptr + tl.program_id(0)) * (1.0 - tl.load(y_ptr + k, mask=k < cosines, other=1.0))
        now, before = c * 0.0 + 1.0, c * 0.0
        total = tl.zeros([COSINES, PAIRS], dtype=tl.float64)
        for half_n in range(terms // 2):
            for step in tl.static_range(2):  # two terms at a time, so that their loads overlap
                n = 2 * half_n + step
                w1 = tl.load(weight_ptr + n * count + i1, mask=live, other=0.0)
                w2 = tl.load(weight_ptr + n * count + i2, mask=live, other=0.0)
                total += now[:, None] * (w1 * w2 * tl.load(sign_ptr + n))[None, :]
                after = tl.load(recurrence_ptr + n) * c * now - tl.load(recurrence_ptr + terms + n) * before
                before = now
                now = after
        length = tl.load(length_ptr + i1, mask=live, other=0.0) + tl.load(length_ptr + i2, mask=live, other=0.0)
        # A sum that is not positive is lost in rounding. Its classes are then not usable.
        value = tl.log(tl.where(total < 1e-300, 1e-300, total)) + length[None, :]
        place = ((k[:, None] * classes1 + p) * A + (m // B)[None, :]) * (classes2 * B) + q * B + (m % B)[None, :]
        tl.store(out_ptr + place, value, mask=(k < cosines)[:, None] & live[None, :])
