"""Polynomials for log r against the series that they stand for, and against the exact overlap."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as reference

from aleator import AcceptanceKernel, VMFKernel
from aleator.matching.interpolant import (
    _DROP,
    COLUMN_NODES,
    COSINE_NODES,
    ROW_NODES,
    TOLERANCE,
    Interpolant,
    chebyshev_sum,
    chebyshev_sum_and_slope,
    chebyshev_values,
    interpolant,
    kappa_scale,
    too_far,
)
from aleator.matching.series import DEPTH, KernelSeries, log_series

KERNELS = {"vmf": VMFKernel(20.0), "acceptance": AcceptanceKernel(20.0)}


def evaluated(found: Interpolant, dim: int, kappa, cosine, some=None) -> tuple[torch.Tensor, torch.Tensor]:
    """log r of `some` rows (all) with the same columns by the formula of interpolant.py, and where it is usable."""
    s = kappa_scale(dim)
    some = torch.arange(len(kappa)) if some is None else some
    p, q, kappa1, kappa2 = some // found.rows.size, some // found.columns.size, kappa[some], kappa[some]
    z = (1 / (1 + s / kappa1) - found.rows.middle[p]) / found.rows.half[p]
    v = (1 / (1 + s / kappa2) - found.columns.middle[q]) / found.columns.half[q]
    rows = chebyshev(z, ROW_NODES).mT
    columns = v[:, None] ** torch.arange(COLUMN_NODES)
    table = found.coefficients[:, :, :ROW_NODES, :, :COLUMN_NODES][:, p][:, :, :, q]
    value = torch.einsum("ia,kiajb,jb->kij", rows, table, columns)
    width = found.width[p][:, q]
    inside = torch.maximum(cosine, 1 - width)
    tail = found.slope[p][:, q] * (cosine - inside)
    if len(value) == COSINE_NODES + 2:
        steepness = value[-1].clamp(min=1e-20)
        inside = torch.maximum(cosine, 1 - DEPTH / steepness)
        tail = steepness * (cosine - inside)
    y = 1 - 2 * (1 - inside) / width
    counts = torch.arange(COSINE_NODES)[:, None, None] < found.degree[p][:, q]
    return (chebyshev(y, COSINE_NODES) * value[:COSINE_NODES] * counts).sum(0) + tail, found.usable[p][:, q] == 1


def chebyshev(x: torch.Tensor, count: int) -> torch.Tensor:
    """T_0, T_1, ... by their recurrence, (count, ...)."""
    values = [torch.ones_like(x), x]
    while len(values) < count:
        values.append(2 * x * values[-1] - values[-2])
    return torch.stack(values)


def errors(name: str, dim: int, kappa: torch.Tensor, terms: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors at usable pairs of sorted kappas, and the share of these pairs."""
    kernel = KERNELS[name]
    kappa = kappa.clamp(max=kernel.reach(dim))
    log_lam, sign = kernel.series(dim, terms or kernel.terms(dim, 1e-17), torch.device("cpu"))
    kappa_pos = 20.0 if name == "vmf" else None
    series = KernelSeries(dim, log_lam, sign, kappa_pos)
    found = interpolant(series, kappa, kappa)
    cosine = torch.rand(len(kappa), len(kappa), dtype=torch.float64) * 2 - 1
    ours, usable = evaluated(found, dim, kappa, cosine)
    exact, largest = (log_series(series, c, kappa[:, None], kappa[None, :]) for c in (cosine, torch.ones_like(cosine)))
    # Without a tail, what is far below the maximum counts for its share of it.
    weight = 1.0 if kappa_pos else (exact - largest + _DROP).clamp(max=0).exp()
    return ((ours - exact).abs() * weight)[usable], usable.double().mean()


def log_uniform(count: int, low: float, high: float) -> torch.Tensor:
    exponents = torch.rand(count, dtype=torch.float64) * math.log(high / low)
    return (low * exponents.exp()).sort().values


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dim", [64, 256])
def test_a_narrow_range_of_kappas(name, dim):
    torch.manual_seed(0)
    error, share = errors(name, dim, log_uniform(128, 40.0, 46.0))
    assert share == 1
    assert error.max() <= TOLERANCE


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dim", [64, 300])
def test_a_wide_range_of_kappas(name, dim):
    """Some classes are not usable. Where they are, the polynomial is right."""
    torch.manual_seed(0)
    error, share = errors(name, dim, log_uniform(256, 1.0, 1e4))
    assert 0.02 < share < 1
    assert error.max() <= 2 * TOLERANCE


