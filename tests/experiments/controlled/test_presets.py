"""The main row of each preset, and the changes that several tables make."""

from dataclasses import asdict

import pytest

from aleator.experiments.controlled.presets import (
    RESULT_SEEDS,
    TEN_SEEDS,
    TUNING_SEEDS,
    base,
    first_seeds,
    from_its_middle,
    sample_count,
    shorter,
    smaller,
    together,
    ungrouped,
    with_loss,
)

PRESETS = ("quick", "paper", "corrected", "best")


def changes(one, other):
    """Names of the fields that differ."""
    first, second = asdict(one), asdict(other)
    return {name for name in first if first[name] != second[name]}


def test_hyperparameters_are_not_chosen_on_the_seeds_of_the_results():
    assert not set(TUNING_SEEDS) & set(TEN_SEEDS)
    assert TEN_SEEDS[:5] == RESULT_SEEDS
    assert [len(first_seeds(preset, 3)) for preset in PRESETS] == [1, 3, 3, 3]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_the_ambiguous_setting(preset):
    setting = base(preset)
    assert (setting.name, setting.kappa_range, setting.kappa_pos) == ("ambiguous", (16.0, 32.0), 20.0)
    assert setting.loss == ("mcinfonce" if preset in ("paper", "corrected") else "exact")
    assert together(setting).recipe["phases"] == "joint"


@pytest.mark.parametrize("preset", PRESETS)
def test_another_loss_has_its_own_negatives_and_the_samples_of_the_preset(preset):
    by_loss = {loss: with_loss(base(preset), loss, preset) for loss in ("mcinfonce", "hib", "elk", "infonce")}
    assert {row.samples for row in by_loss.values()} == {sample_count(preset)}
    assert (by_loss["hib"].negatives, by_loss["elk"].negatives) == ("rolled", 1)
    assert by_loss["infonce"].recipe["phases"] == "mu"
    assert with_loss(base(preset), base(preset).loss, preset) == base(preset)


def test_each_change_touches_what_it_names():
    paper, best = base("paper"), base("best")
    assert changes(best, shorter(best, "best", best=7)) == {"recipe"}
    assert shorter(best, "best", quick=7) == best
    assert changes(best, ungrouped(best, "best")) == {"batch_size", "group"}
    assert ungrouped(paper, "paper") == paper
    assert from_its_middle(paper, "paper") == paper
    assert from_its_middle(paper, "corrected").kappa_start == pytest.approx((22.17, 23.08), abs=0.01)
    small = smaller(paper, batch_size=64, steps=10)
    laws = ("positives", "rule", "kernel", "average_negatives", "accept_offset", "initialisation", "smoothing")
    assert all(getattr(small, law) == getattr(paper, law) for law in laws)
    assert (small.batch_size, small.recipe["steps"]) == (64, 10)
