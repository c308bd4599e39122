"""Probabilistic contrastive learning with von Mises-Fisher posteriors."""

from .harmonics import AcceptanceKernel, VMFKernel, ZonalKernel
from .positivity import log_positivity, match_probability, pairwise_log_positivity
from .vmf import VonMisesFisher

__all__ = [
    "AcceptanceKernel",
    "VMFKernel",
    "VonMisesFisher",
    "ZonalKernel",
    "log_positivity",
    "match_probability",
    "pairwise_log_positivity",
]
__version__ = "0.1.0"
