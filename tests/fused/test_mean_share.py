"""The mean share in one kernel; without a GPU in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional as F

from aleator.losses import mean_share as module
from aleator.losses.mean_share import log_mean_share, plain_log_mean_share
from tests.fused.interpreted import INTERPRETED, device_with_fused

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, module)


@pytest.mark.parametrize("averaged", [1, 2, 32])
@pytest.mark.parametrize(("samples", "anchors"), [(1, 1), (512, 40), (70, 17), (1500, 3)])
@pytest.mark.parametrize("anchors_first", [False, True])
def test_values_and_gradients(samples, anchors, anchors_first, averaged, device):
    torch.manual_seed(0)
    share = F.logsigmoid(6 * torch.randn(samples, anchors, device=device) - 3)
    if anchors_first:
        share = share.mT.contiguous().mT
    share.requires_grad_()
    ours = log_mean_share(share, averaged)
    assert type(ours.grad_fn).__name__ == "_WithGradientBackward"
    exact_share = share.detach().double().requires_grad_()
    exact = plain_log_mean_share(exact_share, averaged)
    weights = torch.randn(anchors, device=device)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(ours, share, weights)
    (expected,) = torch.autograd.grad(exact, exact_share, weights.double())
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-7)


def test_a_share_that_is_zero_or_not_a_number(device):
    share = torch.tensor([[-float("inf"), 0.0, float("nan")], [0.0, 0.0, 0.0]], device=device)
    mean = log_mean_share(share)
    torch.testing.assert_close(mean[:2].exp(), torch.tensor([0.5, 1.0], device=device))
    assert mean[2].isnan()
