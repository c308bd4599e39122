"""GPU versions of plain functions, as Triton kernels. `fused_kernels` says whether they can be used.

Each file replaces the plain functions of one module of the same name; `fused_x` replaces `plain_x`.

    file                   replaces in                       functions
    angles.py              special/angles.py                 plain_basis
    bessel.py              special/bessel.py                 plain_log_growth
    sampling.py            posteriors/sampling.py            plain_sample, plain_sample_backward
    series.py              matching/series.py                plain_row_weights, plain_positivity_table
    pairs.py               matching/on_gpu.py                its parts: cosines of pairs, and gradients
    totals.py              matching/tiled_sum.py             TiledTotals
    interpolant.py         matching/interpolant.py           log r on a grid, and TiledTotals for very many pairs
    sampled_cosines.py     losses/sampled_cosines.py         plain_sampled_cosines, plain_sampled_cosines_backward
    softmax_share.py       losses/softmax_share.py           plain_candidate_log_softmax_share,
                                                             plain_shared_log_softmax_share, and their gradients
    mean_share.py          losses/mean_share.py              plain_log_mean_share, and its gradient
    mean_sigmoid.py        losses/mean_sigmoid.py            plain_log_mean_sigmoid, and its gradient
    network_posteriors.py  data/network_posteriors.py        plain_network_posteriors
    leaky_layers.py        encoders/leaky_layers.py          plain_leaky_layers, and its gradient
    outputs.py             encoders/outputs.py               plain_directions and its gradient, plain_bounded_kappa

Plain functions launch many small GPU kernels, or read and write large tensors several times. A fused function launches
one or two kernels and writes only its results. functions.py lists all fused functions, triton_helpers.py and
float16_products.py hold what they share, dispatch.py chooses. Tests marked `gpu` compare each fused function with its
plain one.
"""

from aleator.fused.dispatch import fused_for_layers, fused_kernels

__all__ = ["fused_for_layers", "fused_kernels"]
