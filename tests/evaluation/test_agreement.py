"""Agreement metrics against scipy, brute force and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from aleator import VonMisesFisher
from aleator.evaluation import agreement as m


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


# Agreement


def test_errors():
    assert m.rmse([1.0, 2.0, 3.0], [1.0, 4.0, 0.0]) == pytest.approx(math.sqrt(13 / 3))
    assert m.mae(np.array([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])) == 1.5
    assert m.rmse(torch.ones(4), torch.ones(4)) == 0.0


@pytest.mark.parametrize("levels", [None, 5, 50])
def test_rank_correlation_is_scipys(levels):
    a, b = torch.randn(2, 301).double()
    b = a + b
    if levels is not None:  # many ties
        a, b = (a * levels / 4).round(), (b * levels / 4).round()
    torch.testing.assert_close(m.ranks(a), torch.as_tensor(stats.rankdata(a.numpy())))
    expected = stats.spearmanr(a.numpy(), b.numpy()).statistic
    assert m.rank_correlation(a, b) == pytest.approx(expected, abs=1e-12)
    assert m.rank_correlation(a, a.exp()) == pytest.approx(1.0)
    assert m.rank_correlation(a, -a) == pytest.approx(-1.0)


def test_a_constant_has_no_rank_correlation():
    assert math.isnan(m.rank_correlation(torch.ones(5), torch.arange(5.0)))


def all_pairs(true, predicted):
    i, j = np.triu_indices(len(true), 1)
    return (true @ true.T).numpy()[i, j], (predicted @ predicted.T).numpy()[i, j]


def check_agreement(result, true, predicted):
    a, b = all_pairs(true, predicted)
    assert result.rmse == pytest.approx(np.sqrt(np.mean((a - b) ** 2)), rel=1e-10)
    assert result.mae == pytest.approx(np.mean(np.abs(a - b)), rel=1e-10)
    error = abs(result.rank - stats.spearmanr(a, b).statistic)
    assert error <= result.rank_error + 1e-12
    return error


@pytest.mark.parametrize("n", [2, 3, 150])
def test_agreement_over_few_pairs_is_exact(n):
    true, predicted = unit(n, 5), unit(n, 7)  # the encoder's dimension may differ
    if n == 2:
        result = m.pairwise_agreement(true, predicted)
        assert result.rmse == pytest.approx(abs(true[0] @ true[1] - predicted[0] @ predicted[1]).item())
        return
    result = m.pairwise_agreement(true, predicted)
    assert result.rank_error == 0
    check_agreement(result, true, predicted)


@pytest.mark.parametrize("block", [50_000, 2**22], ids=["blocks", "one block"])
@pytest.mark.parametrize("bins", [2**6, 2**12, 2**20])
def test_agreement_over_many_pairs_is_within_its_bound(bins, block, monkeypatch):
    monkeypatch.setattr(m, "_BLOCK", block)
    true = unit(500, 5)
    predicted = torch.nn.functional.normalize(true + 0.3 * unit(500, 5), dim=-1)
    result = m.pairwise_agreement(true, predicted, bins=bins, exact_pairs=0)
    error = check_agreement(result, true, predicted)
    assert result.rank_error < 10 / bins + 1e-4  # 125,000 pairs: each has a share of 1e-5 on its own
    assert error < 1 / bins  # far below the bound
    if bins == 2**20:
        assert error < 1e-7


def test_agreement_knows_exact_ties_and_rotations():
    true = unit(40, 3).repeat(3, 1)
    rotation = torch.linalg.qr(torch.randn(3, 3).double()).Q
    result = m.pairwise_agreement(true, true @ rotation, exact_pairs=0)
    assert result.rmse < 1e-12
    assert result.rank == pytest.approx(1.0, abs=1e-6)


def test_agreement_of_thousands_of_points_in_float32():
    true = unit(3000, 3)
    noisy = torch.nn.functional.normalize(true + 0.1 * unit(3000, 3), dim=-1)
    result = m.pairwise_agreement(true.float(), noisy.float())  # 4.5 million pairs: beyond the exact limit
    assert 0 < result.rank_error < 1e-5
    few = m.pairwise_agreement(true[:1500], noisy[:1500])
    assert result.rank == pytest.approx(few.rank, abs=2e-3)
    assert result.rmse == pytest.approx(few.rmse, abs=2e-3)


# Posteriors


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_spread_is_the_average_cosine_distance(dim):
    kappa = torch.tensor([0.5, 5.0, 50.0])
    q = VonMisesFisher(torch.eye(dim)[:1].expand(3, dim), kappa)
    z = q.sample((20_000,))
    distance = 1 - z[..., 0]
    error = distance.std(0) / math.sqrt(20_000)
    assert ((m.spread(q) - distance.mean(0)).abs() < 4 * error + 1e-4).all()
    if dim == 3:
        k = kappa.double()
        torch.testing.assert_close(m.spread(q), 1 - (1 / torch.tanh(k) - 1 / k))
    sharp = m.spread(VonMisesFisher(torch.eye(dim)[0], torch.tensor(1e8)))
    assert sharp.item() == pytest.approx((dim - 1) / 2e8, rel=1e-5)


@pytest.mark.parametrize("reflect", [False, True])
def test_the_aligning_rotation_is_found(reflect):
    rotation = torch.linalg.qr(torch.randn(4, 4).double()).Q
    rotation[:, 0] *= torch.sign(torch.det(rotation)) * (-1 if reflect else 1)
    source = unit(50, 4)
    found = m.aligning_rotation(source, source @ rotation)
    torch.testing.assert_close(found, rotation)
    torch.testing.assert_close(found.T @ found, torch.eye(4).double())
    noisy = torch.nn.functional.normalize(source @ rotation + 0.1 * unit(50, 4), dim=-1)
    best = m.aligning_rotation(source, noisy)
    nearby = [torch.linalg.qr(best + 0.1 * torch.randn(4, 4)).Q for _ in range(50)]
    error = (source @ best - noisy).norm()
    assert all(error < (source @ Q * torch.sign((Q * best).sum(0)) - noisy).norm() for Q in nearby)


def test_the_alignment_embeds_a_space_in_a_larger_one():
    lift = torch.linalg.qr(torch.randn(6, 6).double()).Q[:4]
    source = unit(50, 4)
    torch.testing.assert_close(m.aligning_rotation(source, source @ lift), lift)


@pytest.mark.parametrize("dim", [2, 10])
def test_coverage_of_calibrated_and_overconfident_caps(dim):
    levels = (0.5, 0.8, 0.9, 0.95, 0.99)
    mu, kappa = unit(500, dim), torch.linspace(4, 64, 500).double()
    q = VonMisesFisher(mu, kappa)
    z = q.sample((40,))
    for p, share in zip(levels, m.cap_coverage(q, z, levels), strict=True):
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 20_000)
    # The same as asking each cap for its cosine.
    inside = (z[0] * mu).sum(-1) >= q.cap(0.8)
    assert m.cap_coverage(q, z[0], [0.8])[0] == pytest.approx(inside.double().mean().item(), abs=1e-9)
    overconfident = m.cap_coverage(VonMisesFisher(mu, 4 * kappa), z, levels)
    assert overconfident[1] < 0.5


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: m.rmse([1.0], [1.0, 2.0]), "true"),
        (lambda: m.mae([], []), "empty"),
        (lambda: m.pairwise_agreement(unit(3, 2), unit(4, 2)), "mu_predicted = 4"),
        (lambda: m.pairwise_agreement(unit(1, 2), unit(1, 2)), "no pair"),
        (lambda: m.aligning_rotation(unit(3), unit(3)), "not a matrix"),
        (lambda: m.aligning_rotation(unit(3, 2), unit(2, 2)), "target = 2"),
        (lambda: m.cap_coverage(VonMisesFisher(unit(3, 2), 1.0), unit(3, 4), [0.5]), "dimension 2"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
