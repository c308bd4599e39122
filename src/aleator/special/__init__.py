"""Special functions: Bessel functions, Gegenbauer polynomials, angles on the sphere, logistic moments."""

from aleator.special.angle_series import LEAST_DIM, AngleSeries, angle_series
from aleator.special.angles import AngleTable, angle_masses, angle_quantile, angle_table
from aleator.special.bessel import (
    bessel_ratio,
    bessel_ratios,
    log_bessel_ratios,
    log_growth,
    log_iv,
    log_ratios_and_slopes,
    ratio_slope,
    recurrence_start,
    representable,
)
from aleator.special.complements import kappa_minus_log_growth, one_minus_bessel_ratio
from aleator.special.logistic import logistic_moments
from aleator.special.polynomials import gegenbauer, harmonic_dimension, log_harmonic_dimensions, recurrence
from aleator.special.sphere import log_sphere_area

__all__ = [
    "LEAST_DIM",
    "AngleSeries",
    "AngleTable",
    "angle_masses",
    "angle_quantile",
    "angle_series",
    "angle_table",
    "bessel_ratio",
    "bessel_ratios",
    "gegenbauer",
    "harmonic_dimension",
    "kappa_minus_log_growth",
    "log_bessel_ratios",
    "log_growth",
    "log_harmonic_dimensions",
    "log_iv",
    "log_ratios_and_slopes",
    "log_sphere_area",
    "logistic_moments",
    "one_minus_bessel_ratio",
    "ratio_slope",
    "recurrence",
    "recurrence_start",
    "representable",
]
