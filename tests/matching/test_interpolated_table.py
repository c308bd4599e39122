"""Tables of log r with polynomials on a CPU: equal to the series in float64, in values and in all gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import PrototypeLoss, VMFKernel, VonMisesFisher
from aleator.matching import Way, interpolated_table
from aleator.matching.interpolated_table import CLASSES, _Lattice
from aleator.matching.positivity import log_r_of_components


@pytest.fixture(autouse=True)
def series_rows(monkeypatch) -> list[int]:
    """How many rows were left to the series, for each table with such rows."""
    series, found = _Lattice.series, []

    def recorded(self, cosine, *arguments):
        found.append(len(cosine))
        return series(self, cosine, *arguments)

    monkeypatch.setattr(_Lattice, "series", recorded)
    return found


def some(count: int, dim: int, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Directions of which many are near each other, and kappas."""
    mu = torch.rand(count, 1) * 3 * torch.eye(dim)[torch.arange(count) % 3 % dim] + torch.randn(count, dim)
    return F.normalize(mu, dim=-1), torch.empty(count).uniform_(math.log(low), math.log(high)).exp()


def table_of(q1: VonMisesFisher, q2: VonMisesFisher, kernel: VMFKernel, way: Way) -> torch.Tensor:
    return log_r_of_components(q1[:, None], q2[None, :], kernel, way=way)


def results(first, second, kernel, weight, dtype) -> list[torch.Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in (*first, *second)]
    q1, q2 = (VonMisesFisher(*leaves[i : i + 2], validate_args=False) for i in (0, 2))
    log_r = table_of(q1, q2, kernel, Way.TABLE if dtype == torch.float64 else Way.TABLE_POLYNOMIALS)
    return [log_r, *torch.autograd.grad(log_r, leaves, weight.to(dtype))]


def compare(first, second, kernel, limit: float = 1e-5, limit_slopes: float = 2e-6) -> None:
    weight = torch.randn(len(first[1]), len(second[1]))
    ours, exact = (results(first, second, kernel, weight, dtype) for dtype in (torch.float32, torch.float64))
    assert ours[0].dtype == torch.float32
    # float32 holds a logarithm of -100 to 8e-6
    assert ((ours[0].double() - exact[0]).abs() / (1 + exact[0].abs() / 10)).max() <= limit
    for slope, true in zip(ours[1:], exact[1:], strict=True):
        assert (slope.double() - true).abs().max() <= limit_slopes * true.abs().max()


@pytest.mark.parametrize(
    ("dim", "kappa_pos", "low", "high"),
    [(3, 20.0, 40, 400), (8, 7.2, 0.5, 200), (16, 20.0, 1, 1000), (64, 109.0, 5, 1e5), (128, 217.6, 30, 3000)],
)
def test_values_and_gradients(dim, kappa_pos, low, high):
    torch.manual_seed(dim)
    compare(some(60, dim, low, high), some(23, dim, low, high), VMFKernel(kappa_pos))


def test_many_dimensions_need_no_series(series_rows):
    torch.manual_seed(1)
    compare(some(60, 64, 20, 1000), some(30, 64, 20, 1000), VMFKernel(109.0))
    assert not series_rows


def test_rows_that_polynomials_cannot_do_are_left_to_the_series(series_rows):
    torch.manual_seed(2)
    first = some(80, 2, 0.5, 3000)
    compare(first, some(20, 2, 2000, 3000), VMFKernel(20.0), limit_slopes=2e-5)
    assert len(series_rows) == 1
    assert 0 < series_rows[0] < 80


def test_no_class_is_usable(series_rows, monkeypatch):
    torch.manual_seed(6)
    made = interpolated_table.polynomials
    monkeypatch.setattr(
        interpolated_table, "polynomials", lambda *a: (p := made(*a))._replace(usable=torch.zeros_like(p.usable))
    )
    interpolated_table._lattice.cache_clear()
    compare(some(30, 16, 2, 200), some(20, 16, 2, 200), VMFKernel(20.0), limit=1e-6, limit_slopes=1e-6)
    interpolated_table._lattice.cache_clear()
    assert series_rows == [30]


