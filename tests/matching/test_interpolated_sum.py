"""Sums over negatives with polynomials on a CPU: equal to the table of pairs, in values and in all gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, ExactInfoNCE, VMFKernel, VonMisesFisher
from aleator.matching import Way, interpolated_sum, log_total_positivity
from tests.fused.test_interpolant import KERNELS
from tests.matching.test_tiled_sum import slow_twin


@pytest.fixture(autouse=True)
def shares(monkeypatch) -> list[float]:
    """Small tiles. The share of the pairs that took polynomials, for each group."""
    monkeypatch.setattr(interpolated_sum, "TILE", 24)
    totals, found = interpolated_sum._Pairs.totals, []

    def recorded(self) -> torch.Tensor:
        result = totals(self)
        left = [] if self.rest is None else self.rest.group.tiles
        rest = sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns, _ in left)
        pairs = sum(tile.pairs() for tile in self.tiles)
        found.append(pairs / (pairs + rest))
        return result

    monkeypatch.setattr(interpolated_sum._Pairs, "totals", recorded)
    return found


def some(*shape: int, dim: int, low: float = 16.0, high: float = 128.0) -> tuple[torch.Tensor, torch.Tensor]:
    return F.normalize(torch.randn(*shape, dim), dim=-1), torch.empty(shape).uniform_(low, high)


def with_leaves(given, dtype: torch.dtype) -> VonMisesFisher:
    mu, kappa = (x.to(dtype).requires_grad_() for x in given)
    return VonMisesFisher(mu, kappa, validate_args=False)


def with_polynomials(q1, q2, kernel, terms=None) -> torch.Tensor:
    return log_total_positivity(q1, q2, kernel, terms, Way.TILE_POLYNOMIALS)


def compare(first, second, kernel, terms=None, limit: float = 2e-6, limit_kappa: float = 1e-5) -> None:
    """Against the series of the table in float64. Slopes in kappa nearly cancel in a sum."""
    grad = torch.randn(first[1].shape, dtype=torch.float64)
    results = []
    for dtype, function in ((torch.float32, with_polynomials), (torch.float64, slow_twin)):
        q1 = with_leaves(first, dtype)
        q2 = None if second is None else with_leaves(second, dtype)
        total = function(q1, q2, kernel, terms)
        leaves = [x for q in (q1, q2) if q is not None for x in (q.mu, q.kappa)]
        results.append([total, *torch.autograd.grad(total, leaves, grad)])
    for i, (ours, exact) in enumerate(zip(*results, strict=True)):
        scale = exact.abs().max().clamp_min(1.0) if i == 0 else exact.abs().max()
        assert (ours.double() - exact).abs().max() <= (limit if i in (0, 1, 3) else limit_kappa) * scale, i


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("count", "dim"), [(70, 3), (97, 10), (120, 64)])
def test_other_members_of_a_batch(name, count, dim, shares):
    torch.manual_seed(count)
    compare(some(count, dim=dim), None, KERNELS[name]())
    assert shares == [pytest.approx(1.0, abs=0.7)]
    if dim == 64:
        assert shares == [1.0]


@pytest.mark.parametrize("name", KERNELS)
def test_given_negatives_of_groups(name, shares):
    torch.manual_seed(0)
    compare(some(3, 30, dim=64), some(3, 50, dim=64, high=60.0), KERNELS[name]())
    assert shares == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", KERNELS)
def test_what_polynomials_cannot_do_is_left_to_the_series(name, shares):
    torch.manual_seed(1)
    mu, log_kappa = some(130, dim=2, low=math.log(0.5), high=math.log(400.0))
    compare((mu, log_kappa.exp()), None, KERNELS[name](), limit_kappa=3e-5)
    assert 0.1 < shares[0] < 1


def test_no_class_is_usable(shares, monkeypatch):
    torch.manual_seed(2)
    found = interpolated_sum.polynomials
    monkeypatch.setattr(
        interpolated_sum,
        "polynomials",
        lambda *a, **k: (p := found(*a, **k))._replace(usable=torch.zeros_like(p.usable)),
    )
    compare(some(60, dim=64), None, AcceptanceKernel(20.0), limit=1e-6, limit_kappa=1e-6)
    assert shares == [0.0]


def test_far_pairs_that_matter(shares):
    """All negatives of the anchors are on the other side of the sphere, where log r is not a straight line."""
    torch.manual_seed(3)
    mu, kappa = some(60, dim=10, low=60.0, high=80.0)
    pole = F.one_hot(torch.tensor(0), 10).float()
    first = F.normalize(mu + 20 * pole, dim=-1), kappa
    second = F.normalize(mu - 20 * pole, dim=-1), kappa
    results = []
    for way in (Way.TILE_POLYNOMIALS, Way.TILES):
        q1, q2 = (with_leaves(x, torch.float32) for x in (first, second))
        total = log_total_positivity(q1, q2, AcceptanceKernel(60.0), 60, way)
        results.append([total, *torch.autograd.grad(total.sum(), (q1.mu, q1.kappa, q2.mu, q2.kappa))])
    for ours, series in zip(*results, strict=True):
        torch.testing.assert_close(ours, series, rtol=1e-5, atol=2e-5)
    assert shares == [0.0]
    # A vMF kernel has a tail that is known. It has no floor, whose part of log r is below 1e-4.
    q1, q2 = (with_leaves(x, torch.float32) for x in (first, second))
    total, twin = (function(q1, q2, VMFKernel(60.0)) for function in (with_polynomials, slow_twin))
    torch.testing.assert_close(total, twin.double(), rtol=0.0, atol=1e-4)
    assert shares == [0.0, 1.0]


def test_sums_of_very_different_size(shares):
    """Two anchors at opposite poles, whose negatives are near one of them: float32 holds no common scale."""
    torch.manual_seed(4)
    mu, kappa = some(40, dim=64, low=600.0, high=700.0)
    pole = F.one_hot(torch.tensor(0), 64).float()
    near = F.normalize(0.02 * mu + pole, dim=-1)
    anchor = torch.stack([pole, -pole]), torch.tensor([650.0, 660.0])
    both = torch.cat([near, -pole[None]]), torch.cat([kappa, kappa[:1]])
    limits = {"limit": 5e-5, "limit_kappa": 1e-4}  # float32 holds a logarithm of -200 to 1.5e-5
    compare(anchor, (near, kappa), VMFKernel(140.0), **limits)
    compare(both, None, VMFKernel(140.0), **limits)
    assert shares == [1.0, 1.0]


def test_equal_and_extreme_posteriors():
    torch.manual_seed(5)
    mu, kappa = some(70, dim=64)
    compare((mu, torch.full_like(kappa, 30.0)), None, VMFKernel(20.0))
    kappa = torch.tensor([0.0, 1e-6, 40.0, 1e6, math.inf]).repeat(14)
    q = VonMisesFisher(mu, kappa, validate_args=False)
    twin = slow_twin(VonMisesFisher(mu.double(), kappa.double(), validate_args=False), None, VMFKernel(20.0))
    torch.testing.assert_close(with_polynomials(q, None, VMFKernel(20.0)), twin, rtol=2e-6, atol=2e-6)


def test_a_nan_is_not_hidden():
    mu, kappa = some(60, dim=64)
    kappa[3] = torch.nan
    assert with_polynomials(VonMisesFisher(mu, kappa, validate_args=False), None, VMFKernel(20.0)).isnan().all()


def test_the_loss_of_a_large_batch():
    """The default threshold, and the loss as people call it."""
    torch.manual_seed(6)
    given, near = some(800, dim=16), some(800, dim=16)
    results = []
    for dtype in (torch.float32, torch.float64):
        anchor, positive = with_leaves(given, dtype), with_leaves(near, dtype)
        loss = ExactInfoNCE(AcceptanceKernel())(anchor, positive)
        results.append([loss, *torch.autograd.grad(loss, (anchor.mu, anchor.kappa))])
    for ours, exact in zip(*results, strict=True):
        assert (ours.double() - exact).abs().max() <= 1e-5 * exact.abs().max()
