"""How likely two posteriors are to match: kernels, the series of expected positivity, match probabilities."""

from aleator.matching.kernels import AcceptanceKernel, VMFKernel, ZonalKernel, check_kernel
from aleator.matching.positivity import log_positivity, match_probability, pairwise_log_positivity

__all__ = [
    "AcceptanceKernel",
    "VMFKernel",
    "ZonalKernel",
    "check_kernel",
    "log_positivity",
    "match_probability",
    "pairwise_log_positivity",
]
