"""Exact cosines, and the radius of a credible set."""

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.retrieval import cap_radii, cosines


def test_a_vector_has_cosine_one_with_itself_and_rows_do_not_mix():
    generator = np.random.default_rng(0)
    for dim in (2, 3, 7, 64, 511):
        a, b = generator.standard_normal((2, 500, dim)).astype(np.float32)
        assert (cosines(a, a) == 1).all()
        one_by_one = np.concatenate([cosines(a[i : i + 1], b[i : i + 1]) for i in range(500)])
        assert (cosines(a, b) == one_by_one).all()


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.5, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("dim", [2, 3, 64, 512])
def test_the_series_for_the_radius_is_the_cap(dim, p):
    kappa = torch.logspace(-4, 10, 40, dtype=torch.float64)
    queries = VonMisesFisher(torch.eye(1, dim, dtype=torch.float64).expand(40, dim), kappa)
    np.testing.assert_allclose(cap_radii(queries, p), queries.cap(p).numpy(), rtol=0, atol=3e-12)
