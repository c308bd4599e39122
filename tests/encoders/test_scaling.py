"""Scaling of features: what is kept of a row, and what is bounded."""

import math

import pytest
import torch

from aleator.encoders import (
    Beside,
    BoundedScale,
    Chain,
    DirectionAndLength,
    Encoder,
    Features,
    Standardise,
    UnitScale,
    load_encoder,
)


def test_bounded_rows_keep_direction_and_order():
    scale = BoundedScale(3)
    x = torch.tensor([[0.1, 0.2, -0.1], [1.0, -2.0, 2.0], [1e4, 1e4, 2e4], [1e18, 0.0, 0.0], [0.0, 0.0, 0.0]])
    y, size = scale(x).double(), x.double().square().mean(-1).sqrt()
    torch.testing.assert_close(y.square().mean(-1).sqrt(), size / (1 + size**2 / 9).sqrt(), rtol=1e-6, atol=0)
    torch.testing.assert_close(UnitScale(3)(y), UnitScale(3)(x.double()), rtol=1e-6, atol=0)
    assert torch.autograd.gradcheck(scale, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1.0, 1e12])
def test_the_unit_of_a_column_does_not_matter(unit):
    rows = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 3
    one, other = rows.float(), (rows * torch.tensor([1.0, unit])).float()
    torch.testing.assert_close(Standardise(2).fit(other)(other), Standardise(2).fit(one)(one), atol=1e-4, rtol=1e-4)


def test_a_column_that_was_constant_says_nothing_later_but_is_seen_as_news():
    rows = torch.tensor([[1.0, 1000.0, 0.0], [3.0, 1000.0, 0.0]])
    layer = Standardise(3).fit(rows)
    later = torch.tensor([[2.0, 2000.0, -7.0]])
    assert layer(rows).tolist() == [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert layer(later).tolist() == [[0.0, 0.0, 0.0]]
    assert layer.differences(later).tolist() == [[0.0, 1000.0, -7.0]]
    again = Standardise(3)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(later), layer(later))


def test_direction_and_length_are_both_kept():
    torch.manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(400, 5), dim=-1)
    log_length = 0.7 + 0.2 * torch.randn(400, 1)
    layer = DirectionAndLength(5).fit(direction * log_length.exp())
    out = layer(direction * log_length.exp())
    assert out.shape == (400, layer.out_features) == (400, 6)
    torch.testing.assert_close(out[:, :5], direction * math.sqrt(5))
    standard = (log_length - log_length.mean()) / log_length.std(correction=0)
    torch.testing.assert_close(out[:, 5:], standard / (1 + standard**2 / 9).sqrt(), atol=1e-5, rtol=1e-4)


def test_no_row_is_far_out():
    layer = DirectionAndLength(3).fit(torch.randn(50, 3))
    rows = torch.tensor([[0.0, 0.0, 0.0], [1e-30, 0.0, 0.0], [1e18, 0.0, 0.0], [1.0, 1.0, 1.0]])
    out = layer(rows)
    assert out.isfinite().all()
    assert (out[:, 3].abs() <= 3.0).all()
    assert (out[:, :3].square().mean(1) < 1.001).all()


def test_rows_of_one_length_are_not_told_apart_by_rounding():
    rows = torch.nn.functional.normalize(torch.randn(1000, 64), dim=-1) * 7
    assert DirectionAndLength(64).fit(rows)(rows)[:, 64].abs().max() < 0.01


def test_its_slope():
    layer = DirectionAndLength(3).fit(torch.randn(50, 3)).double()
    assert torch.autograd.gradcheck(layer, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_it_is_saved_with_what_it_was_fitted_to(tmp_path):
    rows = 5 * torch.randn(50, 3)
    layer = DirectionAndLength(3).fit(rows)
    encoder = Encoder(Chain([Beside([layer, UnitScale(3)]), Features(7)]), 4).eval()
    encoder.save(tmp_path / "model")
    again = load_encoder(tmp_path / "model")
    assert torch.equal(again(rows).mu, encoder(rows).mu)


@pytest.mark.parametrize("build", [BoundedScale, UnitScale, DirectionAndLength])
def test_a_number_that_is_far_too_large_has_a_finite_answer(build):
    """Its square does not fit into float32. It counts like the largest number whose square does."""
    front = Chain([Standardise(3).fit(1e-6 * torch.randn(50, 3)), build(3)])
    rows = torch.tensor([[1e12, 0.0, 0.0], [1e20, 0.0, 0.0], [3e38, 0.0, 0.0]])
    out = front(rows)
    assert out.isfinite().all()
    torch.testing.assert_close(out[1:], out[:1].expand(2, 3 + (build is DirectionAndLength)), rtol=1e-3, atol=1e-6)
