"""Metrics and figures: arrays in, numbers or pictures out."""

from aleator.evaluation.metrics import (
    aligning_rotation,
    auroc,
    cap_coverage,
    expected_calibration_error,
    mae,
    map_at_r,
    neighbour_hits,
    pairwise_agreement,
    rank_correlation,
    recall_at_1,
    reject_curve,
    rmse,
    spread,
)
from aleator.evaluation.plots import contours

__all__ = [
    "aligning_rotation",
    "auroc",
    "cap_coverage",
    "contours",
    "expected_calibration_error",
    "mae",
    "map_at_r",
    "neighbour_hits",
    "pairwise_agreement",
    "rank_correlation",
    "recall_at_1",
    "reject_curve",
    "rmse",
    "spread",
]
