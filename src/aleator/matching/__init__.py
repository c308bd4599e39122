"""How likely two posteriors are to match: kernels, the series of expected positivity, match probabilities."""

from aleator.matching.components import log_bilinear
from aleator.matching.kernels import DEFAULT_KAPPA_POS, AcceptanceKernel, VMFKernel
from aleator.matching.match_maps import FIRST_HITS, LEAST_SLOPE, LogOddsMap, MatchMaps, OrderedBy, log_rank
from aleator.matching.odds import NegativeLaw, log_match_odds
from aleator.matching.positivity import (
    DEFAULT_PRIOR,
    log_positivity,
    log_total_positivity,
    match_probability,
    pairwise_log_positivity,
)
from aleator.matching.ways import Way, sums_in_tiles
from aleator.matching.zonal import LogLinear, ZonalKernel, check_kernel

__all__ = [
    "DEFAULT_KAPPA_POS",
    "DEFAULT_PRIOR",
    "FIRST_HITS",
    "LEAST_SLOPE",
    "AcceptanceKernel",
    "LogLinear",
    "LogOddsMap",
    "MatchMaps",
    "NegativeLaw",
    "OrderedBy",
    "VMFKernel",
    "Way",
    "ZonalKernel",
    "check_kernel",
    "log_bilinear",
    "log_match_odds",
    "log_positivity",
    "log_rank",
    "log_total_positivity",
    "match_probability",
    "pairwise_log_positivity",
    "sums_in_tiles",
]
