"""Degradation grows with its strength."""

import pytest
import torch

from aleator.quickstart.degradation import DEGRADATIONS, degrade


@pytest.mark.parametrize("degradation", range(len(DEGRADATIONS)))
def test_degradation_grows_with_its_strength_and_begins_at_nothing(degradation):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 1, 8, 8, generator=generator).expand(-1, 3, -1, -1)
    change = []
    for strength in (0.0, 0.3, 0.6, 1.0):
        worse = degrade(images, torch.full((400,), degradation), torch.full((400,), strength), generator)
        assert worse.min() >= 0
        assert worse.max() <= 1
        assert torch.equal(worse[:, 0], worse[:, 2])  # grey stays grey
        change.append((worse - images).abs().mean().item())
    assert change[0] < 1e-6
    assert change == sorted(change)
    assert change[3] > 0.1
