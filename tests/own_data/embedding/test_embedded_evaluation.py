"""`evaluate` on a posteriors file: what was trained on is left out, and rivals stand beside ours."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from aleator.own_data import embed, evaluate, evaluate_embedded, read_collection, read_embedded
from aleator.own_data.collection.parts import select_labels
from aleator.own_data.learning.splits import split_items


def test_items_that_were_trained_on_are_left_out(run, whole, features):
    embedded = read_embedded(whole)
    collection = read_collection(features / "x.npy", features / "y.npy")
    labels = collection.labels
    split = split_items(collection, labels, 0.2, 0)
    metrics = evaluate_embedded(embedded, labels)
    assert metrics["left_out"] == {"training": len(split.train), "calibration": len(split.calibration)}
    test = embedded.q[torch.as_tensor(split.test)]
    expected = evaluate(test, select_labels(labels, split.test), embedded.kernel, embedded.prior)
    assert metrics["items"] == len(split.test)
    assert metrics["recall_at_1"] == expected["recall_at_1"]
    # The same questions and the same gallery as in training. Since then label probabilities have been fitted to these
    # questions too.
    for mine, theirs in zip(metrics["rivals"]["rows"], run.metrics["rivals"]["rows"], strict=True):
        assert mine["method"] == theirs["method"]
        if mine["method"] == "our labels":
            continue
        assert mine["recall_at_1"] == pytest.approx(theirs["recall_at_1"])
        assert mine["augrc"] == pytest.approx(theirs["augrc"], rel=1e-3)
    assert metrics["rivals"]["gallery"] == len(split.train)
    json.dumps(metrics)


def test_a_file_that_does_not_say_is_evaluated_whole_and_says_so(whole, features):
    embedded = replace(read_embedded(whole), marked=False)
    embedded = replace(embedded, records=[{k: v for k, v in r.items() if k != "used"} for r in embedded.records])
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["items"] == 400
    assert metrics["left_out"] is None
    assert metrics["rivals"]["gallery"] is None
    assert any("not known" in note for note in metrics["notes"])


def test_without_the_items_there_are_no_rivals(whole, features, tmp_path):
    embedded = replace(read_embedded(whole), source=str(tmp_path / "gone.npy"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert "rivals" not in metrics
    assert any("no rivals" in note and "gone.npy" in note for note in metrics["notes"])
    there = evaluate_embedded(embedded, embedded.labels(), data=read_collection(features / "x.npy"))
    assert len(there["rivals"]["rows"]) == 4
    assert "rivals" not in evaluate_embedded(read_embedded(whole), embedded.labels(), rivals=False)
    np.save(tmp_path / "few.npy", np.zeros((3, 6)))
    with pytest.raises(ValueError, match="3 items for 400 posteriors"):
        evaluate_embedded(embedded, embedded.labels(), data=read_collection(tmp_path / "few.npy"))
    changed = evaluate_embedded(replace(embedded, source=str(tmp_path / "few.npy")), embedded.labels())
    assert "rivals" not in changed
    assert any("no rivals" in note and "3 items for 400" in note for note in changed["notes"])


def test_items_that_were_all_trained_on_are_evaluated_and_said_to_be(run, features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    split = split_items(collection, collection.labels, 0.2, 0)
    np.save(tmp_path / "x.npy", np.load(features / "x.npy")[split.train[:50]])
    np.save(tmp_path / "y.npy", np.load(features / "y.npy")[split.train[:50]])
    seen = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    embedded = read_embedded(embed(run, seen, tmp_path / "seen.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["items"] == 50
    assert metrics["notes"] == [
        "50 of 50 items were trained on or calibrated on: the numbers are of items that the encoder has seen; no rivals"
    ]
    assert "rivals" not in metrics


def test_images_are_compared_by_their_pixels(photos, tmp_path):
    from aleator.own_data import Settings, train

    settings = Settings(steps=2, dim=4, width=2, batch_size=8, size=8, holdout=0.4)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu")
    rows = {row["method"]: row for row in run.metrics["rivals"]["rows"]}
    assert list(rows) == ["ours", "our labels", "raw neighbours", "linear head"]
    assert rows["raw neighbours"]["recall_at_1"]["value"] == 1.0  # colours tell the classes apart
    embedded = read_embedded(embed(run, read_collection(photos), tmp_path / "p.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["rivals"]["inputs"] == "pixels, 32 x 32"
    assert metrics["rivals"]["rows"][2]["recall_at_1"]["value"] == 1.0
