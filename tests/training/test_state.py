"""Progress of a run: by the clock, the best weights, early stopping, and a loss that is not finite."""

from types import SimpleNamespace

import pytest
import torch

from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import StoppedError, assert_same_run, build, pairs, recipe, run, scores


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


class TestMinutes:
    """Learning by a clock that each batch moves on by some seconds."""

    @pytest.fixture
    def train(self, monkeypatch):
        def train(folder, seconds, settings, stop=None, **options):
            clock = SimpleNamespace(now=0.0)

            def advance(seconds):
                clock.now += seconds

            watch = SimpleNamespace(perf_counter=lambda: clock.now, advance=advance)
            monkeypatch.setattr("aleator.training.loop.time", watch)

            def batches(step, generator):
                if step == stop:
                    raise StoppedError
                advance(seconds(step))
                return pairs(step, generator)

            result = run(folder, batches, recipe=settings, **options)
            return result, clock.now

        return train

    def test_the_schedule_ends_in_time_when_the_machine_becomes_slow(self, train):
        """60 seconds for 100 steps; from the tenth second on, a step takes four seconds."""
        settings = Recipe(steps=100, minutes=1.0, learning_rate=0.1, schedule="cosine", log_every=1)
        result, seconds = train(None, lambda step: 0.5 if step < 20 else 4.0, settings, validate=None)
        assert 60 <= seconds < 64
        assert result.steps == 33
        rates = [row["learning_rate"] for row in result.history]
        assert rates == sorted(rates, reverse=True)
        expected = Recipe(steps=100, learning_rate=0.1, schedule="cosine", log_every=1)
        # Steps lead at first: 20 of 100 after 10 of 60 seconds. Later the clock does: 58 of 60 seconds before the end.
        assert rates[:21] == [expected.learning_rate_at(step, expected.plan()[0]) for step in range(21)]
        assert rates[-1] == pytest.approx(expected.learning_rate_at(100 * 58 / 60, expected.plan()[0]))

    def test_a_machine_that_is_fast_enough_makes_all_steps_as_without_a_limit(self, train):
        settings = recipe(phases="joint")
        result, _ = train(None, lambda step: 1.0, recipe(phases="joint", minutes=1.0))
        assert_same_run(result, run(None, recipe=settings))
        assert result.places == list(range(1, 25))

    def test_the_imports_of_fit_take_their_part_of_the_time(self, train, monkeypatch):
        from aleator.training import loop

        make_fabric = loop.make_fabric

        def slowly(*arguments):
            loop.time.advance(30.0)
            return make_fabric(*arguments)

        monkeypatch.setattr(loop, "make_fabric", slowly)
        result, seconds = train(None, lambda step: 1.0, Recipe(steps=1000, minutes=1.0), validate=None)
        assert (result.steps, seconds) == (30, 60.0)

    def test_time_for_what_comes_after_learning_is_kept(self, train):
        """30 of 60 seconds, and from the fifth step on 40."""
        looks = iter([30.0] * 5 + [40.0] * 99)
        settings = Recipe(steps=1000, minutes=1.0)
        result, seconds = train(None, lambda step: 1.0, settings, validate=None, afterwards=lambda: next(looks))
        assert seconds == result.steps == 20
        assert result.places[4] == pytest.approx(1000 * 5 / 30)
        assert result.places[9] == pytest.approx(1000 * 10 / 20)

    def test_validations_and_checkpoints_are_spread_over_the_time(self, train, tmp_path):
        """Nine steps of 7 seconds for the place of 1000: a validation where each 250 are passed."""
        settings = Recipe(steps=1000, minutes=1.0, validate_every=250, checkpoint_every=500)
        result, _ = train(tmp_path / "run", lambda step: 7.0, settings)
        assert [row["step"] for row in result.validations] == [3, 5, 7, 9]
        assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {
            "step-00000005",
            "step-00000009",
        }

    def test_a_run_that_was_resumed_twice_is_that_of_its_decisions(self, train, tmp_path):
        """The machine has another speed in each start. What the clock decided is kept, and can be repeated."""
        settings = recipe(phases="joint", steps=1000, minutes=1.0, checkpoint_every=200, validate_every=100)
        folder = tmp_path / "run"
        for seconds, stop in ((lambda step: 1.0, 20), (lambda step: 5.0, 17)):
            with pytest.raises(StoppedError):
                train(folder, seconds, settings, stop)
        result, _ = train(folder, lambda step: 2.0 + 0.1 * (step % 7), settings)
        assert result.resumed_from
        assert result.places[-1] == 1000
        assert len(result.places) == result.steps
        assert len({round(b - a) for a, b in zip(result.places, result.places[1:], strict=False)}) > 5
        whole, _ = train(None, lambda step: 0.0, settings, places=result.places)
        assert_same_run(result, whole)
        assert whole.places == result.places
        # The same decisions make the same run where they are repeated in part, too.
        with pytest.raises(StoppedError):
            train(tmp_path / "again", lambda step: 0.0, settings, 25, places=result.places)
        again, _ = train(tmp_path / "again", lambda step: 0.0, settings, places=result.places)
        assert_same_run(result, again)

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(ValueError, match=r"minutes = 1\.0: phases = 'mu-then-kappa' have no limit"):
            recipe(minutes=1.0)
        with pytest.raises(ValueError, match="minutes = 0: not a positive number"):
            Recipe(steps=5, minutes=0)
        with pytest.raises(ValueError, match="places = 2: the recipe has no minutes"):
            fit(*build(), pairs, Recipe(steps=5), places=[1.0, 2.0], device="cpu")
