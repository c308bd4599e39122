"""Every item is read before training; large collections stay on disk."""

import shutil

import pytest
import torch

from aleator.own_data import Settings, read_collection, train


def test_many_images_stay_on_disk_and_give_the_same_run(photos, tmp_path, monkeypatch):
    from aleator.own_data.learning import preparation

    settings = Settings(steps=6, dim=4, width=4, batch_size=16, size=8, holdout=0.4)
    small = train(read_collection(photos), tmp_path / "small", settings, device="cpu", rivals=False)
    monkeypatch.setattr(preparation, "_MEMORY_LIMIT", 1000)
    large = train(read_collection(photos), tmp_path / "large", settings, device="cpu", rivals=False)
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
        train(read_collection(tmp_path / "photos"), tmp_path / "run", settings, device="cpu", rivals=False).metrics[
            "items"
        ]
        == 12
    )
