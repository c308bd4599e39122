"""Sums over negatives on a GPU against the sums in float64 on a CPU.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, ExactInfoNCE, VMFKernel, VMFMixture, VonMisesFisher, ZonalKernel, log_positivity
from aleator.matching import Way, log_total_positivity, on_gpu, positivity, sums_in_tiles
from tests.fused.interpreted import INTERPRETED, device_with_fused

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

KERNELS = {
    "vmf": lambda: VMFKernel(20.0),
    "sharp vmf": lambda: VMFKernel(100.0),
    "acceptance": lambda: AcceptanceKernel(8.0),
    "function": lambda: ZonalKernel(lambda t: torch.exp(-3 * (1 - t) ** 2)),
}


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, on_gpu)  # on a CPU the sums alone; not row weights


def some(*shape: int, dim: int, low: float = 0.5, high: float = 300.0) -> tuple[torch.Tensor, torch.Tensor]:
    mu = F.normalize(torch.randn(*shape, dim), dim=-1)
    return mu, torch.exp(torch.empty(shape).uniform_(math.log(low), math.log(high)))


def some_mixtures(*shape: int, modes: int, dim: int, **limits: float) -> tuple[torch.Tensor, ...]:
    return *some(*shape, modes, dim=dim, **limits), torch.randn(*shape, modes)


def posterior(leaves, dtype: torch.dtype, device: str) -> VonMisesFisher:
    mu, kappa = (x.to(device, dtype).requires_grad_() for x in leaves)
    return VonMisesFisher(mu, kappa, validate_args=False)


def with_leaves(given, dtype: torch.dtype, device: str):
    """Posteriors from mu and kappa, or mixtures from these and log weights; and what gradients are compared in."""
    q = posterior(given[:2], dtype, device)
    if len(given) == 2:
        return q, [q.mu, q.kappa]
    log_weights = given[2].to(device, dtype).requires_grad_()
    return VMFMixture(log_weights, q, validate_args=False), [q.mu, q.kappa, log_weights]


def compare(first, second, kernel, device: str, terms=None, limit: float = 2e-6, way: Way = Way.GPU_TILES) -> None:
    results = []
    grad = torch.randn(first[1].shape[: 2 - len(first)] if len(first) > 2 else first[1].shape, dtype=torch.float64)
    for dtype, where, how in ((torch.float32, device, way), (torch.float64, "cpu", Way.TILES)):
        q1, leaves = with_leaves(first, dtype, where)
        q2, more = (None, []) if second is None else with_leaves(second, dtype, where)
        total = log_total_positivity(q1, q2, kernel, terms, how)
        results.append([total, *torch.autograd.grad(total, leaves + more, grad.to(where))])
    parts = ("mu", "kappa", "log weights")
    names = ["total", *parts[: len(first)], *parts[: 0 if second is None else len(second)]]
    if "log weights" in names:
        limit *= 3  # sums over components, then over negatives: more roundings
    for name, ours, exact in zip(names, *results, strict=True):
        # The total is a logarithm, and a gradient in log weights is a difference of shares: absolute errors count.
        absolute = name in ("total", "log weights")
        scale = exact.abs().max().clamp_min(1.0) if absolute else exact.abs().max()
        assert (ours.double().cpu() - exact).abs().max() <= limit * scale, name


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("count", "dim"), [(2, 2), (37, 3), (70, 10)])
def test_other_members_of_a_batch(name, count, dim, device):
    torch.manual_seed(count)
    compare(some(count, dim=dim), None, KERNELS[name](), device)


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_given_negatives_and_groups(name, device):
    torch.manual_seed(0)
    compare(some(1, 20, dim=5), some(1, 65, dim=5), KERNELS[name](), device)
    compare(some(3, 6, dim=17), some(3, 5, dim=17), KERNELS[name](), device)
    compare(some(3, 6, dim=17), None, KERNELS[name](), device)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("count", "modes", "dim"), [(2, 2, 2), (35, 2, 10), (13, 3, 3)])
def test_other_mixtures_of_a_batch(name, count, modes, dim, device):
    torch.manual_seed(count)
    compare(some_mixtures(count, modes=modes, dim=dim), None, KERNELS[name](), device)


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_given_mixtures_and_groups(name, device):
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    compare(some_mixtures(1, 9, modes=2, dim=5), some_mixtures(1, 13, modes=3, dim=5), kernel, device)
    compare(some_mixtures(3, 4, modes=2, dim=5), some(3, 7, dim=5), kernel, device)
    compare(some(3, 4, dim=5), some_mixtures(3, 7, modes=2, dim=5), kernel, device)
    compare(some_mixtures(3, 5, modes=2, dim=5), None, kernel, device)


@pytest.mark.parametrize("dim", [64, 300, 1024])
def test_many_dimensions(dim, device):
    torch.manual_seed(0)
    compare(some(40, dim=dim), None, VMFKernel(20.0), device)


def test_terms_of_ones_own(device):
    """An odd number, which the tables round up with a zero."""
    torch.manual_seed(0)
    compare(some(20, dim=4), None, VMFKernel(20.0), device, terms=7)


def test_extreme_posteriors(device):
    torch.manual_seed(0)
    mu, _ = some(20, dim=6)
    kappa = torch.tensor([0.0, 1e-6, 1e3, 1e6, math.inf]).repeat(4)
    compare((mu, kappa), None, VMFKernel(20.0), device)


def test_the_loss_with_its_defaults(device, monkeypatch):
    torch.manual_seed(0)
    if INTERPRETED:  # where nothing else would choose them
        chosen = positivity.choose
        ways = {Way.TILES: Way.GPU_TILES}
        monkeypatch.setattr(positivity, "choose", lambda *a, **k: ways.get(w := chosen(*a, **k), w))
    anchor, positive = (posterior(some(40, dim=8), torch.float32, device) for _ in range(2))
    kernel = VMFKernel(20.0)
    loss = ExactInfoNCE(kernel)(anchor, positive)
    monkeypatch.undo()
    doubles = [
        VonMisesFisher(q.mu.detach().double().cpu(), q.kappa.detach().double().cpu()) for q in (anchor, positive)
    ]
    assert loss.item() == pytest.approx(ExactInfoNCE(kernel)(*doubles).item(), abs=1e-6)


@pytest.mark.gpu
def test_pairs_of_mixtures_go_the_short_way():
    """log r of N pairs, from all pairs of their components in one launch, against float64 on a CPU."""
    torch.manual_seed(0)
    given = some_mixtures(20, modes=2, dim=6), some_mixtures(20, modes=3, dim=6)
    results = []
    for dtype, where in ((torch.float32, "cuda"), (torch.float64, "cpu")):
        (q1, leaves), (q2, more) = (with_leaves(x, dtype, where) for x in given)
        log_r = log_positivity(q1, q2, VMFKernel(20.0))
        results.append([log_r, *torch.autograd.grad(log_r.sum(), leaves + more)])
    for ours, exact in zip(*results, strict=True):
        assert (ours.double().cpu() - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.gpu
def test_a_gpu_sums_in_tiles():
    q = posterior(some(4, dim=3), torch.float32, "cuda")
    assert sums_in_tiles(VMFKernel(20.0), q)
    assert not sums_in_tiles(VMFKernel(20.0, requires_grad=True), q)


@pytest.mark.gpu
def test_the_pass_fits_into_a_graph():
    """Nothing waits for the device, with default terms: a captured step equals a plain one on new numbers."""
    anchors = [posterior(some(100, dim=8), torch.float32, "cuda") for _ in range(2)]
    loss = ExactInfoNCE(AcceptanceKernel(20.0))
    mu, kappa = (x.detach().clone().requires_grad_() for x in (anchors[0].mu, anchors[0].kappa))

    def step() -> tuple[torch.Tensor, ...]:
        value = loss(VonMisesFisher(mu, kappa, validate_args=False), VonMisesFisher(mu, kappa, validate_args=False))
        return value.detach(), *torch.autograd.grad(value, (mu, kappa))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        mu.copy_(anchors[1].mu)
        kappa.copy_(anchors[1].kappa)
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        torch.testing.assert_close(one, other)
