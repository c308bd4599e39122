"""log r of N given pairs of posteriors on a GPU, such as anchors and positives: few launches for a fixed kernel."""

from typing import Any

import torch
from torch import Tensor

from aleator.foundation import first_derivatives_only
from aleator.fused import fused_kernels
from aleator.matching.series import positivity_table, row_weights


def fused_log_pairs(*arguments: Any) -> Tensor:
    """log r with gradients in mu and kappa of both sides.

    Args:
        *arguments: mu1 (N, D) and kappa1 (N,) in float32, mu2 and kappa2 as well; log |lambda_n| and the signs of
            lambda_n, shape (T,); the dimension D; for a vMF kernel its concentration, otherwise None.

    Returns:
        log r, shape (N,), float64.
    """
    return _LogPairs.apply(*arguments)


class _LogPairs(torch.autograd.Function):
    """Value and slopes come from one pass, so the backward pass only multiplies."""

    @staticmethod
    def forward(ctx, mu1, kappa1, mu2, kappa2, log_lam, sign, dim, kappa_pos):
        fused: Any = fused_kernels(mu1)
        cosine = fused.fused_pair_cosines(mu1, mu2)[:, None]
        first = row_weights(dim, kappa1[:, None], log_lam)
        second = row_weights(dim, kappa2[:, None], log_lam, None if kappa_pos is not None else sign)
        table = positivity_table(dim, cosine, first, second, log_lam, kappa_pos, any(ctx.needs_input_grad))
        ctx.save_for_backward(mu1, mu2, table.slope_cosine, table.slope_kappa1, table.slope_kappa2)
        return table.log_r[:, 0]

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        fused: Any = fused_kernels(grad)
        mu1, mu2, *slopes = ctx.saved_tensors
        return *fused.fused_pair_gradients(grad, slopes, mu1, mu2), None, None, None, None
