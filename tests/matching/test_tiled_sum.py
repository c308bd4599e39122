"""Sums over negatives, tile by tile: equal to the table of pairs, in values and in all gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import (
    AcceptanceKernel,
    VMFKernel,
    VMFMixture,
    VonMisesFisher,
    ZonalKernel,
    log_positivity,
    pairwise_log_positivity,
)
from aleator.matching import Way, log_total_positivity, tiled_sum
from aleator.matching.series import KernelSeries, positivity_table, row_weights
from aleator.matching.tiled_sum import Side, rescaled_recurrence, tile_gradients, tile_values
from aleator.special import gegenbauer


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 16, so that small batches have many and the last is cut."""
    monkeypatch.setattr(tiled_sum, "TILE", 16)


def in_tiles(q1, q2, kernel, terms=None) -> torch.Tensor:
    return log_total_positivity(q1, q2, kernel, terms, Way.TILES)


def some(*shape: int, dim: int, low: float = 0.5, high: float = 200.0, dtype=torch.float64) -> VonMisesFisher:
    mu = F.normalize(torch.randn(*shape, dim, dtype=dtype), dim=-1).requires_grad_()
    kappa = torch.exp(torch.empty(shape, dtype=dtype).uniform_(math.log(low), math.log(high))).requires_grad_()
    return VonMisesFisher(mu, kappa, validate_args=False)


def some_mixtures(*shape: int, modes: int, dim: int, high: float = 200.0, dtype=torch.float64) -> VMFMixture:
    log_weights = (2 * torch.randn(*shape, modes, dtype=dtype)).requires_grad_()
    return VMFMixture(log_weights, some(*shape, modes, dim=dim, high=high, dtype=dtype), validate_args=False)


def tensors(q) -> list[torch.Tensor]:
    """What gradients are compared in."""
    parts = [q.log_weights, q.components] if isinstance(q, VMFMixture) else [q]
    return [*parts[:-1], parts[-1].mu, parts[-1].kappa]


def slow_twin(q1, q2, kernel, terms=None) -> torch.Tensor:
    """The table of all pairs, then the sum."""
    others = q1 if q2 is None else q2
    table = log_positivity(q1[..., :, None], others[..., None, :], kernel, terms)
    if q2 is None:
        table = table + torch.zeros_like(table[..., :1, :]).expand_as(table).clone().diagonal_scatter(
            torch.full_like(q1.log_weights[..., 0], -math.inf), 0, -2, -1
        )
    return table.logsumexp(-1)


def compare(q1, q2, kernel, terms=None, rtol=1e-10, atol=1e-12):
    ours, twin = in_tiles(q1, q2, kernel, terms), slow_twin(q1, q2, kernel, terms)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, twin.double(), rtol=rtol, atol=atol)
    inputs = [x for q in (q1, q2) if q is not None for x in tensors(q)] + list(kernel.parameters())
    weight = torch.randn_like(ours)
    gradients = (torch.autograd.grad((weight * x).sum(), inputs) for x in (ours, twin.double()))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


