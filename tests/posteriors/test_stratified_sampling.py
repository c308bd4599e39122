"""Stratified samples: one angle in each interval of equal probability, directions around mu without preference."""

import pytest
import torch

from aleator.posteriors.stratified_sampling import stratified_noise
from tests.posteriors.cases import vmf


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_one_angle_in_each_interval(dim, centred):
    q = vmf(dim, 0.5, 20.0, 500.0)
    z = q.rsample((50,), noise=stratified_noise(q.mu, 50, torch.Generator().manual_seed(9), centred))
    assert z.shape == (50, 3, dim)
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(50, 3, dtype=torch.float64))
    outside = 1 - q.cap_angle_probability(2 * torch.asin(((z - q.mu).norm(dim=-1) / 2).clamp_max(1)))
    place = 50 * (1 - outside)
    if centred:
        torch.testing.assert_close(
            place, torch.arange(50.0).double()[:, None] + 0.5 + torch.zeros(3), atol=1e-2, rtol=0
        )
    assert torch.equal(
        (place + 1e-2 * centred).floor().sort(0).values, torch.arange(50.0).double()[:, None].expand(50, 3)
    )


def test_directions_have_no_preference_and_gradients_flow():
    q = vmf(5, 3.0)
    q.mu.requires_grad_()
    z = q.rsample((20_000,), noise=stratified_noise(q.mu, 20_000, torch.Generator().manual_seed(9)))
    across = z - (z @ q.mu.T) * q.mu.unsqueeze(0)
    assert across.mean(0).norm() < 0.02
    assert z.requires_grad
