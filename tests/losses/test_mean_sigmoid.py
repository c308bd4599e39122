"""HIB's log probabilities in plain torch; tests/fused/test_mean_sigmoid.py has the kernel."""

import pytest
import torch

from aleator.losses.mean_sigmoid import log_mean_sigmoid


@pytest.mark.parametrize("matches", [0, 2, 4])
def test_it_is_the_mean_of_the_probabilities(matches):
    cosines = 2 * torch.rand(50, 3, 4, dtype=torch.float64) - 1
    a, b = torch.tensor(4.0, dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
    match = torch.sigmoid(4 * cosines - 2).mean(0)
    expected = torch.cat([match[:, :matches], 1 - match[:, matches:]], -1)
    torch.testing.assert_close(log_mean_sigmoid(cosines, a, b, matches).exp(), expected)


def test_probabilities_that_underflow():
    """Far out, log s(x) is x."""
    log_probability = log_mean_sigmoid(torch.ones(3, 1, 2), torch.tensor(1e4), torch.tensor(0.0), 1)
    torch.testing.assert_close(log_probability, torch.tensor([[0.0, -1e4]]))
