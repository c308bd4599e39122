"""Exact neighbours by reading all rows: the same as the server's own."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from aleator import CredibleIndex, VMFMixture, VonMisesFisher
from aleator.retrieval.stores import postgres, postgres_scan


def posteriors(count: int, modes: int) -> VonMisesFisher | VMFMixture:
    torch.manual_seed(0)
    shape = (count,) if modes == 1 else (count, modes)
    parts = VonMisesFisher(F.normalize(torch.randn(*shape, 5), dim=-1), torch.empty(shape).uniform_(5, 50))
    return parts if modes == 1 else VMFMixture(torch.randn(shape), parts)


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize(("count", "k"), [(300, 7), (40, 100), (300, 250)])
def test_neighbours_are_those_of_the_server(url, monkeypatch, count, k, modes):
    monkeypatch.setattr(postgres_scan, "_BLOCK", 2000)  # several blocks, and rows across their ends
    index = CredibleIndex.build(posteriors(count, modes), location=url)
    queries = F.normalize(torch.randn(40, 5), dim=-1).numpy()
    read, reach = index._store.closest(queries, k, None)
    monkeypatch.setattr(postgres, "LEAST_QUERIES", 10**9)
    asked, reach_of_server = index._store.closest(queries, k, None)
    np.testing.assert_array_equal(read.query, asked.query)
    np.testing.assert_array_equal(read.row, asked.row)
    np.testing.assert_array_equal(read.mu, asked.mu)
    np.testing.assert_array_equal(read.kappa, asked.kappa)
    if modes == 1:
        assert read.weight is None
    else:
        np.testing.assert_array_equal(read.weight, asked.weight)
    np.testing.assert_allclose(reach, reach_of_server, rtol=1e-6)
    assert np.isinf(reach).all() == (k > count * modes)
    index.close()
