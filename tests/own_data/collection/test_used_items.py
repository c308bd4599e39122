"""Items that a run has seen are known again: by content, under another name, in another order."""

import shutil

import numpy as np
import pytest

from aleator.own_data import embed, load_run, read_collection, read_embedded
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.used_items import FILE, used_as
from aleator.own_data.learning.splits import split_items


def test_a_run_knows_what_it_was_trained_on(run, whole, features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    split = split_items(collection, collection.labels, 0.2, 0)
    used = used_as(run.folder, item_digests(collection))
    assert {i for i, use in enumerate(used) if use == "training"} == set(split.train)
    assert {i for i, use in enumerate(used) if use == "calibration"} == set(split.calibration)
    embedded = read_embedded(whole)
    assert embedded.marked
    assert [record.get("used") for record in embedded.records] == used
    assert embedded.source == str((features / "x.npy").absolute())
    # Some known items among new ones, in another file.
    rows = np.concatenate([np.load(features / "x.npy")[split.train[:3]], np.zeros((2, 6), np.float32)])
    np.save(tmp_path / "mixed.npy", rows)
    output = embed(run, read_collection(tmp_path / "mixed.npy"), tmp_path / "mixed.safetensors", device="cpu")
    marks = [record.get("used") for record in read_embedded(output).records]
    assert marks == ["training"] * 3 + [None] * 2


def test_an_older_run_does_not_say(run, features, tmp_path):
    shutil.copytree(run.folder, tmp_path / "old")
    (tmp_path / "old" / FILE).unlink()
    (tmp_path / "old" / "checksums.json").unlink()  # an older run has none
    collection = read_collection(features / "x.npy")
    old = load_run(tmp_path / "old")
    assert used_as(old.folder, item_digests(collection)) is None
    embedded = read_embedded(embed(old, collection, tmp_path / "old.safetensors", device="cpu"))
    assert not embedded.marked
    assert "used" not in embedded.records[0]
    (tmp_path / "old" / FILE).write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="damaged"):
        used_as(old.folder, item_digests(collection))
