"""Draws by the smallest u / r on a GPU against the table of all pairs on a CPU.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, VMFKernel, VonMisesFisher, log_positivity
from aleator.fused import functions
from aleator.matching import draws
from aleator.matching.draws import point_masses, smallest_ratios
from tests.fused.test_totals import INTERPRETED, device, some  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.mark.parametrize("kernel", [AcceptanceKernel(20.0), VMFKernel(20.0)])
@pytest.mark.parametrize(("groups", "count", "others", "dim"), [(1, 1, 1, 2), (2, 40, 130, 10), (3, 5, 70, 33)])
def test_the_same_as_the_table(kernel, groups, count, others, dim, device, monkeypatch):  # noqa: F811
    if INTERPRETED:
        monkeypatch.setattr(draws, "fused_kernels", lambda x: functions)
    torch.manual_seed(others)
    mu, kappa = some(groups, count, dim=dim, low=64.0, high=128.0)
    z = F.normalize(torch.randn(groups, others, dim), dim=-1)
    u = torch.rand(groups, count, others, dtype=torch.float64)
    terms = kernel.terms(dim, 1e-12, 128.0, math.inf)
    q = VonMisesFisher(mu, kappa)
    chosen = smallest_ratios(VonMisesFisher(mu.to(device), kappa.to(device)), z.to(device), kernel, u.to(device), terms)
    log_r = log_positivity(q[..., :, None], point_masses(z)[..., None, :], kernel, terms)
    assert torch.equal(chosen.cpu(), (u.log() - log_r).argmin(-1))
    assert others == 1 or len(chosen.unique()) > 1
