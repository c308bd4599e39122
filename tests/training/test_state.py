"""Progress of a run: the best weights, early stopping, and a loss that is not finite."""

import pytest
import torch

from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import assert_same_run, build, pairs, recipe, run, scores


def test_the_best_weights_are_kept():
    encoder, loss = build()
    weights = {}

    def validate(encoder):
        weights[len(weights) + 1] = encoder.mu_head.weight.clone()
        return {"score": {1: 0.1, 2: 0.9, 3: float("nan"), 4: 0.5}[len(weights)]}

    settings = Recipe(steps=4, validate_every=1, select="score", learning_rate=0.1)
    with pytest.warns(UserWarning, match="validate reports NaN for 'score' at step 3, which counts as no better"):
        result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert (result.best_step, result.best_value, result.stopped_early) == (2, 0.9, False)
    assert torch.equal(encoder.mu_head.weight, weights[2])


def test_patience_stops_the_run():
    encoder, loss = build()
    settings = Recipe(steps=100, validate_every=2, select="score", select_mode="min", patience=3)
    validate = scores(5.0, 4.0, 4.0, 4.5, 6.0)
    result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert result.stopped_early
    assert (result.steps, result.best_step, result.best_value) == (10, 4, 4.0)


def test_selection_looks_at_the_last_phase_only():
    encoder, loss = build()
    settings = Recipe(steps=8, phases="mu-then-kappa", validate_every=2, select="score", patience=1)
    validate = scores(9.0, 8.0, 1.0, 2.0)
    result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert (result.steps, result.best_step, result.stopped_early) == (8, 8, False)


def test_selection_in_all_phases():
    """The best validation of all may be one of the first phase; its weights are the ones kept."""
    encoder, loss = build()
    settings = Recipe(
        steps=8, phases="mu-then-kappa", validate_every=2, select="score", select_in="all", learning_rate=0.1
    )
    values, seen = iter([0.0, 5.0, 1.0, 2.0]), []

    def score(encoder):
        seen.append({name: value.clone() for name, value in encoder.state_dict().items()})
        return {"score": next(values)}

    result = fit(encoder, loss, pairs, settings, validate=score, device="cpu")
    assert result.best_step == 4
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, seen[1][name])


def test_a_loss_that_is_not_finite_names_its_step(tmp_path):
    def batches(step, generator):
        x, near, far = pairs(step, generator)
        return (x * float("nan") if step == 16 else x), near, far

    with pytest.raises(ValueError, match=r"loss = nan: not finite at step 17, in the phase 'kappa'; .*learning_rate"):
        run(tmp_path / "run", batches)
    assert run(tmp_path / "run").resumed_from == 15


def test_a_stopped_run_stays_stopped(tmp_path):
    settings = recipe(phases="joint", patience=1, select="score", validate_every=1)
    first = run(tmp_path / "x", recipe=settings, validate=scores(2.0, 1.0, 3.0))
    assert first.stopped_early
    again = run(tmp_path / "x", recipe=settings, validate=scores())
    assert again.resumed_from == again.steps == first.steps
    assert_same_run(first, again)
