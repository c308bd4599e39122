"""Sums with polynomials on a GPU against the sums in float64 on a CPU.

Without a GPU these tests run in Triton's interpreter, if Triton is installed and TRITON_INTERPRET=1 is set.
"""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, VMFKernel, ZonalKernel
from aleator.fused import functions
from aleator.matching import Way, log_total_positivity, on_gpu
from aleator.matching import interpolant as polynomials
from aleator.matching.interpolant import interpolant, too_far
from aleator.matching.series import KernelSeries, recurrences, row_weights
from tests.fused import test_totals
from tests.fused.interpreted import INTERPRETED
from tests.fused.test_totals import device, posterior, some, some_mixtures  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

KERNELS = {
    "vmf": lambda: VMFKernel(20.0),
    "acceptance": lambda: AcceptanceKernel(20.0),
    "function": lambda: ZonalKernel(lambda t: torch.exp(-3 * (1 - t) ** 2)),
}


@pytest.fixture(autouse=True)
def shares(monkeypatch) -> list[float]:
    """The shares of usable classes of the calls."""
    found: list[float] = []

    def recorded(*arguments):
        result = interpolant(*arguments)
        found.append(result.usable.float().mean().item())
        return result

    monkeypatch.setattr(on_gpu, "interpolant", recorded)
    return found


compare = partial(test_totals.compare, way=Way.GPU_TILE_POLYNOMIALS)


def all_terms(kernel, dim: int) -> int:
    return kernel.terms(dim, 1e-17)


@pytest.mark.parametrize("name", KERNELS)
def test_other_members_of_a_batch(name, device, shares):  # noqa: F811
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    compare(some(70, dim=64, low=40.0, high=45.0), None, kernel, device, all_terms(kernel, 64))
    assert shares == [1.0]


@pytest.mark.parametrize("dim", [100, 256, 300])
def test_many_dimensions(dim, device, shares):  # noqa: F811
    """Up to 256 dimensions a tile takes all at once, beyond in parts."""
    torch.manual_seed(dim)
    kernel = VMFKernel(100.0)
    # The gradient in kappa is a sum of slopes that nearly cancel.
    compare(some(70, dim=dim, low=100.0, high=110.0), None, kernel, device, all_terms(kernel, dim), limit=5e-6)
    assert shares == [1.0]


def test_equal_and_nearly_equal_directions(device, shares):  # noqa: F811
    """Sharp posteriors of copies: an error of their cosine counts kappa times."""
    torch.manual_seed(0)
    kernel = VMFKernel(100.0)
    mu, kappa = some(24, dim=256, low=4000.0, high=4100.0)
    mu = torch.cat([mu, mu, F.normalize(mu + 1e-3 * torch.randn(24, 256), dim=-1)])
    compare((mu, kappa.repeat(3)), None, kernel, device, all_terms(kernel, 256), limit=1e-5)
    assert shares == [1.0]


@pytest.mark.parametrize("size", [1e-25, 1e8])
def test_gradients_of_any_size(size, device, shares):  # noqa: F811
    """Weights of pairs are scaled to what float16 can hold. Relative errors do not depend on their size."""
    torch.manual_seed(0)
    q = posterior(some(70, dim=16, low=40.0, high=45.0), torch.float32, device)
    total = log_total_positivity(q, None, VMFKernel(20.0), way=Way.GPU_TILE_POLYNOMIALS)
    grad = torch.randn(70, dtype=torch.float64, device=device)
    one, scaled = (torch.autograd.grad(total, q.mu, grad * x, retain_graph=True)[0].double() for x in (1.0, size))
    assert (scaled / size - one).abs().max() <= 1e-6 * one.abs().max()


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_other_mixtures_of_a_batch(name, device, shares):  # noqa: F811
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    batch = some_mixtures(35, modes=2, dim=64, low=40.0, high=45.0)
    compare(batch, None, kernel, device, all_terms(kernel, 64), limit=5e-6)
    assert shares == [1.0]


def test_given_mixtures(device, shares):  # noqa: F811
    torch.manual_seed(1)
    kernel = VMFKernel(20.0)
    first = some_mixtures(1, 10, modes=2, dim=96, low=40.0, high=45.0)
    second = some_mixtures(1, 24, modes=3, dim=96, low=25.0, high=28.0)
    compare(first, second, kernel, device, all_terms(kernel, 96), limit=5e-6)
    compare(some(1, 20, dim=96, low=40.0, high=45.0), second, kernel, device, all_terms(kernel, 96), limit=5e-6)
    assert shares == [1.0] * 4


def test_mixtures_of_which_some_are_left_to_the_series(device, shares):  # noqa: F811
    torch.manual_seed(2)
    kernel = VMFKernel(20.0)
    compare(
        some_mixtures(70, modes=2, dim=8, low=0.5, high=3e4), None, kernel, device, all_terms(kernel, 8), limit=5e-6
    )
    assert 0 < shares[0] < 1


@pytest.mark.parametrize("name", ["vmf", "acceptance"])
def test_given_negatives(name, device, shares):  # noqa: F811
    torch.manual_seed(1)
    kernel = KERNELS[name]()
    first, second = some(1, 20, dim=96, low=40.0, high=45.0), some(1, 70, dim=96, low=25.0, high=28.0)
    # The gradient in kappa is a sum of slopes in float32 that nearly cancel here: 2.7e-6 (the series: 1.3e-6).
    compare(first, second, kernel, device, all_terms(kernel, 96), limit=5e-6)
    assert shares == [1.0, 1.0]  # the two sides change places for the gradient of the second


