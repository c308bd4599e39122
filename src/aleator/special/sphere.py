"""The unit sphere S^{D-1} in D dimensions."""

import math


def log_sphere_area(dim: int) -> float:
    """Log of the area 2 pi^(D/2) / Gamma(D/2) of the unit sphere.

    Args:
        dim: Dimension D of the space around the sphere.

    Returns:
        The logarithm; the area itself underflows in high dimensions.

    Examples:
        >>> import math
        >>> from aleator.special import log_sphere_area
        >>> round(math.exp(log_sphere_area(3)) / math.pi, 6)
        4.0
    """
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
