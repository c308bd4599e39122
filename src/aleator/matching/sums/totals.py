r"""Sums of expected positivity over the negatives of each anchor, in linear memory.

For each anchor

    total_i = log sum_j r(x_i, x_j).

This is what the exact loss needs of the table of pairs (losses/similarity.py). The table has N x M entries; here it is
made tile by tile and never stored. The forward pass keeps one number for each anchor. The backward pass makes the tiles
again, now with slopes. So memory is linear in N + M, as it is for attention without its table (Dao et al. 2022).

On a CPU, threads share the tiles (tile_sums.py), and many pairs are summed with polynomials (interpolated_totals.py).
On a GPU, one kernel does each pass (fused/totals.py).

**Weights.** A row may count with a weight: total_i = log w_i + log sum_j w_j r(x_i, x_j). r is linear in both
posteriors, so the components of mixtures are rows with their weights, and the total of a mixture is the logsumexp of
those of its components (positivity.py). A weight multiplies the length of its row. A pair of rows adds its share to the
gradients of both log weights.
"""

from typing import Any

import torch
from torch import Tensor

from aleator.foundation import first_derivatives_only
from aleator.fused import fused_kernels
from aleator.matching.series import row_weights
from aleator.matching.sums.fused_totals import fused_log_totals
from aleator.matching.sums.interpolated_totals import interpolated_log_totals, takes_interpolants
from aleator.matching.sums.tile_sums import Group, kappa_gradient, side_of
from aleator.matching.sums.tiles import tail_scale

# The sums are not taken in logarithms on a CPU, so r must not underflow: its exponent is at least -2 kappa_pos.
STEEPEST = 150.0


def log_totals(
    mu1: Tensor,
    kappa1: Tensor,
    mu2: Tensor | None,
    kappa2: Tensor | None,
    log_lam: Tensor,
    sign: Tensor,
    dim: int,
    kappa_pos: float | Tensor | None,
    tolerance: float,
    log_weights1: Tensor | None = None,
    log_weights2: Tensor | None = None,
    modes: int = 1,
) -> Tensor:
    """log w_i + log sum_j w_j r(x_i, x_j) with gradients in all tensors but `sign`.

    Args:
        mu1: Directions of the anchors, shape (G, N, D).
        kappa1: Their concentrations, shape (G, N), float64.
        mu2: Directions of the negatives of each group, shape (G, M, D). None: the other anchors of the group.
        kappa2: Their concentrations, shape (G, M), float64, or None.
        log_lam: log |lambda_n|, shape (T,).
        sign: Signs of lambda_n, shape (T,).
        dim: Dimension D of the embedding.
        kappa_pos: For a vMF kernel its concentration, which gives the tail (series.py). None for any other kernel.
        tolerance: How much of the series a tile may leave out, relative to the largest r.
        log_weights1: log w of the anchors, shape (G, N), finite. None: they do not count with weights.
        log_weights2: log w of the negatives, shape (G, M). None if the negatives are the other anchors.
        modes: So many consecutive anchors are one, and are not negatives of each other; a divisor of N.

    Returns:
        Totals, shape (G, N), float64.
    """
    function = plain_log_totals
    if mu1.dtype == torch.float32 and not log_lam.requires_grad:
        if fused_kernels(mu1):
            function = fused_log_totals
        elif takes_interpolants(mu1, mu2, log_weights1, log_weights2):
            function = interpolated_log_totals
    kernel = (log_lam, sign, dim, kappa_pos, tolerance)
    return function(mu1, kappa1, mu2, kappa2, *kernel, log_weights1, log_weights2, modes)


def plain_log_totals(*arguments: Any) -> Tensor:
    """`log_totals` in plain torch."""
    return _LogTotals.apply(*arguments)


class _LogTotals(torch.autograd.Function):
    """Forward: the sums. Backward: the tiles again, with slopes."""

    @staticmethod
    def forward(ctx, mu1, kappa1, mu2, kappa2, log_lam, sign, dim, kappa_pos, tolerance, weights1, weights2, modes):
        first = row_weights(dim, kappa1, log_lam).weighted(weights1)
        second = first.signed(sign)
        if kappa2 is not None:
            second = row_weights(dim, kappa2, log_lam, sign).weighted(weights2)
        tail = None if kappa_pos is None else tail_scale(dim, float(log_lam[1].exp()), float(kappa_pos))
        groups = [
            Group(
                dim,
                side_of(mu1[g], first.group(g)),
                side_of((mu1 if mu2 is None else mu2)[g], second.group(g)),
                modes if mu2 is None else 0,
                tail,
                tolerance,
            )
            for g in range(len(mu1))
        ]
        sums = torch.stack([group.sums() for group in groups])
        ctx.groups, ctx.sides, ctx.dtype = groups, (first, second), mu1.dtype
        ctx.weights = weights1, weights2
        ctx.save_for_backward(sums)
        return sums.log() + first.log_length + second.log_length.amax(1, keepdim=True)

    @staticmethod
    @first_derivatives_only
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        (sums,) = ctx.saved_tensors
        weighted = any(weights is not None for weights in ctx.weights)
        parts = [group.gradients(g, weighted) for group, g in zip(ctx.groups, grad / sums, strict=True)]
        first, second = ctx.sides
        mu1, terms1, mean1, shares1, mu2, terms2, mean2, shares2 = (
            torch.stack([getattr(part, name) for part in parts])
            for name in ("mu1", "terms1", "mean1", "shares1", "mu2", "terms2", "mean2", "shares2")
        )
        kappa1, kappa2 = kappa_gradient(first, terms1, mean1), kappa_gradient(second, terms2, mean2)
        log_lam = kappa_pos = None
        if ctx.needs_input_grad[4]:
            log_lam = (first.weights * terms1.mT).sum((0, 1))
            log_lam[1] += sum(part.log_lam1 for part in parts)
        if ctx.needs_input_grad[7]:
            kappa_pos = grad.new_tensor(sum(part.kappa_pos for part in parts))
        of_kernel = log_lam, None, None, kappa_pos, None
        own = ctx.groups[0].own
        of_weights = [
            None if weights is None else shares.to(weights.dtype)
            for weights, shares in zip(ctx.weights, (shares1 + shares2 if own else shares1, shares2), strict=True)
        ]
        if own:  # both sides are the anchors
            return (mu1 + mu2).to(ctx.dtype), kappa1 + kappa2, None, None, *of_kernel, *of_weights, None
        return mu1.to(ctx.dtype), kappa1, mu2.to(ctx.dtype), kappa2, *of_kernel, *of_weights, None
