"""The overlap of two vMF densities against quadrature. tests/matching/test_positivity.py has its limits."""

import math

import pytest
import torch

from aleator.posteriors.overlap import log_overlap
from tests.posteriors.cases import vmf
from tests.posteriors.mixture_cases import grid


@pytest.mark.parametrize("dim", [2, 3])
def test_against_quadrature(dim):
    q, p = vmf(dim, 0.0, 2.0, 20.0, 50.0), vmf(dim, 3.0, 1.0, 30.0, 5.0, seed=1)
    z, area = grid(dim)
    sphere = 2 * math.pi if dim == 2 else 4 * math.pi
    truth = (q.unsqueeze(-1).log_prob(z) + p.unsqueeze(-1).log_prob(z)).exp().sum(-1) * area * sphere
    torch.testing.assert_close(
        log_overlap(dim, (q.mu * p.mu).sum(-1), q.kappa, p.kappa), truth.log(), atol=1e-6, rtol=1e-6
    )
