"""Moments of a logistic function on the sphere against quadrature at 80 digits."""

import math

import mpmath
import numpy as np
import pytest

from aleator.special.logistic import logistic_moments
from tests import reference


@pytest.mark.parametrize(
    ("dim", "slope", "offset", "degrees"),
    [(2, 3.0, 1.5, (0, 12)), (3, 5.0, 2.5, (7,)), (64, 8.0, 0.4, (20,)), (65, 8.0, 0.4, (15,))],
)
def test_even_and_odd_dimensions(dim, slope, offset, degrees):
    log_moments, signs = logistic_moments(dim, slope, offset, max(degrees) + 1, log_error=-150.0)
    for n in degrees:
        expected = reference.logistic_moment(dim, slope, offset, n)
        assert signs[n] == float(mpmath.sign(expected))
        assert log_moments[n] == pytest.approx(float(mpmath.log(abs(expected))), abs=3e-14)


def test_the_error_is_the_one_asked_for():
    exact, signs = logistic_moments(10, 16.0, 7.0, 60, log_error=-150.0)
    rough, rough_signs = logistic_moments(10, 16.0, 7.0, 60, log_error=-30.0)
    error = np.abs(signs * np.exp(exact) - rough_signs * np.exp(rough))
    assert error.max() <= 10 * math.exp(-30.0)


def test_the_precision_of_other_users_of_mpmath_is_left_alone():
    before = mpmath.mp.prec
    logistic_moments(5, 3.0, 0.5, 4, log_error=-200.0)
    assert mpmath.mp.prec == before
