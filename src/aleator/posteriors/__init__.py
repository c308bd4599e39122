"""What an encoder returns: the von Mises-Fisher distribution."""

from aleator.posteriors.batch import PosteriorBatch
from aleator.posteriors.vmf import VonMisesFisher, kappa_from_mean_resultant_length

__all__ = ["PosteriorBatch", "VonMisesFisher", "kappa_from_mean_resultant_length"]
