"""One run of the CIFAR-10H experiments, on made-up images; and one on the real ones."""

import math
from dataclasses import replace

import pytest
import torch

import aleator as al
from aleator.data import MEAN, STD
from aleator.experiments.cifar import evaluation as cifar_evaluation
from aleator.experiments.cifar import folds as cifar_folds
from aleator.experiments.cifar import run as cifar
from aleator.training.objective import Objective
from tests.experiments.cifar.small import HIDDEN, MEASURED, SEEDED, TINY


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden": (6,), "kernel": "acceptance"},
        {"hidden": (6,), "recipe": {}, "beside": ({**TINY.network, "labels": "votes"},)},
        {"recipe": {}, "labels": "votes", "kappa": "head", "kappa_hidden": (4,)},
        {"hidden": (6,), "targets": "soft"},
        {"hidden": (6,), "targets": "classes"},
        {"hidden": (6,), "targets": "classes", "members": 2, "recipe": {}},
        {"hidden": (6,), "targets": "soft", "modes": 2, "main_weight": 0.9},
        {"recipe": {}, "modes": 3, "kappa": "head", "kappa_hidden": (4,)},
        {"loss": "mcinfonce", "negatives": 2, "head_first": None, "recipe": {"steps": 4, "phases": "mu-then-kappa"}},
        {"loss": "hib", "negatives": "rolled", "head_first": None},
        {"loss": "elk", "negatives": 1, "labels": "hard", "pretrained": False, "head_first": None, "augment": None},
    ],
    ids=[
        "exact",
        "hidden",
        "beside",
        "votes",
        "soft-targets",
        "classes",
        "members",
        "two-modes",
        "three-modes",
        "mcinfonce",
        "hib",
        "elk",
    ],
)
def test_a_fold_is_trained_and_measured(stand_in, tmp_path, changes):
    outcome = cifar.run_fold(replace(TINY, **changes), 1, "cpu", tmp_path / "run")
    assert set(outcome.metrics) >= MEASURED
    assert (
        ("r_auroc" in outcome.metrics)
        == ("label_r_auroc" in outcome.metrics)
        == (0 < outcome.metrics["recall_at_1"] < 1)
    )
    assert all(math.isfinite(value) for value in outcome.metrics.values()), outcome.metrics
    assert len(outcome.arrays["kappa"]) == 20
    assert al.load_encoder(tmp_path / "run" / "encoder").dim == 3


def test_the_same_fold_twice_is_the_same(stand_in):
    first, again = cifar.run_fold(TINY, 0), cifar.run_fold(TINY, 0)
    assert first.metrics == again.metrics
    assert cifar.run_fold(TINY, 1).metrics != first.metrics


def test_without_a_recipe_the_network_stays_as_it_was(stand_in, tmp_path):
    started = cifar.starting_network(HIDDEN, "cpu")
    cifar.run_fold(replace(HIDDEN, recipe={}), 1, "cpu", tmp_path / "run")
    network = al.load_encoder(tmp_path / "run" / "encoder").backbone.parts[0]
    for found, expected in zip(network.parameters(), started.classifier.backbone.parameters(), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="nothing is trained"):
        cifar.run_fold(replace(HIDDEN, recipe={}, head_first=None), 1)


def test_losses_without_certainty_report_none(stand_in):
    recipe = {"steps": 3, "phases": "mu", "mu_negatives": "given"}
    outcome = cifar.run_fold(replace(TINY, loss="infonce", head_first=None, recipe=recipe), 0)
    assert {"recall_at_1", "map_at_r"} <= set(outcome.metrics)
    assert "entropy_rank" not in outcome.metrics
    outcome = cifar.run_fold(replace(TINY, loss="softmax-entropy"), 0)
    assert set(outcome.metrics) >= MEASURED - {"match_ece", "match_recall_at_1"}
    assert 0 <= outcome.metrics["accuracy"] <= 1


def test_several_classifiers_are_measured_by_the_mean_of_their_log_probabilities(stand_in):
    alone = replace(TINY, loss="softmax-entropy")
    metrics, arrays = (one := cifar.run_fold(alone, 0)).metrics, one.arrays
    copies = cifar.run_fold(replace(alone, beside=(TINY.network,) * 2), 0)
    assert torch.allclose(copies.arrays["kappa"], arrays["kappa"])
    assert copies.metrics["recall_at_1"] == metrics["recall_at_1"]
    assert copies.metrics["pretraining_seconds"] == pytest.approx(3 * metrics["pretraining_seconds"])
    other = cifar.run_fold(replace(alone, network={**TINY.network, "seed": 1}), 0)
    both = cifar.run_fold(replace(alone, beside=({**TINY.network, "seed": 1},)), 0)
    assert both.metrics["accuracy"] == pytest.approx((metrics["accuracy"] + other.metrics["accuracy"]) / 2)
    assert not torch.allclose(both.arrays["kappa"], arrays["kappa"])


