"""The GPU's versions of plain functions, as Triton kernels.

    series      series.plain_rows and series.plain_log_series, bessel.plain_log_growth: the plain ones launch some
                hundreds of small kernels, which in a training step is all the time there is;
    samples     quantile.plain_basis, vmf.plain_sample and its backward: the plain ones pass ten times over the samples;
    encounters  encounters.plain_cosines and its backward, likewise;
    shares      what shares.py does otherwise, and its backward: each cosine would be stored several times;
    pieces      what these share.

The tests marked `gpu` hold the two versions equal.
"""

from aleator.fused.pieces import triton_available
from aleator.fused.sampled_cosines import fused_cosines, fused_cosines_backward
from aleator.fused.samples import fused_basis, fused_sample, fused_sample_backward
from aleator.fused.series import fused_log_growth, fused_log_series, fused_rows
from aleator.fused.softmax_share import (
    fused_crowd_log_shares,
    fused_crowd_log_shares_backward,
    fused_log_shares,
    fused_log_shares_backward,
)

__all__ = [
    "fused_basis",
    "fused_cosines",
    "fused_cosines_backward",
    "fused_crowd_log_shares",
    "fused_crowd_log_shares_backward",
    "fused_log_growth",
    "fused_log_series",
    "fused_log_shares",
    "fused_log_shares_backward",
    "fused_rows",
    "fused_sample",
    "fused_sample_backward",
    "triton_available",
]
