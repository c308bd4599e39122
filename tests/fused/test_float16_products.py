"""Directions in float16 parts; test_interpolant.py tests the sums that use them.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import pytest
import torch
from torch.nn import functional as F

from aleator.fused.float16_products import LARGEST_WITH_LOW, SCALE, padded, split_directions
from tests.fused.interpreted import INTERPRETED
from tests.fused.test_totals import device  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


def directions(count: int, dim: int) -> torch.Tensor:
    mu = F.normalize(torch.randn(count, dim), dim=-1)
    mu[0] = 0.0
    mu[0, -1] = -1.0  # all in one coordinate
    return mu


@pytest.mark.parametrize("dim", [2, 10, 64, 100, 256, 300])
def test_products_give_the_cosines(dim, device):  # noqa: F811
    torch.manual_seed(dim)
    mu = directions(40, dim)
    sides = [parts.double().cpu() for parts in split_directions(mu.to(device))]
    for high, low in sides:
        assert high.shape == (40, padded(dim))
        assert not high[:, dim:].any()
        assert not low[:, dim:].any()
        assert torch.equal(high, high.round())
        assert low.abs().max() <= 1
    (high, low), (column_high, column_low) = sides
    exact = high @ column_high.mT
    assert exact.abs().max() <= SCALE**2 * (1 + 3e-3)  # float32 holds these sums, and those of any of the coordinates
    rest, limit = high @ column_low.mT + low @ column_high.mT, 2.5e-7  # a rounding in float32 is 6e-8
    if dim <= LARGEST_WITH_LOW:
        rest += low @ column_low.mT
    else:
        limit += 5 * dim**0.5 / 8 / SCALE**2
    assert ((exact + rest) / SCALE**2 - mu.double() @ mu.double().mT).abs().max() <= limit


def test_low_parts_of_copies_cancel_in_many_dimensions(device):  # noqa: F811
    """Rounded alike, their products would add up to D/12, an error of 1.3e-6 of the cosine for D = 256."""
    torch.manual_seed(0)
    mu = directions(400, 256).to(device)
    (_, low), (_, column_low) = (parts.double().cpu() for parts in split_directions(mu))
    left_out = (low * column_low).sum(1)
    assert left_out.std() < 3
    assert left_out.mean().abs() < 5 * left_out.std() / 400**0.5
    assert (low * low).sum(1).mean() > 256 / 15


def test_a_nan_stays(device):  # noqa: F811
    mu = directions(3, 5)
    mu[1, 2] = torch.nan
    for parts in split_directions(mu.to(device)):
        assert parts.isnan().any(2)[0].tolist() == [False, True, False]
