"""Bootstrap intervals: they cover what they should, and say when there is none."""

import pytest
import torch

from aleator.evaluation import auroc, interval, r_auroc


def mean(values):
    return values.double().mean().item()


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0)).double()
    low, high = interval(mean, values, resamples=2000)
    error = values.std().item() / 2000**0.5
    assert low == pytest.approx(mean(values) - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(mean(values) + 1.96 * error, abs=0.25 * error)


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for seed in range(200):
        low, high = interval(mean, torch.rand(100, generator=generator), resamples=100, seed=seed, level=0.8)
        covered += low <= 0.5 <= high
    assert abs(covered / 200 - 0.8) < 4 * (0.8 * 0.2 / 200) ** 0.5


def test_all_arrays_are_drawn_together():
    values = torch.randn(50)
    low, high = interval(lambda a, b: mean(a - b), values, values.numpy(), seed=3)
    assert low == high == 0.0
    assert interval(mean, values, seed=3) == interval(mean, values, seed=3) != interval(mean, values, seed=4)


def test_an_undefined_metric_has_no_interval():
    assert interval(r_auroc, torch.rand(20), torch.ones(20)) is None  # no miss in any draw
    assert interval(lambda v: float("nan"), torch.rand(20)) is None
    hits = torch.arange(20) > 0  # one miss, which two draws in three hold
    assert interval(r_auroc, torch.arange(20), hits, resamples=500) is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interval(mean), "nothing to draw from"),
        (lambda: interval(mean, torch.ones(3), torch.ones(4)), "arrays = 4"),
        (lambda: interval(mean, torch.ones(0)), "arrays = 0"),
        (lambda: interval(mean, torch.ones(3), resamples=0), "resamples = 0"),
        (lambda: interval(mean, torch.ones(3), level=95.0), "level"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_resamples_of_one_class_are_skipped_and_all_of_them_are_an_error():
    low, high = interval(auroc, torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0, 0, 1, 1]))
    assert 0 <= low <= high <= 1
    with pytest.raises(ValueError, match="all labels are equal"):
        interval(auroc, torch.tensor([0.1, 0.2]), torch.tensor([1, 1]))
