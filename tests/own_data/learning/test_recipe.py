"""The recipe of a run: steps that fit into the time, held-out likelihood, batches and loss for each kind of labels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import aleator as al
from aleator.data import LabelledBatches, LabelRowBatches, PairBatches
from aleator.own_data import Labels, Settings, read_collection, train
from aleator.own_data.collection.parts import Split
from aleator.own_data.learning import recipe


@pytest.fixture
def features(tmp_path):
    """120 points around three centres, 40 of each class."""
    generator = np.random.default_rng(0)
    classes = np.arange(120) % 3
    np.save(tmp_path / "x.npy", 3 * np.eye(3, 5)[classes] + generator.standard_normal((120, 5)))
    np.save(tmp_path / "y.npy", classes)
    return tmp_path


def test_the_steps_that_fit_are_measured_once_and_kept(photos, tmp_path, monkeypatch):
    settings = Settings(minutes=1.0, dim=4, width=2, batch_size=16, size=8, holdout=0.4)
    monkeypatch.setattr(recipe, "_LEAST_STEPS", 3)
    monkeypatch.setattr(recipe, "seconds_per_step", lambda *_: 20.0)  # three steps in a minute
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", rivals=False)
    assert json.loads((tmp_path / "run" / "steps.json").read_text())["steps"] == 3
    assert run.config["settings"]["steps"] == 3
    # The same command again finds the finished run, however fast the machine is now.
    monkeypatch.setattr(recipe, "seconds_per_step", lambda *_: 1.0)
    assert (
        train(read_collection(photos), tmp_path / "run", settings, device="cpu", rivals=False).config["settings"][
            "steps"
        ]
        == 3
    )


def test_a_short_time_is_kept_and_gives_a_run_that_answers(photos, tmp_path, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(recipe, "seconds_per_step", lambda *_: 1.0)
    settings = Settings(minutes=0.2, dim=4, width=2, batch_size=4, size=8, holdout=0.4)  # twelve steps
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", rivals=False, log=lines.append)
    assert run.config["settings"]["steps"] == 12
    assert any("more --minutes" in line for line in lines)
    probabilities = run.label_probabilities(sorted(photos.rglob("*.png"))[:3])
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3, dtype=probabilities.dtype))


def test_more_time_than_the_passes_need_is_not_used(photos, tmp_path, monkeypatch):
    settings = Settings(minutes=1000.0, dim=4, width=2, batch_size=16, size=8, holdout=0.4)
    monkeypatch.setattr(recipe, "_LEAST_STEPS", 1)
    monkeypatch.setattr(recipe, "_MOST_PASSES", 1)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", rivals=False)
    items = run.config["data"]["items"]
    assert run.config["settings"]["steps"] <= items // 16 + 1


def test_a_head_on_features_keeps_the_minutes_too(features, tmp_path, monkeypatch):
    collection, lines = read_collection(features / "x.npy", features / "y.npy"), []
    monkeypatch.setattr(recipe, "seconds_per_step", lambda *_: 1.0)
    settings = Settings(minutes=0.5, width=8, batch_size=8, holdout=0.4)  # thirty steps
    run = train(collection, tmp_path / "short", settings, device="cpu", rivals=False, log=lines.append)
    assert run.config["settings"]["steps"] == 30
    assert any(line.startswith("steps = 30: ") for line in lines)
    # More time than helps is not used: it makes the steps that it would make without --minutes.
    monkeypatch.setattr(recipe, "usual_steps_of_head", lambda *_: 40)
    run = train(collection, tmp_path / "long", replace(settings, minutes=60.0), device="cpu", rivals=False)
    assert run.config["settings"]["steps"] == 40


def test_the_trial_of_modes_takes_a_part_of_the_minutes(features, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "seconds_per_step", lambda *_: 1.0)
    settings = Settings(minutes=1.0, width=8, batch_size=8, holdout=0.4, modes="auto")  # sixty steps
    collection = read_collection(features / "x.npy", features / "y.npy")
    run = train(collection, tmp_path / "run", settings, device="cpu", rivals=False)
    assert json.loads((tmp_path / "run" / "modes.json").read_text())["steps"] == 15
    assert run.config["settings"]["steps"] == 60
    assert run.config["settings"]["minutes"] == 1.0
    assert run.config["settings"]["modes"] in (1, 2)


def test_measuring_a_step_changes_no_weight_and_uses_no_random_number(features):
    encoder = al.Encoder(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5)), 4, features=8)
    loss = al.PrototypeLoss(4, [1, 1, 1])
    batches = LabelRowBatches(torch.randn(30, 5), torch.arange(30) % 3, 8)
    before = [p.clone() for p in (*encoder.parameters(), *loss.parameters())]
    state = torch.get_rng_state()
    training = type("Training", (), {"encoder": encoder})()
    assert recipe.seconds_per_step(training, loss, batches, torch.device("cpu")) > 0
    assert torch.equal(torch.get_rng_state(), state)
    after = (*encoder.parameters(), *loss.parameters())
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))


def test_the_kept_weights_have_the_best_held_out_likelihood(features):
    settings = Settings(steps=40, dim=4, width=8, batch_size=16, holdout=0.4)
    train(
        read_collection(features / "x.npy", features / "y.npy"), features / "run", settings, device="cpu", rivals=False
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
    settings = {"batch_size": 4, "kappa_pos": 10.0, "dim": 4}
    given = {"select": lambda self, n: torch.randn(20, 3), "learns_from_pixels": False}
    training = type("Training", (), given)()
    split = Split(np.arange(20), np.arange(0), np.arange(0))
    assert isinstance(recipe.training_batches(training, labels, split, settings, torch.device("cpu")), batches)
    assert isinstance(recipe._loss(labels, settings), loss)


def test_only_soft_labels_say_how_often_people_agree():
    settings = {"kappa_pos": 10.0, "dim": 4}
    hard, soft = Labels("classes", np.arange(20) % 2, ("a", "b")), Labels("soft", np.full((20, 2), 0.5), ("a", "b"))
    undisputed = Labels("soft", np.eye(2, dtype=np.float32)[np.arange(20) % 2], ("a", "b"))
    assert recipe._loss(hard, settings).agreement == recipe._loss(undisputed, settings).agreement == 0
    assert recipe._loss(soft, settings).agreement > 0


def test_learned_label_probabilities_are_those_of_the_loss():
    torch.manual_seed(0)
    own = Labels("soft", np.array([[0.5, 0.5], [1.0, 0.0]], np.float32), ("a", "c"))
    labels = Labels("soft", np.array([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], np.float32), ("a", "b", "c"))
    loss = recipe._loss(own, {"kappa_pos": 10.0, "dim": 4})
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
