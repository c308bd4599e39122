"""One run of the controlled experiment, and the tables of runs."""

from dataclasses import asdict, replace

import pytest
import torch

from aleator.data.generative import GenerativeProcess
from aleator.experiments.catalogue import EXPERIMENTS
from aleator.experiments.controlled import run as controlled
from aleator.experiments.controlled.run import Setting, process_batches, run_seed
from aleator.experiments.controlled.tables import (
    base,
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
from aleator.experiments.settings import LOSSES, PRESETS, make_loss
from aleator.training.loop import fit
from aleator.training.optimisers import make_optimiser
from aleator.training.recipe import Recipe


def tiny(**changes) -> Setting:
    setting = base("quick")
    few = {**setting.recipe, "steps": 3, **changes.pop("recipe", {})}
    return replace(setting, dim=3, batch_size=8, smoothing_steps=5, points=60, recipe=few, **{"group": None, **changes})


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_runs_and_is_measured(loss):
    phases = {"phases": "mu"} if loss == "infonce" else {}
    outcome = run_seed(tiny(loss=loss, samples=4, recipe=phases), 4)
    assert all(isinstance(value, float) for value in outcome.metrics.values())
    assert 0 <= outcome.metrics["mu_rmse"] <= 2
    assert ("kappa_rank" in outcome.metrics) == (loss != "infonce")  # InfoNCE has no kappa to be judged by
    assert outcome.arrays["learned_mu"].shape == (60, 3)


@pytest.mark.parametrize("family", ["vmf", "gaussian", "laplace", "point"])
def test_metrics_follow_the_family(family):
    metrics = run_seed(tiny(family=family), 4).metrics
    assert ("kappa_rmse" in metrics) == (family == "vmf")
    assert ("spread_rank" in metrics) == (family != "point")


def test_an_encoder_of_another_dimension_has_no_coverage():
    assert "coverage_95" in run_seed(tiny(), 4).metrics
    assert "coverage_95" not in run_seed(tiny(encoder_dim=5), 4).metrics


def test_a_run_is_its_seed():
    first, again, other = (run_seed(tiny(), seed).metrics for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_training_brings_the_posteriors_closer():
    setting = replace(tiny(recipe={"steps": 1}), batch_size=64, points=500)
    long = replace(setting, recipe={**setting.recipe, "steps": 120})
    short, trained = (run_seed(s, 4).metrics for s in (setting, long))
    assert trained["mu_rmse"] < 0.7 * short["mu_rmse"]
    assert trained["mu_rank"] > 0.8


def test_rolled_negatives_are_the_positives_of_the_pair_before():
    process = GenerativeProcess(3, smoothing_steps=5)
    batches = process_batches(process, tiny(negatives="rolled"))
    _, positive, (pool, chosen) = batches(0, torch.Generator().manual_seed(1))
    negative = torch.cat([positive, pool])[chosen]
    assert negative.shape == (8, 1, 3)
    assert torch.equal(negative[1:, 0], positive[:-1])


def test_a_mu_phase_may_have_negatives_of_its_own(monkeypatch):
    given = {}

    def caught(encoder, loss, sources, recipe, **options):
        for part, batches in sources.items():
            given[part] = batches(0, torch.Generator().manual_seed(1))
        return fit(encoder, loss, sources, recipe, **options)

    monkeypatch.setattr(controlled, "fit", caught)
    run_seed(
        tiny(negatives=5, group=4, mu_phase_negatives=1, recipe={"phases": "mu-then-kappa", "mu_negatives": "given"}), 4
    )
    _, _, negative = given["mu"]
    assert negative.unique(dim=0).shape == (8, 1, 3)  # no two anchors share theirs
    assert given["kappa"][2].shape == (2, 5, 3)  # four anchors share five


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