def test_the_best_by_the_validation_is_kept(stand_in):
    recipe = {"steps": 6, "validate_every": 1, "select": "crop_rank", "learning_rate": 3e-2}
    outcome = cifar.run_fold(replace(TINY, recipe=recipe), 0)
    ranks = outcome.arrays["validations"][:, 1]
    assert outcome.metrics["validation_crop_rank"] == pytest.approx(ranks.max().item(), abs=1e-6)
    assert outcome.metrics["best_step"] == 1 + int(ranks.argmax())


@pytest.mark.parametrize("setting", [TINY, HIDDEN, replace(HIDDEN, members=2)], ids=["linear", "hidden", "members"])
def test_the_head_is_trained_on_features_of_size_one_and_put_back(stand_in, setting):
    """No step changes nothing; what the head learns moves no weight of the network that sees images."""
    started = cifar.starting_network(setting, "cpu")
    encoder = cifar.make_encoder(setting, 0, [started], "cpu")
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    images, labels = cifar_folds.training_data(setting, 0)
    still = replace(setting, head_first={"steps": 1, "learning_rate": 1e-30})
    cifar._train_head(still, encoder, images, labels, 0, "cpu", None)
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[name])
    cifar._train_head(setting, encoder, images, labels, 0, "cpu", None)
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    learned = {name for name in changed if "running" not in name}
    members = ["parts.0.", "parts.1."] if setting.members == 2 else [""]
    places = [f"backbone.parts.1.{member}layers.0" for member in members] if setting.hidden else []
    layers = {f"{place}.{name}" for place in places for name in ("weight", "bias")}
    assert learned == {"mu_head.weight"} | layers


def test_soft_targets_show_as_many_images_as_drawn_positives(stand_in):
    """2 B images, and the probability that two of them are of one class as their match weight."""
    images, labels = cifar_folds.training_data(TINY, 0)
    setting = replace(TINY, targets="soft", augment=None)
    batches = cifar.image_batches(setting, images, labels, torch.device("cpu"))
    batch = batches(0, SEEDED(1))
    anchor, positive = cifar.image_batches(TINY, images, labels, torch.device("cpu"))(0, SEEDED(1))[:2]
    assert len(batch.items) == len(anchor) + len(positive)
    shown = [int((images.float() / 255 - each).flatten(1).norm(dim=1).argmin()) for each in _pixels(batch.items)]
    chosen = labels[shown].float()
    torch.testing.assert_close(batch.targets, chosen @ chosen.T)
    with pytest.raises(ValueError, match="HIB takes no soft targets"):
        replace(setting, loss="hib")
    with pytest.raises(ValueError, match="not for the loss elk"):
        replace(setting, loss="elk", targets="classes")


def _pixels(inputs: torch.Tensor) -> torch.Tensor:
    """Normalised inputs back to [0, 1]."""
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    return inputs * std + mean


def test_rolled_negatives_are_the_positives_before(stand_in):
    images, labels = cifar_folds.training_data(TINY, 0)
    batches = cifar.image_batches(replace(TINY, negatives="rolled", augment=None), images, labels, torch.device("cpu"))
    anchor, positive, negative = batches(0, SEEDED(1))
    encoder = cifar.make_encoder(TINY, 0, [None], "cpu").eval()
    loss = al.ELK(16.0)
    objective = Objective(encoder, loss, "joint", "given")
    expected = objective((anchor, positive, positive.roll(1, 0)[:, None]))
    torch.testing.assert_close(objective((anchor, positive, negative)), expected)


@pytest.mark.data
def test_a_real_fold(data_folder, monkeypatch, tmp_path):
    """Real images and labels through the whole chain."""
    monkeypatch.setattr(cifar_evaluation, "PAIRS", 500)
    monkeypatch.setenv("ALEATOR_DATA", str(data_folder))
    monkeypatch.setenv("ALEATOR_CACHE", str(tmp_path))
    setting = replace(TINY, network={"width": 2}, pretrained=False, images=60, head_first=None)
    outcome = cifar.run_fold(setting, 2)
    assert set(outcome.metrics) >= MEASURED
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    images = cifar_folds.held_out(setting, 2 + 4)
    assert torch.equal(outcome.arrays["number"], images.number)
