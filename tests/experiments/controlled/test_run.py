"""One run of the controlled experiment."""

from dataclasses import replace

import pytest
import torch

from aleator.data.generative import GenerativeProcess
from aleator.encoders import controlled_encoder
from aleator.experiments.controlled import run as controlled
from aleator.experiments.controlled.run import process_batches, run_seed
from aleator.experiments.settings import LOSSES
from aleator.training.loop import fit
from tests.experiments.controlled.small import tiny


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


def test_a_head_on_mu_starts_where_the_published_code_lets_it_start():
    """From torch's start all directions are nearly the same. Their range, stretched to that of kappa, would explode."""
    scales = {}
    for range_of in ("kappa_of", "input"):
        torch.manual_seed(4)
        encoder = controlled_encoder(10, kappa_of="mu", kappa_widths=(10, 50, 50, 50, 50, 50, 10))
        x = torch.rand(1000, 10)
        controlled._set_kappa_range(encoder, x, range_of)
        scales[range_of] = encoder.kappa_head.scale.item()
        with torch.no_grad():
            # What it is shown spans the range: the directions, or inputs in their place.
            shown = encoder.kappa_head(encoder(x).mu if range_of == "kappa_of" else x)
        assert shown.min().item() == pytest.approx(16, rel=1e-3)
        assert shown.max().item() == pytest.approx(32, rel=1e-3)
    assert scales["kappa_of"] > 30 * scales["input"]
