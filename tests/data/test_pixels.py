"""Bytes, unit values and normalised values."""

import pytest
import torch

from aleator.data.pixels import normalise, normalise_on_device, to_bytes, to_unit

BYTES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_divided_by_255_and_come_back(dtype):
    unit = to_unit(BYTES, dtype)
    assert unit.dtype == dtype
    assert torch.equal(unit, torch.arange(256, dtype=dtype) / 255)
    assert torch.equal(to_bytes(unit), BYTES)


def test_unit_values_leave_their_origin_alone():
    values = torch.tensor([255.0])
    assert to_unit(values).item() == 1
    assert values.item() == 255


def test_values_outside_become_the_nearest_byte():
    assert to_bytes(torch.tensor([-0.5, 0.4999 / 255, 1.2])).tolist() == [0, 0, 255]


def test_both_ways_to_normalise_agree():
    images = torch.rand(4, 3, 5, 5)
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    expected = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.equal(normalise(images, mean, std), expected)
    torch.testing.assert_close(normalise_on_device(images, mean, std), expected)
    assert torch.equal(normalise(images[:, :, 0, 0], mean, std), expected[:, :, 0, 0])
