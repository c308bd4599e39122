"""What an encoder returns: the von Mises-Fisher distribution, and mixtures of it."""

from aleator.posteriors.mixtures import VMFMixture, log_weighted
from aleator.posteriors.moments import kappa_from_mean_resultant_length
from aleator.posteriors.overlap import log_overlap, unit_directions
from aleator.posteriors.vmf import CredibleRegion, PosteriorBatch, VonMisesFisher

__all__ = [
    "CredibleRegion",
    "PosteriorBatch",
    "VMFMixture",
    "VonMisesFisher",
    "kappa_from_mean_resultant_length",
    "log_overlap",
    "log_weighted",
    "unit_directions",
]