KERNELS = {
    "vmf": lambda: VMFKernel(20.0),
    "sharp vmf": lambda: VMFKernel(120.0),
    "acceptance": lambda: AcceptanceKernel(20.0),
    "function": lambda: ZonalKernel(lambda t: torch.exp(-3 * (1 - t) ** 2)),
    "learned vmf": lambda: VMFKernel(20.0, requires_grad=True),
    "learned acceptance": lambda: AcceptanceKernel(8.0, requires_grad=True),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_other_members_of_a_batch(name, dim):
    torch.manual_seed(dim)
    compare(some(37, dim=dim), None, KERNELS[name]())


@pytest.mark.parametrize("name", KERNELS)
def test_given_negatives(name):
    torch.manual_seed(0)
    compare(some(1, 33, dim=4), some(1, 17, dim=4), KERNELS[name]())
    compare(some(3, 5, dim=4), some(3, 40, dim=4), KERNELS[name]())


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_groups_and_many_dimensions(name):
    torch.manual_seed(0)
    compare(some(3, 20, dim=64), None, KERNELS[name]())
    compare(some(18, dim=1024), None, KERNELS[name]())


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_two_posteriors(name):
    torch.manual_seed(0)
    q = some(2, dim=5)
    compare(q, None, KERNELS[name]())
    both = in_tiles(q, None, KERNELS[name]())
    torch.testing.assert_close(both, pairwise_log_positivity(q, q, KERNELS[name]())[0, 1].expand(2))


def test_float32_and_terms_of_ones_own():
    torch.manual_seed(0)
    q = some(40, dim=10, dtype=torch.float32)
    compare(q, None, VMFKernel(20.0), rtol=1e-5, atol=1e-5)
    compare(q, None, VMFKernel(20.0), terms=9, rtol=1e-5, atol=1e-5)
    assert (log_total_positivity(q, None, VMFKernel(20.0), 3) - log_total_positivity(q, None, VMFKernel(20.0))).any()


def test_extreme_posteriors():
    """kappa = 0 and kappa = inf beside each other: finite, and equal to the table."""
    torch.manual_seed(0)
    q = some(20, dim=6)
    kappa = torch.tensor([0.0, 1e-6, 1e3, 1e6, math.inf], dtype=torch.float64).repeat(4)
    for kernel in (VMFKernel(20.0), AcceptanceKernel(20.0)):
        mixed = VonMisesFisher(q.mu, kappa.clone().requires_grad_(), validate_args=False)
        compare(mixed, None, kernel, rtol=1e-8, atol=1e-10)


def test_tiles_take_the_terms_that_they_need(monkeypatch):
    """Wide posteriors beside sharp ones: their tile sums fewer terms, and r is right in both."""
    torch.manual_seed(0)
    q = some(32, dim=10)
    kappa = torch.cat([torch.full((16,), 2.0), torch.full((16,), 1e4)]).double().requires_grad_()
    halves = VonMisesFisher(q.mu, kappa, validate_args=False)
    taken = []
    values = tiled_sum.tile_values
    monkeypatch.setattr(tiled_sum, "tile_values", lambda *a: taken.append(a[3]) or values(*a))
    compare(halves, None, AcceptanceKernel(20.0), rtol=1e-9, atol=1e-11)
    assert min(taken) < 20 < 100 < max(taken)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("modes", [2, 3])
def test_other_mixtures_of_a_batch(name, modes):
    """Components are rows with weights. A mixture is no negative of itself, also where it would cross a tile."""
    torch.manual_seed(modes)
    compare(some_mixtures(21, modes=modes, dim=4), None, KERNELS[name]())


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_given_mixtures_and_groups(name):
    torch.manual_seed(0)
    compare(some_mixtures(1, 9, modes=2, dim=4), some_mixtures(1, 13, modes=3, dim=4), KERNELS[name]())
    compare(some_mixtures(3, 5, modes=2, dim=4), some(3, 19, dim=4), KERNELS[name]())
    compare(some(2, 5, dim=4), some_mixtures(2, 7, modes=2, dim=4), KERNELS[name]())
    compare(some_mixtures(3, 7, modes=2, dim=4), None, KERNELS[name]())


@pytest.mark.parametrize("make", [some, lambda *shape, dim: some_mixtures(*shape, modes=2, dim=dim)])
@pytest.mark.parametrize("given", [False, True])
def test_small_groups_in_one_table(make, given):
    """The same sums and gradients as tile by tile."""
    torch.manual_seed(0)
    q1, q2 = make(4, 6, dim=5), make(4, 9, dim=5) if given else None
    inputs = [x for q in (q1, q2) if q is not None for x in tensors(q)]
    results = []
    for way in (Way.TILES, Way.TABLE):
        totals = log_total_positivity(q1, q2, VMFKernel(20.0), way=way)
        results.append([totals, *torch.autograd.grad(totals.sum(), inputs)])
    for tiles, table in zip(*results, strict=True):
        torch.testing.assert_close(table, tiles, rtol=1e-10, atol=1e-12)


def test_more_modes_than_a_tile():
    torch.manual_seed(0)
    compare(some_mixtures(3, modes=19, dim=3), None, VMFKernel(20.0))


def test_a_component_without_weight_counts_for_nothing():
    torch.manual_seed(0)
    q = some_mixtures(10, modes=2, dim=4)
    log_weights = torch.tensor([0.0, -math.inf], dtype=torch.float64).expand(10, 2).clone().requires_grad_()
    ours = log_total_positivity(VMFMixture(log_weights, q.components), None, VMFKernel(20.0))
    first = VonMisesFisher(q.components.mu[:, 0], q.components.kappa[:, 0])
    torch.testing.assert_close(ours, log_total_positivity(first, None, VMFKernel(20.0)), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(ours.sum(), log_weights)
    assert gradient.isfinite().all()


def test_no_table_is_made(monkeypatch):
    """The largest tensor is a tile or a side, whatever the batch."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            largest = max([largest, *(x.numel() for x in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(x))])
            return out

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # the watch sees its own thread only
    q = some(160, dim=3, dtype=torch.float32)
    with Watch():
        log_total_positivity(q, None, VMFKernel(20.0)).sum().backward()
    assert 160 * 20 < largest < 160 * 100
    largest = 0
    mixtures = some_mixtures(80, modes=2, dim=3, dtype=torch.float32)
    with Watch():
        log_total_positivity(mixtures, None, VMFKernel(20.0)).sum().backward()
    assert 160 * 20 < largest < 160 * 100


def test_threads_agree_with_one(monkeypatch):
    torch.manual_seed(0)
    q = some(100, dim=4)
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        total = log_total_positivity(q, None, VMFKernel(20.0))
        results.append((total, *torch.autograd.grad(total.sum(), (q.mu, q.kappa))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_threads_of_tiles_use_no_helpers():
    """Helpers of two threads would wait for each other: the sums would take longer than with one thread."""
    seen = []

    def recorded(tiles):
        list(tiles)
        torch.ones(300, 300) @ torch.ones(300, 300)  # sets the helpers of a new thread
        seen.append(max(pool["num_threads"] for pool in tiled_sum._helpers().info()))
        return torch.zeros(1)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tiled_sum.in_threads(recorded, [(slice(0, 1), slice(0, 1), 2)] * 4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_the_rescaled_recurrence_gives_the_polynomials():
    c = torch.linspace(-1, 1, 7, dtype=torch.float64)
    for dim in (2, 3, 10, 500):
        m, h = rescaled_recurrence(dim, 12)
        before, now = torch.zeros_like(c), torch.ones_like(c)
        for n, expected in enumerate(gegenbauer(dim, 12, c)):
            torch.testing.assert_close(h[n] * now, expected)
            before, now = now, m[n] * c * now + before


def test_values_and_slopes_of_every_pair():
    """A share of one for a single pair picks out the slopes of that pair."""
    torch.manual_seed(0)
    for dim, kernel in ((3, VMFKernel(60.0)), (10, VMFKernel(20.0)), (10, AcceptanceKernel(20.0))):
        terms = kernel.terms(dim, 1e-17)
        log_lam, sign = kernel.series(dim, terms, torch.device("cpu"))
        kappa_pos = float(kernel.kappa_pos) if isinstance(kernel, VMFKernel) else None
        mu1, mu2 = (F.normalize(torch.randn(n, dim, dtype=torch.float64), dim=-1) for n in (3, 4))
        series = KernelSeries(dim, log_lam, sign, kappa_pos)
        rows = row_weights(series, torch.tensor([3.0, 30.0, 300.0]).double()[:, None])
        columns = row_weights(series, torch.tensor([1.0, 20.0, 90.0, 1e4]).double()[None], signed=True)
        table = positivity_table(series, mu1 @ mu2.T, rows, columns, slopes=True)
        first, second = (
            Side(mu, r.weights.flatten(0, 1).mT.contiguous(), r.log_length.flatten(), r.mean_length.flatten())
            for mu, r in ((mu1, rows), (mu2, columns))
        )
        tile = tile_values(dim, first, second, terms, series.tail, True)
        log_r = tile.values.log() + rows.log_length + columns.log_length
        torch.testing.assert_close(log_r, table.log_r, rtol=1e-9, atol=1e-9)
        for i in range(3):
            for j in range(4):
                share = torch.zeros(3, 4, dtype=torch.float64)
                share[i, j] = 1
                part = tile_gradients(dim, first, second, terms, series.tail, tile, share)
                slope1 = (rows.slopes[i, 0] * part.terms1[:, i]).sum()
                slope2 = (columns.slopes[0, j] * part.terms2[:, j]).sum()
                if part.mean1 is not None:
                    slope1 = slope1 + rows.mean_length_slope[i, 0] * part.mean1[i]
                    slope2 = slope2 + columns.mean_length_slope[0, j] * part.mean2[j]
                expected = (table.slope_cosine[i, j], table.slope_kappa1[i, j], table.slope_kappa2[i, j])
                ours = (part.cosine[i, j], slope1, slope2)
                torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)
