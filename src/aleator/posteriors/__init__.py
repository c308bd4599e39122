"""What an encoder returns: the von Mises-Fisher distribution."""

from aleator.posteriors.batch import PosteriorBatch
from aleator.posteriors.vmf import VonMisesFisher

__all__ = ["PosteriorBatch", "VonMisesFisher"]
