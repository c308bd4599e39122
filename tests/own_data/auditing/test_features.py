"""Where the features of an audit come from."""

from pathlib import Path

import numpy as np
import pytest
import torch

import aleator as al
from aleator.data import Inputs
from aleator.encoders import MLP, Chain, Flatten
from aleator.own_data import Run, read_collection
from aleator.own_data.auditing.features import audit_features
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.embedding.rows import RowFile

CPU = torch.device("cpu")


def image_run(backbone_setting):
    """A run on 8 x 8 images: a first part that only flattens, and a head."""
    encoder = al.Encoder(Chain([Flatten(192), MLP(192, (5,))]), dim=4).eval()
    config = {"settings": {"backbone": backbone_setting}}
    return Run(Path("run"), encoder, Inputs("images", size=8), al.VMFKernel(), 0.5, "abc", config, {})


def test_a_trained_backbone_gives_features_that_saw_labels(photos, tmp_path):
    run, collection = image_run("resnet18"), read_collection(photos)
    found = audit_features(collection, run, None, tmp_path, item_digests(collection), CPU, False)
    assert found.saw_labels
    with torch.inference_mode():
        expected = run.encoder.backbone(run.inputs.prepare(collection.raw(0, 60)))
    assert torch.allclose(found.rows, expected, atol=1e-6)
    assert found.describe()["width"] == 5


def test_a_pretrained_network_gives_features_before_the_trained_head(photos, tmp_path):
    run, collection = image_run("hf:some/network"), read_collection(photos)
    found = audit_features(collection, run, None, tmp_path, item_digests(collection), CPU, False)
    assert not found.saw_labels
    assert torch.allclose(found.rows, run.inputs.prepare(collection.raw(0, 60)).flatten(1), atol=1e-6)


def test_features_of_a_stopped_audit_are_kept(photos, tmp_path):
    run, collection = image_run("resnet18"), read_collection(photos)
    digests = item_digests(collection)
    (tmp_path / "new").mkdir()
    with RowFile(tmp_path / "features.rows", 5) as rows:
        rows.append(np.full((60, 5), 3, np.float32), digests)
    assert (audit_features(collection, run, None, tmp_path, digests, CPU, False).rows == 3).all()
    digests[7] += 1  # an image that has changed since
    fresh = audit_features(collection, run, None, tmp_path / "new", digests, CPU, False)
    assert torch.equal(audit_features(collection, run, None, tmp_path, digests, CPU, False).rows, fresh.rows)


def test_a_run_on_features_is_audited_on_the_features(run, features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    found = audit_features(collection, run, None, tmp_path, item_digests(collection), CPU, False)
    assert np.array_equal(found.rows.numpy(), np.load(features / "x.npy"))
    assert not found.saw_labels


def test_features_must_fit_the_items(photos, tmp_path):
    np.save(tmp_path / "few.npy", np.zeros((59, 3)))
    with pytest.raises(ValueError, match=r"few.npy'?: has 59 rows, and .* has 60 items"):
        audit_features(read_collection(photos), None, tmp_path / "few.npy", tmp_path, np.empty(60), CPU, False)


def test_a_run_of_another_kind(run, photos, tmp_path):
    with pytest.raises(ValueError, match="holds images, and the run was trained on features"):
        audit_features(read_collection(photos), run, None, tmp_path, item_digests(read_collection(photos)), CPU, False)


def test_a_run_and_features_contradict_each_other(run, photos, tmp_path):
    with pytest.raises(ValueError, match="a run is given too"):
        audit_features(read_collection(photos), run, tmp_path / "x.npy", tmp_path, np.empty(60), CPU, False)
