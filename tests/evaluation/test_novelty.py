"""What is unlike anything seen: false alarms at the nominal rate, and detection of what lies outside."""

import math

import pytest
import torch

from aleator.evaluation import fit_novelty, novelty

SEEDED = torch.Generator().manual_seed


def mixture(count: int, seed: int, features: int = 100) -> torch.Tensor:
    """Items of three classes in a space of 100 features, most of which vary little."""
    generator = SEEDED(seed)
    centres = 3 * torch.randn(3, features, generator=SEEDED(99))
    centres[:, 20:] *= 0.05
    noise = torch.randn(count, features, generator=generator)
    noise[:, 20:] *= 0.05
    return centres[torch.randint(3, (count,), generator=generator)] + noise


@pytest.fixture(scope="module")
def detector():
    return fit_novelty({"a": mixture(800, 0)}, {"a": mixture(600, 1)})


def test_false_alarms_are_at_the_nominal_rate():
    """Over repetitions, the rate of false alarms is at most the nominal one, and not far below it."""
    rates = []
    for seed in range(20):
        training, held_out = (torch.randn(n, 6, generator=SEEDED(1000 * k + seed)) for k, n in ((1, 200), (2, 399)))
        fitted = fit_novelty({"x": training}, {"x": held_out}, false_alarms=0.05)
        fresh = torch.randn(500, 6, generator=SEEDED(3000 + seed))
        rates.append(fitted.unlike({"x": fresh}).double().mean().item())
    error = 4 * math.sqrt(0.05 * 0.95 * (1 / 399 + 1 / 500) / 20)
    assert sum(rates) / 20 == pytest.approx(0.05, abs=error)


def test_few_held_out_items_extend_the_tail():
    """30 items cannot show a share of 0.5 %. The threshold lies above all of them, and false alarms stay rare."""
    rates = []
    for seed in range(20):
        training, held_out = (torch.randn(n, 4, generator=SEEDED(1000 * k + seed)) for k, n in ((1, 200), (2, 30)))
        fitted = fit_novelty({"x": training}, {"x": held_out})
        assert fitted.excess({"x": held_out}).max() < 1e-5
        fresh = torch.randn(500, 4, generator=SEEDED(3000 + seed))
        rates.append(fitted.unlike({"x": fresh}).double().mean().item())
        assert fitted.unlike({"x": fresh[:1] + 20}).all()
    assert sum(rates) / 20 < 0.02  # the largest of 30 would give 1 / 31


def test_a_handful_of_held_out_items_does_not_raise_false_alarms():
    """The excess over a few items is a poor estimate of the tail, and the threshold counts that in."""
    rates = []
    for seed in range(60):
        training, held_out = (torch.randn(n, 4, generator=SEEDED(1000 * k + seed)) for k, n in ((4, 60), (5, 6)))
        fitted = fit_novelty({"x": training}, {"x": held_out})
        fresh = torch.randn(200, 4, generator=SEEDED(6000 + seed))
        rates.append(fitted.unlike({"x": fresh}).double().mean().item())
    assert sum(rates) / 60 < 0.03  # above the largest of six lies one in seven


def test_an_exponential_tail_keeps_its_rate_of_false_alarms():
    generator = SEEDED(7)
    scores = -torch.rand(4000, 20, generator=generator, dtype=torch.float64).log()
    alarms = [math.exp(-novelty._threshold(own, 0.005)) for own in scores]  # P(a new score is larger)
    assert sum(alarms) / 4000 == pytest.approx(0.005, abs=0.0015)


@pytest.mark.parametrize("shift", ["far", "between", "outside the usual directions"])
def test_flags_what_lies_elsewhere(detector, shift):
    rows = mixture(50, 2)
    if shift == "far":
        rows = rows + 8 * torch.eye(100)[3]
    elif shift == "between":  # the mean of the classes is where no item is
        rows = mixture(3000, 3).mean(0, keepdim=True)
    else:
        rows[:, 20:] *= 40
    assert detector.unlike({"a": rows}).double().mean() > 0.9
    assert detector.unlike({"a": mixture(500, 4)}).double().mean() < 0.03


def test_one_view_is_enough(detector):
    """An input is flagged if it is unlike in one of two views."""
    one, two = mixture(800, 5), torch.randn(800, 3, generator=SEEDED(6))
    both = fit_novelty({"a": one[:400], "b": two[:400]}, {"a": one[400:], "b": two[400:]})
    usual, unusual = {"a": one[:1], "b": two[:1]}, {"a": one[:1], "b": two[:1] + 50}
    assert both.unlike(usual).tolist() == [False]
    assert both.unlike(unusual).tolist() == [True]


def test_values_that_are_not_finite_or_huge_are_flagged(detector):
    rows = mixture(3, 7)
    rows[0, 0], rows[1, 0], rows[2, 0] = math.nan, math.inf, 1e30
    assert detector.unlike({"a": rows}).tolist() == [True, True, True]


def test_of_many_items_a_sample_is_kept(monkeypatch):
    monkeypatch.setattr("aleator.evaluation.novelty._MOST_ITEMS", 100)
    fitted = fit_novelty({"a": mixture(1000, 0)}, {"a": mixture(300, 1)})
    assert 50 <= len(fitted.views["a"].sample) <= 100
    assert fitted.unlike({"a": mixture(500, 2)}).double().mean() < 0.03


def test_constant_features():
    """Features that never vary: a new value is unlike."""
    rows = torch.randn(300, 4, generator=SEEDED(0))
    rows[:, 3] = 2.0
    fitted = fit_novelty({"x": rows[:150]}, {"x": rows[150:]})
    other = rows[:1].clone()
    other[0, 3] = 30.0
    assert fitted.unlike({"x": rows[150:151]}).tolist() == [False]
    assert fitted.unlike({"x": other}).tolist() == [True]


def test_refuses(detector):
    with pytest.raises(ValueError, match="no view"):
        detector.excess({"b": mixture(2, 0)})
    with pytest.raises(ValueError, match="rows of 100"):
        detector.excess({"a": torch.zeros(2, 5)})
    with pytest.raises(ValueError, match="views"):
        fit_novelty({"a": torch.zeros(4, 2)}, {"b": torch.zeros(4, 2)})
    with pytest.raises(ValueError, match="held_out"):
        fit_novelty({"a": torch.zeros(4, 2)}, {"a": torch.zeros(0, 2)})
    with pytest.raises(ValueError, match="false_alarms"):
        fit_novelty({"a": torch.zeros(4, 2)}, {"a": torch.zeros(4, 2)}, false_alarms=0)
