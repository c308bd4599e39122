"""What an encoder returns: the von Mises-Fisher distribution."""

from aleator.posteriors.vmf import VonMisesFisher, log_sphere_area

__all__ = ["VonMisesFisher", "log_sphere_area"]
