"""The recipe of a run: learning that ends in time, held-out likelihood, batches and loss for each kind of labels."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import aleator as al
from aleator.data import LabelledBatches, LabelRowBatches, PairBatches
from aleator.own_data import Labels, Settings, read_collection, train
from aleator.own_data.collection.parts import Split
from aleator.own_data.learning import recipe, time_limit
from tests.own_data.conftest import complete_settings


@pytest.fixture
def features(tmp_path):
    """120 points around three centres, 40 of each class."""
    generator = np.random.default_rng(0)
    classes = np.arange(120) % 3
    np.save(tmp_path / "x.npy", 3 * np.eye(3, 5)[classes] + generator.standard_normal((120, 5)))
    np.save(tmp_path / "y.npy", classes)
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for learning, in which every look at the clock takes a second. Ten have gone before."""
    seconds = itertools.count()
    monkeypatch.setattr("aleator.training.loop.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(time_limit, "seconds_gone", lambda job: 10.0)
    monkeypatch.setattr(time_limit, "seconds_per_item", lambda *_: 0.01)


def test_evaluation_is_expected_to_take_as_long_as_validations_say(monkeypatch):
    seconds = iter([0.0, 1.0, 2.0, 5.0, 10.0, 14.0])  # ten items in one, three and four seconds
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    limit = time_limit.TimeLimit(minutes=1.0, least=20.0, evaluated=100, at_first=0.1)
    validate = limit.timed(lambda encoder: {"score": 1.0}, 10)
    expected = [limit.afterwards()]
    for _ in range(3):
        assert validate(None) == {"score": 1.0}
        expected.append(limit.afterwards())
    of_first = 1.5 * 100 * 0.1 + 8
    # One slow validation says little; two say that the machine is busy. Learning keeps 20 of the 60 seconds.
    assert expected == [of_first, of_first, of_first, 40.0]


def test_learning_ends_in_time_for_evaluation(photos, tmp_path, clock):
    settings = Settings(minutes=1.0, dim=4, width=2, batch_size=4, size=8, holdout=0.4)
    lines: list[str] = []
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", baselines=False, log=lines.append)
    # All items are encoded for evaluation, and half of the held-out ones once more when learning ends.
    encoded = run.config["data"]["items"] + run.metrics["items"]
    learning = 60 - 10 - (1.5 * 0.01 * encoded + 8)
    assert 0.7 * learning < run.config["settings"]["steps"] <= learning + 1  # some looks are for the checkpoints
    assert any(line.startswith(f"learning may take {learning:.0f} s: 10 s have gone") for line in lines)
    probabilities = run.label_probabilities(sorted(photos.rglob("*.png"))[:3])
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3, dtype=probabilities.dtype))
    # The same command again finds the finished run, however much time there is now.
    again = train(read_collection(photos), tmp_path / "run", settings, device="cpu", baselines=False)
    assert again.config["settings"]["steps"] == run.config["settings"]["steps"]


def test_reading_that_takes_all_of_the_time_leaves_a_quarter_for_learning(features, tmp_path, clock):
    collection, lines = read_collection(features / "x.npy", features / "y.npy"), []
    settings = Settings(minutes=0.1, width=8, batch_size=8, members=1, holdout=0.4)  # six seconds; ten are gone
    run = train(collection, tmp_path / "run", settings, device="cpu", baselines=False, log=lines.append)
    assert run.config["settings"]["steps"] == 2
    assert any("more --minutes" in line for line in lines)


def test_a_training_that_is_resumed_keeps_its_limit(features, tmp_path, clock, monkeypatch):
    collection = read_collection(features / "x.npy", features / "y.npy")
    settings = Settings(minutes=1.0, width=8, batch_size=8, holdout=0.4)
    fit = recipe.fit
    monkeypatch.setattr(recipe, "fit", None)  # the first start ends where learning begins
    with pytest.raises(TypeError):
        train(collection, tmp_path / "run", settings, device="cpu", baselines=False)
    monkeypatch.setattr(recipe, "fit", fit)
    monkeypatch.setattr(time_limit, "seconds_gone", lambda job: 50.0)
    run = train(collection, tmp_path / "run", settings, device="cpu", baselines=False)
    assert run.config["settings"]["steps"] > 25


def test_more_time_than_the_passes_need_is_not_used(photos, features, tmp_path, monkeypatch):
    settings = Settings(minutes=1000.0, dim=4, width=2, batch_size=16, size=8, holdout=0.4)
    monkeypatch.setattr(recipe, "_MOST_PASSES", 1)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", baselines=False)
    items = run.config["data"]["items"]
    assert run.config["settings"]["steps"] <= items // 16 + 1
    monkeypatch.setattr(recipe, "usual_steps_of_head", lambda *_: 40)
    collection = read_collection(features / "x.npy", features / "y.npy")
    head = Settings(minutes=1000.0, width=8, batch_size=8, holdout=0.4)
    assert train(collection, tmp_path / "head", head, device="cpu", baselines=False).config["settings"]["steps"] == 40
    # Steps that are asked for are made within the time.
    asked = train(collection, tmp_path / "asked", replace(head, steps=7), device="cpu", baselines=False)
    assert asked.config["settings"]["steps"] == 7


