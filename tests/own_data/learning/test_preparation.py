"""Every item is read before training; large collections stay on disk."""

import shutil

import pytest
import torch

import aleator as al
from aleator.data import Inputs
from aleator.encoders import Flatten
from aleator.foundation import ProcessGroup
from aleator.own_data import Settings, read_collection, train
from aleator.own_data.collection.left_out import leave_out
from aleator.own_data.learning import preparation
from aleator.own_data.runs.run import load_run


def test_many_images_stay_on_disk_and_give_the_same_run(photos, tmp_path, monkeypatch):
    settings = Settings(steps=6, dim=4, width=4, batch_size=16, size=8, holdout=0.4)
    small = train(read_collection(photos), tmp_path / "small", settings, device="cpu", baselines=False)
    monkeypatch.setattr(preparation, "_MEMORY_LIMIT", 1000)
    large = train(read_collection(photos), tmp_path / "large", settings, device="cpu", baselines=False)
    weights, expected = large.encoder.state_dict(), small.encoder.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert not (tmp_path / "large/cache").exists()


def test_a_corrupt_image_is_named_before_training(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    broken = tmp_path / "photos/red/07.png"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"red/07\.png.*damaged"):
        train(read_collection(tmp_path / "photos"), tmp_path / "run", Settings(size=8))
    assert not (tmp_path / "run/training").exists()
    broken.unlink()
    settings = Settings(steps=2, dim=4, width=4, batch_size=16, size=8, holdout=0.4)
    assert (
        train(read_collection(tmp_path / "photos"), tmp_path / "run", settings, device="cpu", baselines=False).metrics[
            "items"
        ]
        == 12
    )


def test_each_cache_lists_what_is_missing_in_it(photos, tmp_path, monkeypatch):
    """Features of a frozen network and decoded images are of different collections if an item could not be read."""
    monkeypatch.setattr(preparation, "_MEMORY_LIMIT", 0)
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos/red/07.png").write_bytes(b"broken")
    collection = read_collection(tmp_path / "photos", strict=False)
    job = preparation.Job(tmp_path / "run", ProcessGroup(0, 1, lambda: None), "cpu", strict=False)
    inputs, network = Inputs("images", size=8), Flatten(3 * 8 * 8)
    for _ in range(2):  # computed, then read again
        rows, missing = preparation._network_features(network, inputs, collection, job)
        assert (len(rows), len(missing)) == (len(collection) - 1, 1)
        images, missing = preparation.decoded_images(leave_out(collection, missing), inputs, job)
        assert (len(images), missing) == (len(collection) - 1, {})


def test_a_saved_model_is_not_trained_over(run, features, tmp_path):
    folder = al.AleatorModel(run).save_pretrained(tmp_path / "saved")
    before = (folder / "config.json").read_bytes()
    collection = read_collection(features / "x.npy", features / "y.npy")
    with pytest.raises(ValueError, match=r"saved.*belongs to another run"):
        train(collection, folder, Settings(steps=2, width=8), device="cpu", baselines=False)
    assert (folder / "config.json").read_bytes() == before
    assert load_run(folder).fingerprint == run.fingerprint
