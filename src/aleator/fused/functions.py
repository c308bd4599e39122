"""All fused functions: the module that `fused_kernels` returns. Importing it imports Triton, if that is installed."""

from aleator.fused.angles import fused_basis
from aleator.fused.bessel import fused_log_growth
from aleator.fused.interpolant import (
    fused_interpolated_backward,
    fused_interpolated_totals,
    fused_log_grid,
    sorted_side,
)
from aleator.fused.leaky_layers import fused_leaky_layer_backward, fused_leaky_layers, fused_leaky_layers_backward
from aleator.fused.mean_share import fused_log_mean_share, fused_log_mean_share_backward
from aleator.fused.mean_sigmoid import fused_log_mean_sigmoid, fused_log_mean_sigmoid_backward
from aleator.fused.network_posteriors import fused_network_posteriors
from aleator.fused.outputs import fused_bounded_kappa, fused_directions, fused_directions_backward
from aleator.fused.pairs import fused_pair_cosines, fused_pair_gradients
from aleator.fused.sampled_cosines import fused_sampled_cosines, fused_sampled_cosines_backward
from aleator.fused.sampling import fused_sample, fused_sample_backward
from aleator.fused.series import fused_positivity_table, fused_row_weights
from aleator.fused.softmax_share import (
    fused_candidate_log_softmax_share,
    fused_candidate_log_softmax_share_backward,
    fused_shared_log_softmax_share,
    fused_shared_log_softmax_share_backward,
)
from aleator.fused.totals import Done, fused_log_totals, fused_log_totals_backward, rows_on_device
from aleator.fused.triton_helpers import triton_available

__all__ = [
    "Done",
    "fused_basis",
    "fused_bounded_kappa",
    "fused_candidate_log_softmax_share",
    "fused_candidate_log_softmax_share_backward",
    "fused_directions",
    "fused_directions_backward",
    "fused_interpolated_backward",
    "fused_interpolated_totals",
    "fused_leaky_layer_backward",
    "fused_leaky_layers",
    "fused_leaky_layers_backward",
    "fused_log_grid",
    "fused_log_growth",
    "fused_log_mean_share",
    "fused_log_mean_share_backward",
    "fused_log_mean_sigmoid",
    "fused_log_mean_sigmoid_backward",
    "fused_log_totals",
    "fused_log_totals_backward",
    "fused_network_posteriors",
    "fused_pair_cosines",
    "fused_pair_gradients",
    "fused_positivity_table",
    "fused_row_weights",
    "fused_sample",
    "fused_sample_backward",
    "fused_sampled_cosines",
    "fused_sampled_cosines_backward",
    "fused_shared_log_softmax_share",
    "fused_shared_log_softmax_share_backward",
    "rows_on_device",
    "sorted_side",
    "triton_available",
]
