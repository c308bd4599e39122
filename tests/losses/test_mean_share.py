"""The mean of the positive's share over the samples, in plain torch; tests/fused/test_mean_share.py has the kernel."""

import math

import torch

from aleator.losses.mean_share import log_mean_share, share_among_average


def test_it_is_the_mean_of_the_shares():
    shares = torch.rand(50, 3, dtype=torch.float64)
    torch.testing.assert_close(log_mean_share(shares.log()).exp(), shares.mean(0))


def test_averaged_negatives():
    """p / (p + n / M) for values p of the positive and n of all M negatives together."""
    p, n = torch.rand(50, 3, dtype=torch.float64), torch.rand(50, 3, dtype=torch.float64)
    averaged = share_among_average((p / (p + n)).log(), 8)
    torch.testing.assert_close(averaged.exp(), p / (p + n / 8))
    torch.testing.assert_close(log_mean_share((p / (p + n)).log(), 8), averaged.exp().mean(0).log())


def test_one_negative_is_its_own_average():
    share = torch.tensor([[math.log(0.3)]])
    assert torch.equal(share_among_average(share, 1), share)
