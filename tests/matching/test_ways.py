"""The one place that chooses how r is summed: which way for which posteriors."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, VMFKernel, VMFMixture, VonMisesFisher, ZonalKernel
from aleator.matching import Way, log_total_positivity, sums_in_tiles
from aleator.matching.ways import choose


def some(*shape: int, dim: int = 64, low: float = 50.0, high: float = 400.0, dtype=torch.float32, learns: bool = True):
    """Posteriors of which many are near each other."""
    mu = F.normalize(torch.rand(*shape, 1) * 3 * torch.eye(dim)[0] + torch.randn(*shape, dim), dim=-1)
    kappa = torch.empty(shape).uniform_(math.log(low), math.log(high)).exp()
    return VonMisesFisher(mu.to(dtype), kappa.to(dtype).requires_grad_(learns), validate_args=False)


def mixtures(*shape: int) -> VMFMixture:
    return VMFMixture(torch.zeros(*shape, 2), some(*shape, 2), validate_args=False)


def of_table(q: VonMisesFisher, kernel: ZonalKernel, terms: int | None = None) -> Way:
    return choose(kernel, q[:, None], q[None, :], terms)


def test_large_tables_that_learn_take_polynomials():
    """In float32 with a fixed vMF kernel and gradients; everything else sums the series."""
    steep = VMFKernel(100.0)
    assert of_table(some(200), steep) is Way.TABLE_POLYNOMIALS
    assert of_table(some(40), steep) is Way.TABLE
    assert of_table(some(200, dtype=torch.float64), steep) is Way.TABLE
    assert of_table(some(200), steep, terms=60) is Way.TABLE
    assert of_table(some(200, learns=False), steep) is Way.TABLE
    assert of_table(some(200), VMFKernel(100.0, requires_grad=True)) is Way.TABLE
    assert of_table(some(200), AcceptanceKernel(20.0)) is Way.TABLE
    assert of_table(some(200, dim=8, low=6, high=60), steep) is Way.TABLE  # the polynomials would have a degree of 40
    with torch.no_grad():
        assert of_table(some(200), steep) is Way.TABLE


def test_given_pairs_and_groups_sum_the_series():
    q = some(40_000, dim=3)
    assert choose(VMFKernel(100.0), q, q) is Way.TABLE
    assert choose(VMFKernel(100.0), some(9, 60)[:, :, None], some(9, 60)[:, None]) is Way.TABLE


def test_the_expected_likelihood_kernel_has_a_closed_form():
    assert of_table(some(3), VMFKernel(math.inf)) is Way.OVERLAP


def of_sums(q1, q2=None, kernel: ZonalKernel | None = None) -> Way:
    return choose(kernel or VMFKernel(20.0), q1, q2, sums=True)


def test_sums_over_many_negatives_take_polynomials():
    """In float32, without weights, with a fixed kernel."""
    many = some(1024, dim=3)
    assert of_sums(many) is Way.TILE_POLYNOMIALS
    assert of_sums(many, many) is Way.TILE_POLYNOMIALS
    assert of_sums(many, kernel=AcceptanceKernel(20.0)) is Way.TILE_POLYNOMIALS
    assert of_sums(many, many[:16]) is Way.TILES
    assert of_sums(some(1024, dim=3, dtype=torch.float64)) is Way.TILES
    assert of_sums(mixtures(1024)) is Way.TILES
    assert of_sums(many, mixtures(1024)) is Way.TILES
    assert of_sums(many, kernel=VMFKernel(20.0, requires_grad=True)) is Way.TILES


def test_small_groups_are_summed_in_one_table():
    assert of_sums(some(4, 6)) is Way.TABLE
    assert of_sums(mixtures(4, 6), some(4, 9)) is Way.TABLE
    assert of_sums(some(1, 6)) is Way.TILES
    assert of_sums(some(6)) is Way.TILES
    assert of_sums(some(2, 129)) is Way.TILES
    assert of_sums(some(100, 120, dim=2)) is Way.TILES  # the table would be too large


def test_a_kernel_that_is_too_steep_is_refused():
    q = some(4, dim=3)
    assert sums_in_tiles(VMFKernel(150.0), q)
    assert not sums_in_tiles(VMFKernel(math.inf), q)
    with pytest.raises(ValueError, match="cannot be summed in tiles"):
        log_total_positivity(q, None, VMFKernel(1e4))


@pytest.mark.gpu
def test_a_gpu_has_ways_of_its_own():
    """For fixed kernels and float32; everything else is a table."""
    q, many = (VonMisesFisher(x.mu.cuda(), x.kappa.detach().cuda()) for x in (some(8, dim=3), some(4096, dim=3)))
    assert choose(VMFKernel(20.0), q, q) is Way.GPU_PAIRS
    assert of_table(q, VMFKernel(20.0)) is Way.TABLE
    assert of_sums(q) is Way.GPU_TILES
    assert of_sums(many) is Way.GPU_TILE_POLYNOMIALS
    assert not sums_in_tiles(VMFKernel(20.0, requires_grad=True), q)
