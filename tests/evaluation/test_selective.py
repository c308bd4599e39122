"""AURC, AUGRC and coverage at a risk: brute force, closed forms, ties, limits."""

from itertools import pairwise, permutations

import pytest
import torch

from aleator.evaluation import augrc, aurc, auroc, coverage_at_risk


def brute_areas(certainty, loss):
    """Means of AURC and AUGRC over all orders that agree with the certainty."""
    n, found = len(loss), []
    for order in permutations(range(n)):
        if all(certainty[a] >= certainty[b] for a, b in pairwise(order)):
            totals = [0.0]
            for i in order:
                totals.append(totals[-1] + loss[i])
            risk = sum(totals[k] / k for k in range(1, n + 1)) / n
            trapezia = sum((a + b) / 2 / n for a, b in pairwise(totals)) / n
            found.append((risk, trapezia))
    return [sum(values) / len(found) for values in zip(*found, strict=True)]


@pytest.mark.parametrize("levels", [1, 2, 3, None], ids=["all tied", "two", "three", "no ties"])
def test_areas_are_means_over_the_orders_of_ties(levels):
    generator = torch.Generator().manual_seed(levels or 0)
    certainty = torch.rand(6, generator=generator)
    certainty = certainty if levels is None else (certainty * levels).floor()
    loss = torch.rand(6, generator=generator).double()
    expected = brute_areas(certainty.tolist(), loss.tolist())
    assert [aurc(certainty, loss), augrc(certainty, loss)] == pytest.approx(expected)


@pytest.mark.parametrize("ties", [False, True])
def test_augrc_is_a_function_of_error_and_auroc(ties):
    certainty = torch.randn(500)
    certainty = certainty.round() if ties else certainty
    wrong = torch.rand(500) < torch.sigmoid(-certainty)
    e = wrong.double().mean().item()
    assert augrc(certainty, wrong) == pytest.approx((1 - auroc(certainty, ~wrong)) * e * (1 - e) + e**2 / 2)


def test_a_constant_score_has_the_risk_at_every_coverage():
    wrong = torch.arange(8) < 2
    assert aurc(torch.ones(8), wrong) == pytest.approx(0.25)
    assert augrc(torch.ones(8), wrong) == pytest.approx(0.125)


def test_a_perfect_score_is_best_and_its_reverse_worst():
    wrong = torch.rand(40) < 0.3
    best, worst = -wrong.double(), wrong.double()
    e = wrong.double().mean().item()
    assert augrc(best, wrong) == pytest.approx(e**2 / 2)
    assert augrc(worst, wrong) == pytest.approx(e - e**2 / 2)
    score = torch.randn(40)
    for area in (aurc, augrc):
        assert area(best, wrong) < area(score, wrong) < area(worst, wrong)
        assert area(score.exp(), wrong) == pytest.approx(area(score, wrong))  # only the order counts


@pytest.mark.parametrize("risk", [0.05, 0.2, 0.5])
def test_coverage_is_that_of_the_best_threshold(risk):
    certainty = (10 * torch.rand(100)).round()
    wrong = torch.rand(100) < 0.6 - 0.06 * certainty
    kept = [certainty >= threshold for threshold in certainty.unique()]
    fine = [k.double().mean().item() for k in kept if wrong[k].double().mean() <= risk]
    assert coverage_at_risk(certainty, wrong, risk) == pytest.approx(max(fine, default=0.0))


def test_coverage_of_clear_cases():
    assert coverage_at_risk([3.0, 2.0, 1.0], [1, 1, 1]) == 0.0
    assert coverage_at_risk([3.0, 2.0, 1.0], [0, 0, 0]) == 1.0
    assert coverage_at_risk(torch.arange(20.0), torch.arange(20) == 19, 0.05) == 1.0  # 1 of 20: the risk is met
    with pytest.raises(ValueError, match=r"risk = 1\.5"):
        coverage_at_risk([1.0], [0.0], 1.5)
