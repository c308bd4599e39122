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
from aleator.matching import log_total_positivity, positivity, sums_in_tiles
from aleator.matching.sums import tile_sums


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 16, so that small batches have many and the last is cut; also for many small groups."""
    monkeypatch.setattr(tile_sums, "TILE", 16)
    monkeypatch.setattr(positivity, "_SMALL_GROUP", 0)


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
    ours, twin = log_total_positivity(q1, q2, kernel, terms), slow_twin(q1, q2, kernel, terms)
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
    both = log_total_positivity(q, None, KERNELS[name]())
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
    values = tile_sums.tile_values
    monkeypatch.setattr(tile_sums, "tile_values", lambda *a: taken.append(a[3]) or values(*a))
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
def test_small_groups_in_one_table(make, given, monkeypatch):
    """The same sums and gradients as tile by tile, and no tile is made."""
    torch.manual_seed(0)
    q1, q2 = make(4, 6, dim=5), make(4, 9, dim=5) if given else None
    inputs = [x for q in (q1, q2) if q is not None for x in tensors(q)]
    results = []
    for limit in (0, 2**14):
        monkeypatch.setattr(positivity, "_SMALL_GROUP", limit)
        if limit:
            monkeypatch.setattr(positivity, "log_totals", None)
        totals = log_total_positivity(q1, q2, VMFKernel(20.0))
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


def test_a_kernel_that_is_too_steep_is_refused():
    q = some(4, dim=3)
    assert sums_in_tiles(VMFKernel(150.0), q)
    assert not sums_in_tiles(VMFKernel(math.inf), q)
    with pytest.raises(ValueError, match="cannot be summed in tiles"):
        log_total_positivity(q, None, VMFKernel(1e4))


def test_threads_of_tiles_use_no_helpers():
    """Helpers of two threads would wait for each other: the sums would take longer than with one thread."""
    seen = []

    def recorded(tiles):
        list(tiles)
        torch.ones(300, 300) @ torch.ones(300, 300)  # sets the helpers of a new thread
        seen.append(max(pool["num_threads"] for pool in tile_sums._helpers().info()))
        return torch.zeros(1)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tile_sums.in_threads(recorded, [(slice(0, 1), slice(0, 1), 2)] * 4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]
