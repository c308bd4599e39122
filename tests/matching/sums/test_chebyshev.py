"""Sums of Chebyshev polynomials against numpy's."""

import numpy as np
import torch
from numpy.polynomial import chebyshev as reference

from aleator.matching.sums.chebyshev import chebyshev_sum, chebyshev_sum_and_slope, chebyshev_values


def test_values_and_slopes():
    z = torch.linspace(-1, 1, 7, dtype=torch.float64)
    values, slopes = chebyshev_values(z, torch.full_like(z, 3.0), 6)
    for k in range(6):
        series = reference.Chebyshev.basis(k)
        np.testing.assert_allclose(values[:, k], series(z.numpy()), atol=1e-14)
        np.testing.assert_allclose(slopes[:, k], 3 * series.deriv()(z.numpy()), atol=1e-12)


def test_sums_and_their_slopes_have_coefficients_of_their_own_for_every_pair():
    torch.manual_seed(0)
    y, coefficients = torch.rand(4, 5, dtype=torch.float64) * 2 - 1, torch.randn(8, 4, 5, dtype=torch.float64)

    def put(k, after):
        return torch.sub(coefficients[k], after, out=after)

    value, slope = chebyshev_sum_and_slope(2 * y, 8, put)
    torch.testing.assert_close(chebyshev_sum(2 * y, 8, put), value)
    for i in range(4):
        for j in range(5):
            series = reference.Chebyshev(coefficients[:, i, j].numpy())
            assert abs(series(y[i, j].item()) - value[i, j].item()) < 1e-13
            assert abs(series.deriv()(y[i, j].item()) - slope[i, j].item()) < 1e-12
