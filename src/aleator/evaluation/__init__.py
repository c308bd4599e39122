"""Metrics, match and label probabilities, promises, and figures: arrays in, numbers or pictures out."""

from aleator.evaluation.agreement import (
    PairwiseAgreement,
    aligning_rotation,
    cap_coverage,
    mae,
    pairwise_agreement,
    rank_correlation,
    ranks,
    rmse,
    spread,
)
from aleator.evaluation.bootstrap import interval
from aleator.evaluation.calibration import (
    MatchCalibration,
    MatchPairs,
    ReliabilityDiagram,
    calibrate_matches,
    expected_calibration_error,
    match_log_likelihood,
    reliability_diagram,
)
from aleator.evaluation.conformal import (
    Rejection,
    conformal_quantile,
    coverage_range,
    questions_needed,
    rejection_threshold,
)
from aleator.evaluation.label_calibration import condense_gallery, fit_label_model
from aleator.evaluation.label_model import (
    LabelModel,
    label_certainty,
    label_entropy,
    label_log_likelihood,
    likely_labels,
)
from aleator.evaluation.rankings import (
    auroc,
    average_precision,
    map_at_r,
    nearest_neighbours,
    neighbour_hits,
    r_auroc,
    recall_at_1,
    reject_curve,
)
from aleator.evaluation.selective import augrc, aurc, coverage_at_risk

__all__ = [
    "LabelModel",
    "MatchCalibration",
    "MatchPairs",
    "PairwiseAgreement",
    "Rejection",
    "ReliabilityDiagram",
    "aligning_rotation",
    "augrc",
    "aurc",
    "auroc",
    "average_precision",
    "calibrate_matches",
    "cap_coverage",
    "condense_gallery",
    "conformal_quantile",
    "coverage_at_risk",
    "coverage_range",
    "expected_calibration_error",
    "fit_label_model",
    "interval",
    "label_certainty",
    "label_entropy",
    "label_log_likelihood",
    "likely_labels",
    "mae",
    "map_at_r",
    "match_log_likelihood",
    "nearest_neighbours",
    "neighbour_hits",
    "pairwise_agreement",
    "questions_needed",
    "r_auroc",
    "rank_correlation",
    "ranks",
    "recall_at_1",
    "reject_curve",
    "rejection_threshold",
    "reliability_diagram",
    "rmse",
    "spread",
]
