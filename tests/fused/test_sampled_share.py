"""Gradients of the share with drawn cosines in one kernel; without a GPU in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, VMFKernel
from aleator.fused import functions
from aleator.losses.sampled_cosines import (
    angles,
    draw_noise,
    plain_sampled_cosines,
    plain_sampled_cosines_backward,
)
from aleator.losses.softmax_share import plain_candidate_log_softmax_share
from tests.fused.test_totals import INTERPRETED

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=["vmf", "acceptance"])
@pytest.mark.parametrize(
    ("samples", "batch", "negatives", "dim"), [(512, 3, 32, 10), (600, 2, 1, 10), (1, 2, 17, 3), (40, 2, 5, 65)]
)
def test_gradients_equal_those_of_share_and_cosines_in_turn(samples, batch, negatives, dim, kernel):
    torch.manual_seed(0)
    z = F.normalize(torch.randn(samples, batch, dim, dtype=torch.float64, device=DEVICE), dim=-1)
    mu = F.normalize(torch.randn(batch, 1 + negatives, dim, dtype=torch.float64, device=DEVICE), dim=-1)
    kappa = torch.empty(batch, 1 + negatives, dtype=torch.float64, device=DEVICE).uniform_(2, 60)
    noise = draw_noise((samples, batch, 1 + negatives), dim, z)
    cosines, slope_c, slope_kappa = plain_sampled_cosines(z, mu, kappa, noise, angles(mu, False), True)

    cosines = cosines.requires_grad_()
    share = plain_candidate_log_softmax_share(cosines, dim, kernel)
    grad = torch.randn_like(share)
    (grad_cosines,) = torch.autograd.grad(share, cosines, grad)
    expected = plain_sampled_cosines_backward(grad_cosines, z, mu, slope_c, slope_kappa, (True, True))
    total = kernel.log_values(dim, cosines[..., 0]) - share

    given = [x.detach().float() for x in (grad, z, mu, cosines, total, slope_c)]
    for need_mu, slopes in ((True, True), (False, True), (True, False)):
        ours = functions.fused_sampled_share_gradients(
            *given, slope_kappa.float() if slopes else None, kernel.log_linear(dim), need_mu
        )
        assert [x is not None for x in ours] == [True, need_mu, slopes]
        for part, truth in zip(ours, expected, strict=True):
            if part is not None:
                bound = 1e-5 * truth.abs().max().item()
                torch.testing.assert_close(part.double(), truth, rtol=1e-3, atol=bound)
