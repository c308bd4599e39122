"""log r on a grid of nodes on a GPU against the table of pairs on a CPU.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel
from aleator.fused import functions
from aleator.matching.series import recurrences, row_weights
from aleator.matching.sums import interpolant
from tests.fused.interpreted import INTERPRETED
from tests.fused.test_totals import device  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=["vmf", "acceptance"])
@pytest.mark.parametrize("dim", [3, 10, 64])
@pytest.mark.parametrize("nodes", [(9, 5), (2, 3)])
def test_against_the_table_of_pairs(kernel, dim, nodes, device):  # noqa: F811
    torch.manual_seed(0)
    (P, Q), (a, b) = (2, 3), nodes
    terms = kernel.terms(dim, 1e-17)
    log_lam, sign = kernel.series(dim, terms + terms % 2, torch.device("cpu"))
    kappa, half = 5 + 60 * torch.rand(P * a + Q * b, dtype=torch.float64), torch.rand(P, Q, dtype=torch.float64) / 4
    weights = row_weights(dim, kappa, log_lam)
    expected = interpolant._log_r(dim, weights, log_lam, sign, half, nodes)
    y = interpolant._nodes_and_check(interpolant.COSINE_NODES, torch.device("cpu"))
    factors = recurrences(dim, len(log_lam), torch.device("cpu"))
    tensors = [x.to(device) for x in (weights.weights, weights.log_length, sign, factors, y, half)]
    found = functions.fused_log_grid(*tensors, nodes)
    assert found.shape == (interpolant.COSINE_NODES + 1, P, a, Q, b)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)


def test_a_sum_that_is_not_positive(device):  # noqa: F811
    """Two terms of a series with a negative coefficient: log r is very small, and not NaN."""
    weights = torch.tensor([[0.5, 1.0]], dtype=torch.float64).repeat(2, 1)
    others = (torch.zeros(2), torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 0]))
    tensors = [x.double().to(device) for x in (weights, *others, torch.ones(1, 1))]
    found = functions.fused_log_grid(*tensors, (1, 1)).flatten()
    assert found[0] < -600  # 1/4 - 1 at the cosine 1
    assert found[1].item() == pytest.approx(torch.tensor(0.25).log().item())  # 1/4 - 0 at the cosine 0
