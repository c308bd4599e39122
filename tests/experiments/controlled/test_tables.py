"""Tables of the controlled experiments: every row can be run, and the preset "paper" has the paper's parameters."""

from dataclasses import asdict

import pytest
import torch

from aleator.experiments.catalogue import EXPERIMENTS
from aleator.experiments.controlled.run import Setting
from aleator.experiments.controlled.tables import (
    circle,
    encoder_dim,
    high_dim,
    losses,
    phases,
    recovery,
    samples,
    tuning,
)
from aleator.experiments.paper import paper_figure
from aleator.experiments.settings import PRESETS, make_loss
from aleator.training.optimisers import make_optimiser
from aleator.training.recipe import Recipe


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_table_is_made_of_valid_settings(name, preset):
    rows = EXPERIMENTS[name].rows(preset)
    assert rows
    settings = [row.setting for row in rows]
    assert len({(s.name, s.loss) for s in settings}) == len(settings)  # a reader can tell them apart
    for row in rows:
        assert row.seeds
        if isinstance(row.setting, Setting):
            weight = torch.nn.Parameter(torch.zeros(2, 2))
            make_optimiser(Recipe(**row.setting.recipe), [weight], [], weight.device, cuda_graph=False)
            make_loss(row.setting)
            assert row.setting.mu_phase_negatives is None or row.setting.recipe["phases"] == "mu-then-kappa"


def test_the_paper_preset_has_the_papers_parameters():
    """Appendix, Experiment Parameters and Hyperparameter Tuning; phases and the plane as in its scripts."""
    ambiguous, clear, injective, *together = recovery("paper")
    setting = ambiguous.setting
    assert (setting.dim, setting.batch_size, setting.samples, setting.negatives) == (10, 512, 512, 32)
    assert (setting.loss, setting.kernel, setting.kappa_pos, setting.widths) == ("mcinfonce", "vmf", 20.0, None)
    recipe = Recipe(**setting.recipe)
    assert [(phase.part, phase.end) for phase in recipe.plan()] == [("mu", 50_000), ("kappa", 100_000)]
    assert (recipe.learning_rate, recipe.schedule) == (1e-3, "one-cycle")  # the plane has the text's own, below
    assert (recipe.mu_negatives, setting.mu_phase_negatives) == ("given", 1)
    assert ambiguous.seeds == (4, 5, 6, 7, 8)
    assert clear.setting.kappa_range == (64.0, 128.0)
    assert injective.setting.family == "point"
    for paired, apart in zip(together, (ambiguous, clear), strict=True):
        differing = {"name", "kernel", "mu_phase_negatives", "recipe"}
        ours, theirs = (asdict(row.setting) for row in (paired, apart))
        assert {name for name in ours if ours[name] != theirs[name]} == differing
        assert ours["recipe"] == {**theirs["recipe"], "phases": "joint"}
        assert (ours["kernel"], paired.seeds) == ("acceptance", apart.seeds)
        assert paper_figure("recovery", ours["name"], "mcinfonce", "kappa_rank") is not None
    plane = circle("paper")[0].setting
    assert (plane.dim, plane.recipe["steps"], plane.negatives) == (2, 8192, 1)
    text = Recipe(**plane.recipe)
    mu, kappa = text.plan()
    rates = [text.learning_rate_at(step, mu) for step in (0, 2047, 2048, 4095)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5, 1e-5])
    rates = [text.learning_rate_at(step, kappa) for step in (4096, 6143, 6144, 8191)]
    assert rates == pytest.approx([3.162e-5, 3.162e-5, 3.162e-6, 3.162e-6], rel=1e-3)
    made = [row.setting for row in phases("paper")]  # once for both tables
    assert setting in made
    assert together[0].setting in made
    assert [row.setting.samples for row in samples("paper")] == [1, 4, 16, 64, 256, 512]
    by_loss = {row.setting.loss: row.setting for row in losses("paper")}
    assert (by_loss["hib"].negatives, by_loss["hib"].a, by_loss["hib"].b) == ("rolled", 1.0, 0.0)
    assert by_loss["elk"].negatives == 1
    assert by_loss["hib"].recipe["phases"] == by_loss["elk"].recipe["phases"] == "joint"
    assert {row.setting.dim: row.setting.batch_size for row in high_dim("paper")}[64] == 256
    assert {row.setting.encoder_dim: row.setting.samples for row in encoder_dim("paper")}[64] == 256
    assert sum(row.setting.name.startswith("a ") for row in tuning("paper")) == 36
    assert {row.seeds for row in tuning("paper")} == {(1, 2, 3)}  # none of the results' seeds
