"""Directions in float16 parts; test_interpolant.py tests the sums that use them.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import pytest
import torch
from torch.nn import functional as F

from aleator.fused.halves import SCALE, padded, split_directions
from tests.fused.test_totals import INTERPRETED, device  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


def directions(count: int, dim: int) -> torch.Tensor:
    mu = F.normalize(torch.randn(count, dim), dim=-1)
    mu[0] = 0.0
    mu[0, -1] = -1.0  # all in one coordinate
    return mu


@pytest.mark.parametrize("dim", [2, 10, 64, 100, 256, 300])
def test_four_products_give_the_cosines(dim, device):  # noqa: F811
    torch.manual_seed(dim)
    mu = directions(40, dim)
    high, low = split_directions(mu.to(device)).double().cpu()
    assert high.shape == (40, padded(dim))
    assert not high[:, dim:].any()
    assert not low[:, dim:].any()
    assert torch.equal(high, high.round())
    assert low.abs().max() <= 1
    exact = high @ high.mT
    assert exact.abs().max() <= SCALE**2 * (1 + 1e-3)  # float32 holds these sums, and those of any of the coordinates
    c = (exact + high @ low.mT + low @ high.mT + low @ low.mT) / SCALE**2
    assert (c - mu.double() @ mu.double().mT).abs().max() <= 2.5e-7  # a rounding in float32 is 6e-8


def test_a_nan_stays(device):  # noqa: F811
    mu = directions(3, 5)
    mu[1, 2] = torch.nan
    assert split_directions(mu.to(device)).isnan().any(2)[0].tolist() == [False, True, False]