def test_blocks_of_rows_are_one_table(monkeypatch):
    torch.manual_seed(3)
    first, second = some(50, 16, 2, 200), some(40, 16, 2, 200)
    weight = torch.randn(50, 40)
    whole = results(first, second, VMFKernel(20.0), weight, torch.float32)
    monkeypatch.setattr(interpolated_table, "_BLOCK", 200)
    for part, all_of_it in zip(results(first, second, VMFKernel(20.0), weight, torch.float32), whole, strict=True):
        torch.testing.assert_close(part, all_of_it, rtol=1e-5, atol=1e-6)


def test_it_does_not_matter_which_classes_were_met_before():
    torch.manual_seed(4)
    kappa = torch.rand(2, 300, dtype=torch.float64) * 300 + 5
    cosine = torch.rand(300, 300, dtype=torch.float64) * 2 - 1
    at_once, in_parts = _Lattice(20.0, 16), _Lattice(20.0, 16)
    for row in range(0, 300, 30):
        interpolated_table._table(in_parts, cosine[row : row + 30], kappa[0, row : row + 30], kappa[1])
    for a, b in zip(*(interpolated_table._table(x, cosine, *kappa) for x in (at_once, in_parts)), strict=True):
        assert torch.equal(a, b)


def test_each_class_is_learned_once(monkeypatch):
    lattice, found = _Lattice(20.0, 16), []
    made = interpolated_table.polynomials
    monkeypatch.setattr(interpolated_table, "polynomials", lambda *a: found.append(len(a[1].middle)) or made(*a))
    every = torch.arange(CLASSES)
    lattice.learn(every[3:5], every)
    lattice.learn(every[2:6], every)
    lattice.learn(every, every)
    assert found == [2, 2, CLASSES - 4]


def test_equal_and_extreme_posteriors():
    mu = F.normalize(torch.randn(5, 32), dim=-1)
    kappa = torch.tensor([0.0, 1e-6, 40.0, 1e6, math.inf])
    tables = []
    for dtype, way in ((torch.float32, Way.TABLE_POLYNOMIALS), (torch.float64, Way.TABLE)):
        q = VonMisesFisher(mu.to(dtype), kappa.to(dtype), validate_args=False)
        tables.append(table_of(q, q, VMFKernel(30.0), way).double())
    torch.testing.assert_close(*tables, rtol=1e-5, atol=1e-5)


def test_a_nan_stays_in_its_row_and_column():
    mu, kappa = some(40, 32, 10, 100)
    kappa[3] = torch.nan
    mu[7] = torch.nan
    q = VonMisesFisher(mu, kappa, validate_args=False)
    nan = table_of(q, q, VMFKernel(30.0), Way.TABLE_POLYNOMIALS).isnan()
    expected = torch.zeros(40, 40, dtype=torch.bool)
    for i in (3, 7):
        expected[i] = expected[:, i] = True
    assert torch.equal(nan, expected)


def test_a_loss_learns_with_them(monkeypatch):
    """The gradient of a loss, by differences. Its table is large enough to take polynomials."""
    torch.manual_seed(5)
    loss = PrototypeLoss(64, [1.0] * 70, VMFKernel(109.0), pairs=0.0)
    mu, kappa = some(200, 64, 100, 1000)
    labels = F.one_hot(torch.arange(200) % 70, 70).float()
    kappa.requires_grad_()
    made, tables = interpolated_table._table, []
    monkeypatch.setattr(interpolated_table, "_table", lambda *a: tables.append(a[1].shape) or made(*a))
    value = loss.soft(VonMisesFisher(mu, kappa, validate_args=False), labels)
    assert tables == [(200, 70)]
    (slope,) = torch.autograd.grad(value, kappa)
    step = torch.randn(200).sign() * kappa.detach()
    ends = [(kappa.detach() + sign * 1e-2 * step).requires_grad_() for sign in (1, -1)]
    high, low = (loss.soft(VonMisesFisher(mu, end, validate_args=False), labels).double() for end in ends)
    assert ((high - low) / 2e-2).item() == pytest.approx((slope * step).sum().item(), rel=2e-3, abs=1e-4)
