"""log r of given pairs on a GPU against the plain series in float64.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel, log_positivity
from aleator.fused import functions
from aleator.matching import fused_pairs, positivity
from tests.fused.interpreted import INTERPRETED
from tests.fused.test_totals import posterior, some

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.fixture
def device(monkeypatch) -> str:
    if not INTERPRETED:
        return "cuda"
    for module in (fused_pairs, positivity):  # on a CPU, row weights and tables are not fused
        monkeypatch.setattr(module, "fused_kernels", lambda x: functions)
    return "cpu"


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(8.0)], ids=["vmf", "acceptance"])
@pytest.mark.parametrize(("count", "dim"), [(1, 2), (37, 10), (5, 130)])
def test_pairs(kernel, count, dim, device, monkeypatch):
    torch.manual_seed(count)
    leaves = [some(count, dim=dim) for _ in range(2)]
    grad = torch.randn(count)
    results = []
    for dtype, where in ((torch.float32, device), (torch.float64, "cpu")):
        q1, q2 = (posterior(x, dtype, where) for x in leaves)
        value = log_positivity(q1, q2, kernel)
        assert (value.grad_fn.next_functions[0][0].name() == "_LogPairsBackward") == (dtype == torch.float32)
        gradients = torch.autograd.grad(value, (q1.mu, q1.kappa, q2.mu, q2.kappa), grad.to(where, dtype))
        results.append((value, *gradients))
    for ours, exact in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        assert (ours.double().cpu() - exact).abs().max() <= 2e-6 * exact.abs().max().clamp_min(1.0)
