"""log r of given pairs on a GPU against the plain series in float64.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel
from aleator.matching import Way, on_gpu
from aleator.matching.positivity import log_r_of_components
from tests.fused.interpreted import INTERPRETED, device_with_fused
from tests.fused.test_totals import posterior, some

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, on_gpu)  # on a CPU, row weights and tables are not fused


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(8.0)], ids=["vmf", "acceptance"])
@pytest.mark.parametrize(("count", "dim"), [(1, 2), (37, 10), (5, 130)])
def test_pairs(kernel, count, dim, device):
    torch.manual_seed(count)
    leaves = [some(count, dim=dim) for _ in range(2)]
    grad = torch.randn(count)
    results = []
    for dtype, where, way in ((torch.float32, device, Way.GPU_PAIRS), (torch.float64, "cpu", Way.TABLE)):
        q1, q2 = (posterior(x, dtype, where) for x in leaves)
        value = log_r_of_components(q1, q2, kernel, way=way)
        gradients = torch.autograd.grad(value, (q1.mu, q1.kappa, q2.mu, q2.kappa), grad.to(where, dtype))
        results.append((value, *gradients))
    for ours, exact in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        assert (ours.double().cpu() - exact).abs().max() <= 2e-6 * exact.abs().max().clamp_min(1.0)
