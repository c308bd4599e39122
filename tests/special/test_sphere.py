"""The area of the sphere against its known values."""

import math

import pytest

from aleator.special import log_sphere_area


@pytest.mark.parametrize(("dim", "area"), [(2, 2 * math.pi), (3, 4 * math.pi), (4, 2 * math.pi**2), (6, math.pi**3)])
def test_known_areas(dim, area):
    assert math.exp(log_sphere_area(dim)) == pytest.approx(area, rel=1e-14)


@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 4096])
def test_two_dimensions_more(dim):
    """S_{D+2} = S_D 2 pi / D, also where the area itself underflows."""
    assert log_sphere_area(dim + 2) - log_sphere_area(dim) == pytest.approx(math.log(2 * math.pi / dim), abs=1e-11)