def test_few_dimensions():
    """Far away, the series has a floor, and the polynomial of a kernel with a tail has none: a difference of 1e-4."""
    torch.manual_seed(0)
    for dim in (2, 10):
        error, share = errors("vmf", dim, log_uniform(128, 60.0, 66.0))
        assert share > 0
        assert error.max() <= 1e-4
        assert error.median() <= TOLERANCE


def test_equal_kappas_and_the_ends_of_the_range():
    error, share = errors("vmf", 64, torch.full((64,), 30.0, dtype=torch.float64))
    assert share == 1
    assert error.max() <= TOLERANCE
    error, share = errors("vmf", 512, torch.tensor([0.0] * 64 + [math.inf] * 64, dtype=torch.float64))
    assert share == 1
    assert error.max() <= TOLERANCE


@pytest.mark.parametrize("dim", [10, 16])
def test_far_pairs_of_a_kernel_without_a_tail(dim):
    """In few dimensions log r falls below its floor. The polynomial ends before, and goes on as a straight line."""
    torch.manual_seed(0)
    kernel, kappa = KERNELS["acceptance"], log_uniform(128, 60.0, 66.0)
    log_lam, sign = kernel.series(dim, kernel.terms(dim, 1e-17), torch.device("cpu"))
    series = KernelSeries(dim, log_lam, sign, None)
    found = interpolant(series, kappa, kappa)
    assert found.usable.all()
    assert found.width.min() < 1.7
    some = torch.randint(128, (12,)).sort().values
    for offset in (0.0, 0.05, 0.3):  # from the start of the far pairs on
        start = 1 - found.width[some // found.rows.size][:, some // found.columns.size]
        cosine = (start - offset).clamp(min=-1)
        ours, _ = evaluated(found, dim, kappa, cosine, some)
        exact = log_series(series, cosine, kappa[some, None], kappa[None, some])
        largest = log_series(series, torch.ones_like(cosine), kappa[some, None], kappa[None, some])
        far = start > -1
        assert (exact - largest)[far].max() < 1 - _DROP
        assert (ours - exact)[far].min() > -0.1  # no less than r: log r is concave there
        assert (ours - largest)[far].max() < 1 - _DROP


def test_far_pairs_may_not_matter():
    largest = torch.tensor([[0.0, 5.0], [3.0, 5.0]])
    total, far = torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1e-6]])
    assert too_far(largest, total, far)  # the first: 1 of 1 + 2 e^3
    far[0, 0] = 1e-5  # 1e-5 of 41
    assert not too_far(largest, total, far)
    far[1, 1] = 3e-6  # of 2
    assert too_far(largest, total, far)


def test_a_nan_is_not_usable():
    kappas = torch.full((64,), math.nan, dtype=torch.float64)
    assert errors("acceptance", 10, kappas)[1] == 0


def test_chebyshev_values_and_slopes():
    z = torch.linspace(-1, 1, 7, dtype=torch.float64)
    values, slopes = chebyshev_values(z, torch.full_like(z, 3.0), 6)
    for k in range(6):
        series = reference.Chebyshev.basis(k)
        np.testing.assert_allclose(values[:, k], series(z.numpy()), atol=1e-14)
        np.testing.assert_allclose(slopes[:, k], 3 * series.deriv()(z.numpy()), atol=1e-12)


def test_sums_and_their_slopes_have_coefficients_of_their_own_for_every_pair():
    torch.manual_seed(0)
    y, coefficients = torch.rand(4, 5, dtype=torch.float64) * 2 - 1, torch.randn(8, 4, 5, dtype=torch.float64)

    def put(k, after):
        return torch.sub(coefficients[k], after, out=after)

    value, slope = chebyshev_sum_and_slope(2 * y, 8, put)
    torch.testing.assert_close(chebyshev_sum(2 * y, 8, put), value)
    for i in range(4):
        for j in range(5):
            series = reference.Chebyshev(coefficients[:, i, j].numpy())
            assert abs(series(y[i, j].item()) - value[i, j].item()) < 1e-13
            assert abs(series.deriv()(y[i, j].item()) - slope[i, j].item()) < 1e-12
