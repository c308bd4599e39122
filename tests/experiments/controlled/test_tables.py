"""Tables of the controlled experiments: every row can be run, and the preset "paper" has the paper's parameters."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

from aleator.experiments.catalogue import EXPERIMENTS
from aleator.experiments.controlled.published import CORRECTIONS
from aleator.experiments.controlled.published_constants import PUBLISHED_OFFSETS
from aleator.experiments.controlled.run import Setting
from aleator.experiments.controlled.tables import (
    circle,
    encoder_dim,
    high_dim,
    losses,
    published,
    recovery,
    samples,
    shared_backbone,
    tuning,
)
from aleator.experiments.paper import paper_figure
from aleator.experiments.settings import make_loss
from aleator.training.optimisers import make_optimiser
from aleator.training.recipe import Recipe

CASES = [(name, preset) for name, experiment in sorted(EXPERIMENTS.items()) for preset in experiment.presets]


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_every_table_is_made_of_valid_settings(name, preset):
    rows = EXPERIMENTS[name].rows(preset)
    assert rows
    settings = [row.setting for row in rows]
    assert len({(s.name, s.loss) for s in settings}) == len(settings)  # a reader can tell them apart
    for row in rows:
        assert row.seeds
        setting = getattr(row.setting, "setting", row.setting)  # a landscape has the setting inside
        if isinstance(setting, Setting):
            make_loss(setting)
            assert (setting.positives, setting.rule) != ("ratio", "rejected-latent")
            if setting.recipe:
                weight = torch.nn.Parameter(torch.zeros(2, 2))
                make_optimiser(Recipe(**setting.recipe), [weight], [], weight.device, cuda_graph=False)
            assert setting.mu_phase_negatives is None or setting.recipe["phases"] == "mu-then-kappa"


def test_the_paper_preset_has_the_published_settings():
    """Appendix, Experiment Parameters and Hyperparameter Tuning; laws, rates and networks as in the published code."""
    ambiguous, clear, injective, *_ = recovery("paper")
    setting = ambiguous.setting
    assert (setting.dim, setting.batch_size, setting.samples, setting.negatives) == (10, 512, 512, 32)
    assert (setting.loss, setting.kernel, setting.kappa_pos, setting.widths) == ("mcinfonce", "vmf", 20.0, None)
    assert (setting.positives, setting.rule, setting.average_negatives) == ("partner", "rejected-latent", True)
    assert (setting.initialisation, setting.smoothing, setting.kappa_start) == ("torch", "published", (16.0, 32.0))
    assert (setting.kappa_widths, setting.accept_offset) == ((10, 50, 50, 50, 50, 50, 10), 9.501)
    recipe = Recipe(**setting.recipe)
    mu, kappa = recipe.plan()
    assert [(phase.part, phase.end) for phase in (mu, kappa)] == [("mu", 50_000), ("kappa", 100_000)]
    rates = [recipe.learning_rate_at(step, mu) for step in (0, 24_999, 25_000, 49_999)]
    assert rates == pytest.approx([1e-4, 1e-4, 5e-5, 5e-5])
    rates = [recipe.learning_rate_at(step, kappa) for step in (50_000, 75_000)]
    assert rates == pytest.approx([7.071e-5, 3.536e-5], rel=1e-3)
    assert (recipe.mu_negatives, setting.mu_phase_negatives) == ("rolled", 0)
    assert {row.seeds for row in recovery("paper")} == {(4, 5, 6, 7, 8)}
    assert clear.setting.kappa_range == (64.0, 128.0)
    assert injective.setting.family == "point"
    plane = circle("paper")[0].setting
    assert (plane.dim, plane.recipe["steps"], plane.negatives) == (2, 8192, 1)
    assert (plane.mu_phase_negatives, plane.recipe["mu_negatives"], plane.rule) == (None, "given", "rejected-latent")
    assert [row.setting.samples for row in samples("paper")] == [1, 4, 16, 64, 256, 512]
    by_loss = {row.setting.loss: row.setting for row in losses("paper")}
    assert (by_loss["hib"].negatives, by_loss["hib"].a, by_loss["hib"].b) == ("rolled", 1.0, 0.0)
    assert (by_loss["elk"].negatives, by_loss["elk"].rule) == (1, "rejected-latent")
    assert by_loss["hib"].recipe["phases"] == by_loss["elk"].recipe["phases"] == "joint"
    high = {row.setting.dim: row.setting for row in high_dim("paper")}
    assert {(row.batch_size, row.samples) for row in high.values()} == {(256, 256)}
    assert {dim: row.negatives for dim, row in high.items() if row.negatives != 32} == {64: 8}
    assert {dim: row.accept_offset for dim, row in high.items() if dim not in (40, 64)} == {
        dim: PUBLISHED_OFFSETS[dim] for dim in (10, 16, 32, 48, 56)
    }
    sizes = {
        row.encoder_dim: (row.batch_size, row.samples, row.negatives)
        for row in (row.setting for row in encoder_dim("paper"))
    }
    assert sizes[4] == sizes[16] == (512, 512, 32)
    assert (sizes[32], sizes[64], sizes[128]) == ((512, 512, 8), (512, 256, 8), (256, 256, 8))
    assert sum(row.setting.name.startswith("a ") for row in tuning("paper")) == 36
    assert {row.seeds for row in tuning("paper")} == {(1,)}  # one, and none of the results' seeds, as in the paper


def test_corrections_change_one_thing_each_and_lead_to_the_corrected_preset():
    rows = [row.setting for row in published("paper")]
    names = [row.name for row in rows]
    elsewhere = ("exact constant of ELK", "range of kappa set on mu")  # corrections of other settings
    corrections = {name: change for name, change in CORRECTIONS.items() if name not in elsewhere}
    walked = rows[: len(corrections) + 1]
    assert names[: len(walked)] == ["published", *corrections]
    assert replace(walked[0], name="ambiguous") == recovery("paper")[0].setting
    assert replace(walked[-1], name="ambiguous") == recovery("corrected")[0].setting
    for before, after, change in zip(walked, walked[1:], corrections.values(), strict=False):
        one, other = asdict(before), asdict(after)
        assert {name for name in one if one[name] != other[name]} == {"name", *change}
    assert (walked[-1].positives, walked[-1].rule, walked[-1].kernel) == ("partner", "marginal", "acceptance")


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_rows_with_the_right_constant_change_the_constant_alone(preset):
    rows = {row.setting.name: row.setting for row in high_dim(preset)}
    right = [name for name in rows if name.endswith(", right constant")]
    assert {rows[name].dim for name in right} == ({40, 64} if preset == "paper" else {40})
    for name in right:
        one, other = asdict(rows[name.removesuffix(", right constant")]), asdict(rows[name])
        assert {field for field in one if one[field] != other[field]} == {"name", "accept_offset"}
        assert (one["accept_offset"], other["accept_offset"]) == (PUBLISHED_OFFSETS[one["dim"]], None)


def test_a_shared_backbone_has_the_published_range_and_a_corrected_row():
    rows = {row.setting.name: row.setting for row in shared_backbone("paper")}
    assert list(rows) == [
        "ambiguous",
        "two networks for kappa of mu",
        "shared backbone",
        "shared backbone, corrected",
    ]
    assert rows["shared backbone"].range_of == rows["two networks for kappa of mu"].range_of == "input"
    corrected = rows["shared backbone, corrected"]
    assert (corrected.range_of, corrected.encoder_kappa_of, corrected.kappa_of) == ("kappa_of", "mu", "mu")


def test_the_walk_of_elk_has_the_corrections_that_concern_it():
    walked = [row.setting for row in published("paper") if row.setting.loss == "elk"]
    by_name = {row.setting.name: row.setting for row in losses("paper") if row.setting.loss == "elk"}
    assert replace(walked[0], name="") == replace(by_name["ambiguous, fitted constants"], name="")
    alone = walked.pop(1)
    assert alone.name == "one cycle to 1e-3 alone, ELK"
    one, other = asdict(walked[0]), asdict(alone)
    assert {name for name in one if one[name] != other[name]} == {"name", "recipe"}
    assert alone.recipe["schedule"] == "one-cycle"
    assert [row.name.removesuffix(", ELK") for row in walked] == [
        "published",
        "He's initialisation",
        "one cycle to 1e-3",
        "process over the sphere",
        "right constant of the rule",
        "negatives from P(x)",
        "kappa alike while mu learns",
        "exact constant of ELK",
    ]
    for before, after in pairwise(walked):
        change = CORRECTIONS[after.name.removesuffix(", ELK")]
        one, other = asdict(before), asdict(after)
        assert {name for name in one if one[name] != other[name]} == {"name", *change}
    assert paper_figure("published", walked[2].name, "elk", "kappa_rank") == (0.92, 0.0)


def test_corrected_rows_stand_beside_the_published_ones():
    rows = [row.setting for row in recovery("paper")]
    for wrong, right, made in zip(rows[:3], rows[3:], recovery("corrected"), strict=True):
        assert right.name == f"{wrong.name}, corrected"
        assert replace(right, name=wrong.name) == made.setting
        assert paper_figure("recovery", right.name, "mcinfonce", "mu_rank") is not None
    clear = [row.setting for row in published("paper") if row.setting.name.endswith("together, clear")]
    assert clear[0].kappa_start == pytest.approx((88.7, 92.3), abs=0.1)  # around the geometric mean of 64 and 128
    assert paper_figure("published", clear[0].name, "mcinfonce", "kappa_rank") == (0.64, 0.04)