def test_the_trial_of_modes_takes_a_quarter_of_the_minutes(features, tmp_path, clock):
    settings = Settings(minutes=2.0, width=8, batch_size=8, holdout=0.4, modes="auto")
    collection = read_collection(features / "x.npy", features / "y.npy")
    run = train(collection, tmp_path / "run", settings, device="cpu", baselines=False)
    steps = json.loads((tmp_path / "run" / "modes.json").read_text())["steps"]
    assert len(steps) == 2
    assert all(0.6 * 15 < of_one <= 15 for of_one in steps)  # an eighth of two minutes
    assert run.config["settings"]["steps"] > 80
    assert run.config["settings"]["minutes"] == 2.0
    assert run.config["settings"]["modes"] in (1, 2)


def test_the_kept_weights_have_the_best_held_out_likelihood(features):
    settings = Settings(steps=40, dim=4, width=8, batch_size=16, holdout=0.4)
    train(
        read_collection(features / "x.npy", features / "y.npy"),
        features / "run",
        settings,
        device="cpu",
        baselines=False,
    )
    rows = (features / "run" / "training" / "validation.csv").read_text().splitlines()
    assert "label_log_likelihood" in rows[0]
    assert len(rows) > 5


@pytest.mark.parametrize(
    ("labels", "batches", "loss"),
    [
        (Labels("classes", np.arange(20) % 2, ("a", "b")), LabelRowBatches, al.PrototypeLoss),
        (Labels("soft", np.full((20, 2), 0.5, np.float32), ("a", "b")), LabelRowBatches, al.PrototypeLoss),
        (Labels("groups", np.arange(20) // 2, tuple("abcdefghij")), LabelledBatches, al.ExactInfoNCE),
        (Labels("pairs", np.array([[0, 1], [2, 3]])), PairBatches, al.ExactInfoNCE),
    ],
)
def test_each_kind_of_labels_has_its_batches_and_loss(labels, batches, loss):
    settings = complete_settings()
    given = {"select": lambda self, n: torch.randn(20, 3), "learns_from_pixels": False}
    training = type("Training", (), given)()
    split = Split(np.arange(20), np.arange(0), np.arange(0))
    assert isinstance(recipe.training_batches(training, labels, split, settings, torch.device("cpu")), batches)
    assert isinstance(recipe._loss(labels, settings), loss)


def test_only_soft_labels_say_how_often_people_agree():
    settings = complete_settings()
    hard, soft = Labels("classes", np.arange(20) % 2, ("a", "b")), Labels("soft", np.full((20, 2), 0.5), ("a", "b"))
    undisputed = Labels("soft", np.eye(2, dtype=np.float32)[np.arange(20) % 2], ("a", "b"))
    assert recipe._loss(hard, settings).agreement == recipe._loss(undisputed, settings).agreement == 0
    assert recipe._loss(soft, settings).agreement > 0


def test_learned_label_probabilities_are_those_of_the_loss():
    torch.manual_seed(0)
    own = Labels("soft", np.array([[0.5, 0.5], [1.0, 0.0]], np.float32), ("a", "c"))
    labels = Labels("soft", np.array([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], np.float32), ("a", "b", "c"))
    loss = recipe._loss(own, complete_settings())
    q = al.VonMisesFisher(torch.nn.functional.normalize(torch.randn(5, 4), dim=-1), 7.0)
    split = Split(np.array([0, 1]), np.array([2]), np.array([2]))
    p = recipe.learned_labels(loss, labels, split).probabilities(q)
    torch.testing.assert_close(p[:, [0, 2]], loss.log_probabilities(q).exp().detach(), rtol=1e-4, atol=1e-6)
    assert (p[:, 1] == 0).all()


def test_label_rows_leave_out_classes_that_no_training_item_can_have():
    labels = Labels("soft", np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], np.float32), ("a", "b", "c"))
    rows = recipe._label_rows(labels, Split(np.array([0, 1]), np.array([2]), np.array([2])))
    torch.testing.assert_close(rows, torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize("minutes", [0.0, -1.0])
def test_minutes_must_be_positive(photos, tmp_path, minutes):
    with pytest.raises(ValueError, match=r"^minutes = "):
        train(read_collection(photos), tmp_path / "run", Settings(minutes=minutes, holdout=0.4), device="cpu")
