"""Settings that are left open are chosen from the data, each with a reason."""

import numpy as np
import pytest
import torch

from aleator import VMFKernel, VonMisesFisher, log_positivity
from aleator.own_data import Settings, read_collection, train
from aleator.own_data.learning.defaults import _members, _steps_of_head, choose_settings, kernel_width, match_lift


def test_what_is_left_open_is_chosen_and_explained(features, tmp_path):
    lines = []
    settings = Settings(steps=2, width=8)
    collection = read_collection(features / "x.npy", features / "y.npy")
    run = train(collection, tmp_path / "run", settings, log=lines.append, baselines=False)
    chosen = run.config["chosen"]
    head = ["members", "learning_rate", "weight_decay", "dropout"]
    assert chosen == ["backbone", "dim", "kappa_pos", "batch_size", *head]
    for name in chosen:
        assert any(line.startswith(f"{name} = ") and ": " in line for line in lines), name
    assert "400 rows of features, 4 classes; 79 are held out" in lines[0]


def test_the_kernel_is_as_wide_as_the_lift_asks():
    """Two point masses at one place: r is the kernel's peak, ten times the lift."""
    for dim, lift in ((8, 4.0), (16, 10.0), (64, 100.0)):
        kernel = VMFKernel(kernel_width(dim, lift))
        point = VonMisesFisher(torch.eye(1, dim, dtype=torch.float64), torch.tensor([torch.inf], dtype=torch.float64))
        peak = float(log_positivity(point, point, kernel).exp())
        assert peak == pytest.approx(10 * lift, rel=0.05)


def test_the_lift_is_one_over_the_chance_of_a_match(features):
    labels = read_collection(features / "x.npy", features / "y.npy").labels
    share = np.bincount(labels.values) / 400
    assert match_lift(labels, 400) == pytest.approx(1 / (share**2).sum())


@pytest.mark.parametrize(("items", "members"), [(160, 4), (6_000, 4), (10_000, 3), (50_000, 1), (10**6, 1)])
def test_a_small_collection_has_an_ensemble_and_a_large_one_is_trained_no_longer_than_a_minute(items, members):
    batch_size = min(128, items // 4)
    assert _members(items, batch_size) == members
    steps = _steps_of_head(items, batch_size, members, with_classes=True)
    assert 300 * members <= steps <= 2000


@pytest.mark.parametrize("members", [0, 9])
def test_each_member_needs_items_of_a_batch(features, tmp_path, members):
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(ValueError, match=r"^members = "):
        train(collection, tmp_path / "run", Settings(steps=1, batch_size=8, members=members))


def test_images_alone_can_be_augmented(features):
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(
        ValueError, match=r"augment = 'flip': changes images, and .*x\.npy holds features; leave it out"
    ):
        choose_settings(collection, collection.labels, 300, Settings(augment="flip"))


def test_a_small_batch_has_fewer_networks(features):
    collection = read_collection(features / "x.npy", features / "y.npy")
    settings, _ = choose_settings(collection, collection.labels, 300, Settings(batch_size=2))
    assert settings.members == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("minutes", float("inf")), ("kappa_pos", float("inf")), ("kappa_pos", -3.0), ("seed", -1), ("seed", 2**64)],
)
def test_a_number_that_cannot_be_used_is_named_before_a_folder_is_made(features, tmp_path, name, value):
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(ValueError, match=f"^{name} = {value}: not a "):
        train(collection, tmp_path / "run", Settings(**{name: value}), device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("dim", 100_000), ("modes", 50), ("members", 1000), ("width", 10**6)])
def test_a_size_that_would_fill_the_memory_is_named_before_a_folder_is_made(features, tmp_path, name, value):
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(ValueError, match=rf"^{name} = {value}: more than (\d+); pass at most \1, or leave it out"):
        train(collection, tmp_path / "run", Settings(**{name: value}), device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_large_seed_is_a_seed(features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    settings = Settings(steps=1, width=8, seed=2**63 - 1)
    assert train(collection, tmp_path / "run", settings, device="cpu").metrics["items"] > 0


@pytest.mark.parametrize(
    "given", [{"size": 8}, {"rank": 4}, {"tune_steps": 3}, {"tune_learning_rate": 1e-3, "tune": None}]
)
def test_a_setting_without_effect_on_features_is_refused(features, given):
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(ValueError, match=f"^{next(iter(given))} = .*: has no effect: .*leave it out"):
        choose_settings(collection, collection.labels, 300, Settings(**given))


class TestTuning:
    def choose(self, pets, **given):
        collection = read_collection(pets)
        return choose_settings(collection, collection.labels, 5, Settings(**given))[0]

    def test_the_head_alone_is_the_default(self, pets):
        for tune in (None, "head"):
            settings = self.choose(pets, backbone="efficientnet-lite0", tune=tune)
            assert settings.tune is None
            assert settings.rank is None
            assert settings.size == 128

    def test_what_is_open_is_chosen(self, pets):
        settings = self.choose(pets, backbone="efficientnet-lite0", tune="lora")
        assert settings.rank == 8
        assert settings.minutes == 10
        assert settings.augment in ("flip", "crop")
        rates = {tune: self.choose(pets, backbone="hf:x", tune=tune).tune_learning_rate for tune in ("last", "all")}
        assert 0 < rates["all"] < rates["last"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"tune": "all"}, "tune = 'all': small-resnet is not a pretrained network"),
            ({"tune": "some", "backbone": "hf:x"}, "tune = 'some'"),
            ({"tune": "lora", "backbone": "hf:x", "rank": 0}, "rank = 0"),
            ({"tune": "all", "backbone": "hf:x", "rank": 4}, "rank = 4: has no effect: .* --tune lora; pass that"),
            ({"backbone": "hf:x", "augment": "flip"}, "augment = 'flip': has no effect: hf:x is not trained; pass"),
            ({"backbone": "hf:x", "size": 64}, "size = 64: has no effect"),
            ({"members": 2}, "members = 2: has no effect: small-resnet is trained from scratch"),
            ({"dropout": 0.1}, "dropout = 0.1: has no effect"),
        ],
    )
    def test_mistakes_are_named(self, pets, given, message):
        with pytest.raises(ValueError, match=message):
            self.choose(pets, **given)
