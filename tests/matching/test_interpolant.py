"""Polynomials for log r against the series that they stand for, and against the exact overlap."""

import math

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel
from aleator.matching.fused_totals import _fixed_tail
from aleator.matching.interpolant import (
    COLUMN_NODES,
    COSINE_NODES,
    ROW_NODES,
    TOLERANCE,
    Interpolant,
    interpolant,
    kappa_scale,
)
from aleator.matching.series import DEPTH, log_series

KERNELS = {"vmf": VMFKernel(20.0), "acceptance": AcceptanceKernel(20.0)}


def evaluated(found: Interpolant, dim: int, kappa1, kappa2, cosine) -> tuple[torch.Tensor, torch.Tensor]:
    """log r of every row with every column by the formula at the top of interpolant.py, and where it may be used."""
    s = kappa_scale(dim)
    p, q = torch.arange(len(kappa1)) // found.rows.size, torch.arange(len(kappa2)) // found.columns.size
    z = (1 / (1 + s / kappa1) - found.rows.middle[p]) / found.rows.half[p]
    v = (1 / (1 + s / kappa2) - found.columns.middle[q]) / found.columns.half[q]
    rows = chebyshev(z, ROW_NODES).mT
    columns = v[:, None] ** torch.arange(COLUMN_NODES)
    table = found.coefficients[:, :, :ROW_NODES, :, :COLUMN_NODES][:, p][:, :, :, q]
    value = torch.einsum("ia,kiajb,jb->kij", rows, table, columns)
    tail = 0.0
    inside = cosine
    if len(value) == COSINE_NODES + 2:
        steepness = value[-1].clamp(min=1e-20)
        inside = torch.maximum(cosine, 1 - DEPTH / steepness)
        tail = steepness * (cosine - inside)
    y = 1 - 2 * (1 - inside) / found.width[p][:, q]
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
    found = interpolant(dim, kappa, kappa, log_lam, sign, _fixed_tail(dim, 20.0) if kappa_pos else None)
    cosine = torch.rand(len(kappa), len(kappa), dtype=torch.float64) * 2 - 1
    ours, usable = evaluated(found, dim, kappa, kappa, cosine)
    exact = log_series(cosine, kappa[:, None], kappa[None, :], log_lam, sign, dim, kappa_pos)
    return (ours - exact).abs()[usable], usable.double().mean()


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


@pytest.mark.parametrize("kappa", [math.nan, 1e3])
def test_what_the_polynomial_cannot_do_is_not_usable(kappa):
    """A NaN; and sharp posteriors in ten dimensions, where log r of the acceptance kernel meets its floor."""
    kappas = torch.full((64,), kappa, dtype=torch.float64)
    assert errors("acceptance", 10, kappas)[1] == 0