def test_classes_that_are_not_usable_are_summed_by_the_series(device, shares):  # noqa: F811
    """In few dimensions, with a wide range of kappas, the polynomials of some classes are not good enough."""
    torch.manual_seed(0)
    kernel = VMFKernel(20.0)
    compare(some(130, dim=10, low=0.5, high=1e4), None, kernel, device, all_terms(kernel, 10))
    compare(some(1, 20, dim=10, low=0.5, high=1e3), some(1, 70, dim=10), kernel, device, all_terms(kernel, 10))
    assert 0 < shares[0] < 1


def test_no_class_is_usable(device, shares, monkeypatch):  # noqa: F811
    torch.manual_seed(0)
    kernel = AcceptanceKernel(20.0)
    monkeypatch.setattr(polynomials, "TOLERANCE", 0.0)
    compare(some(70, dim=16, low=20.0, high=30.0), None, kernel, device, all_terms(kernel, 16))
    assert shares == [0.0]


def test_far_pairs(device, shares):  # noqa: F811
    """In ten dimensions, log r of distant pairs is below the floor of the series. They do not matter."""
    torch.manual_seed(0)
    kernel = AcceptanceKernel(20.0)
    compare(some(140, dim=10, low=80.0, high=90.0), None, kernel, device, all_terms(kernel, 10))
    assert shares == [1.0]


@pytest.mark.parametrize("given", [False, True])
def test_far_pairs_that_matter(given, device, shares, monkeypatch):  # noqa: F811
    """One anchor is opposite to all others. The series sums all pairs then."""
    torch.manual_seed(0)
    kernel = AcceptanceKernel(20.0)
    mu, kappa = some(1, 70, dim=10, low=80.0, high=85.0)
    mu = F.normalize(torch.eye(10)[0] + 0.1 * mu, dim=-1)
    mu[0, 3] *= -1
    decided = []
    monkeypatch.setattr(on_gpu, "too_far", lambda *sums: decided.append(too_far(*sums)) or decided[-1])
    sides = ((mu[:, :8], kappa[:, :8]), (mu[:, 8:], kappa[:, 8:])) if given else ((mu[0], kappa[0]), None)
    # At the floor the slopes are small differences in float32.
    compare(*sides, kernel, device, all_terms(kernel, 10), limit=5e-5)
    assert [bool(x) for x in decided] == [True]


def test_tails(device, shares):  # noqa: F811
    """A steep kernel in ten dimensions: most pairs are in the tail."""
    torch.manual_seed(0)
    kernel = VMFKernel(40.0)
    compare(some(80, dim=10, low=60.0, high=80.0), None, kernel, device, all_terms(kernel, 10))
    assert shares == [1.0]


def test_equal_and_extreme_posteriors(device):  # noqa: F811
    torch.manual_seed(0)
    mu, kappa = some(70, dim=64)
    compare((mu, torch.full_like(kappa, 30.0)), None, VMFKernel(20.0), device, 58)
    kappa = torch.tensor([0.0, 1e-6, 40.0, 1e6, math.inf]).repeat(14)
    compare((mu, kappa), None, VMFKernel(20.0), device, 58)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter cannot run this kernel")
def test_rows_that_are_left_out_hold_no_nan(device):  # noqa: F811
    """Their memory is not written. The slopes of their means are multiplied by sums of nothing."""
    kappa = torch.ones(20, dtype=torch.float64, device=device)
    scale = torch.zeros(6, dtype=torch.float64, device=device)
    torch.use_deterministic_algorithms(True)  # new memory is full of NaN
    try:
        unused = torch.ones((), dtype=torch.int32, device=device)
        mean_slope = functions.fused_row_weights(4.0, kappa, scale, None, 40.0, 36, (0.1, 0.2), unused)[-1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert mean_slope.tolist() == [0.0] * 20


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=["vmf", "acceptance"])
@pytest.mark.parametrize("dim", [3, 10, 64])
@pytest.mark.parametrize("nodes", [(9, 5), (2, 3)])
def test_the_grid_against_the_table_of_pairs(kernel, dim, nodes, device):  # noqa: F811
    torch.manual_seed(0)
    (P, Q), (a, b) = (2, 3), nodes
    terms = kernel.terms(dim, 1e-17)
    log_lam, sign = kernel.series(dim, terms + terms % 2, torch.device("cpu"))
    kappa, half = 5 + 60 * torch.rand(P * a + Q * b, dtype=torch.float64), torch.rand(P, Q, dtype=torch.float64) / 4
    series = KernelSeries(dim, log_lam, sign, None)
    weights = row_weights(series, kappa)
    expected = polynomials._log_r(series, weights, half, nodes)
    y = polynomials._nodes_and_check(polynomials.COSINE_NODES, torch.device("cpu"))
    factors = recurrences(dim, len(log_lam), torch.device("cpu"))
    tensors = [x.to(device) for x in (weights.weights, weights.log_length, sign, factors, y, half)]
    found = functions.fused_log_grid(*tensors, nodes)
    assert found.shape == (polynomials.COSINE_NODES + 1, P, a, Q, b)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)


def test_a_sum_that_is_not_positive(device):  # noqa: F811
    """Two terms of a series with a negative coefficient: log r is very small, and not NaN."""
    weights = torch.tensor([[0.5, 1.0]], dtype=torch.float64).repeat(2, 1)
    others = (torch.zeros(2), torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 0]))
    tensors = [x.double().to(device) for x in (weights, *others, torch.ones(1, 1))]
    found = functions.fused_log_grid(*tensors, (1, 1)).flatten()
    assert found[0] < -600  # 1/4 - 1 at the cosine 1
    assert found[1].item() == pytest.approx(torch.tensor(0.25).log().item())  # 1/4 - 0 at the cosine 0
