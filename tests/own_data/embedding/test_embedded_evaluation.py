"""`evaluate` on a posteriors file: what was trained on is left out, and baselines learned from what the run learned."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from aleator.own_data import Settings, embed, evaluate_embedded, load_run, read_collection, read_embedded, train
from aleator.own_data.learning import tuning
from aleator.own_data.learning.splits import split_items
from tests.own_data.conftest import blobs
from tests.own_data.runs.test_pretrained import network

__all__ = ["network"]  # a fixture


def recall(metrics: dict, method: str) -> float:
    return next(row for row in metrics["baselines"]["rows"] if row["method"] == method)["recall_at_1"]["value"]


def test_items_that_were_trained_on_are_left_out(run, whole, features):
    embedded = read_embedded(whole)
    collection = read_collection(features / "x.npy", features / "y.npy")
    split = split_items(collection, collection.labels, 0.2, 0)
    metrics = evaluate_embedded(embedded, collection.labels)
    assert metrics["left_out"] == {"training": len(split.train), "calibration": len(split.calibration)}
    assert metrics["items"] == len(split.test)
    assert metrics["gallery"] == len(split.train)
    # The same queries, the same gallery and the same baselines as in training. Since then label probabilities have been
    # fitted to these queries too.
    assert metrics["recall_at_1"] == run.metrics["recall_at_1"]
    assert metrics["baselines"]["precondition"] == run.metrics["baselines"]["precondition"]
    assert metrics["baselines"]["inputs"] == run.metrics["baselines"]["inputs"] == "features"
    for mine, theirs in zip(metrics["baselines"]["rows"], run.metrics["baselines"]["rows"], strict=True):
        assert mine["method"] == theirs["method"]
        if mine["method"] == "our labels":
            continue
        assert mine["recall_at_1"] == pytest.approx(theirs["recall_at_1"])
        assert mine["augrc"] == pytest.approx(theirs["augrc"], rel=1e-3)
    json.dumps(metrics)


def test_one_log_has_one_recall(run):
    """Recall@1 of the table of metrics is that of the comparison: the same queries, asked against the same items."""
    assert run.metrics["recall_at_1"] == recall(run.metrics, "ours")


@pytest.mark.parametrize("copies", [0, 1, 30])
def test_new_items_are_asked_against_what_the_run_learned_from(run, features, tmp_path, copies):
    """Also where training items, or one with another label, happen to be in the file: baselines were crippled there."""
    rows, labels = blobs(150, seed=5)
    learned = read_collection(features / "x.npy", features / "y.npy")
    known = np.load(features / "x.npy")[split_items(learned, learned.labels, 0.2, 0).train[:copies]]
    np.save(tmp_path / "x.npy", np.concatenate([rows, known]))
    np.save(tmp_path / "y.npy", np.concatenate([labels, np.arange(copies) % 4]))
    new = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    embedded = read_embedded(embed(run, new, tmp_path / "new.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    trained = run.metrics["baselines"]["gallery"]
    assert metrics["items"] == 150
    assert (metrics["baselines"]["queries"], metrics["baselines"]["gallery"]) == (150, trained)
    said = f"learned from the same {trained} items, and answer the same 150 unseen"
    assert said in metrics["baselines"]["precondition"]
    assert metrics["recall_at_1"] == recall(metrics, "ours")
    assert recall(metrics, "linear head") > 0.7  # it has learned from all the items, and not from the copies
    assert recall(metrics, "raw cosine") > 0.6


def test_a_file_that_does_not_say_what_was_trained_on_gets_no_baselines(whole):
    embedded = replace(read_embedded(whole), marked=False)
    embedded = replace(embedded, records=[{k: v for k, v in r.items() if k != "used"} for r in embedded.records])
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["items"] == 400
    assert metrics["left_out"] is None
    assert "baselines" not in metrics
    assert any("not known" in note and "no baselines" in note for note in metrics["notes"])


def test_without_the_items_there_are_no_baselines(whole, features, tmp_path):
    embedded = replace(read_embedded(whole), source=str(tmp_path / "gone.npy"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert "baselines" not in metrics
    assert any("no baselines" in note and "gone.npy" in note for note in metrics["notes"])
    there = evaluate_embedded(embedded, embedded.labels(), data=read_collection(features / "x.npy"))
    assert len(there["baselines"]["rows"]) == 5
    assert "baselines" not in evaluate_embedded(read_embedded(whole), embedded.labels(), baselines=False)
    np.save(tmp_path / "few.npy", np.zeros((3, 6)))
    with pytest.raises(ValueError, match="3 items for 400 posteriors"):
        evaluate_embedded(embedded, embedded.labels(), data=read_collection(tmp_path / "few.npy"))
    changed = evaluate_embedded(replace(embedded, source=str(tmp_path / "few.npy")), embedded.labels())
    assert "baselines" not in changed
    assert any("no baselines" in note and "3 items for 400" in note for note in changed["notes"])


def test_without_the_run_there_are_no_baselines(run, whole, tmp_path):
    embedded = read_embedded(whole)
    assert embedded.run == str(run.folder.resolve())
    moved = replace(embedded, run=str(tmp_path / "gone"))
    metrics = evaluate_embedded(moved, embedded.labels())
    assert "baselines" not in metrics
    assert any("no baselines" in note and str(tmp_path / "gone") in note for note in metrics["notes"])
    named = evaluate_embedded(moved, embedded.labels(), run=run)
    assert named["baselines"] == evaluate_embedded(embedded, embedded.labels())["baselines"]
    shutil.copytree(run.folder, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare/baselines")
    (tmp_path / "bare/checksums.json").unlink()
    bare = evaluate_embedded(replace(embedded, run=str(tmp_path / "bare")), embedded.labels())
    assert any("keeps no features of its training items" in note for note in bare["notes"])
    with pytest.raises(ValueError, match="did not make these posteriors"):
        evaluate_embedded(replace(embedded, fingerprint="another"), embedded.labels(), run=run)


def test_items_that_were_all_trained_on_are_evaluated_and_said_to_be(run, features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    split = split_items(collection, collection.labels, 0.2, 0)
    np.save(tmp_path / "x.npy", np.load(features / "x.npy")[split.train[:50]])
    np.save(tmp_path / "y.npy", np.load(features / "y.npy")[split.train[:50]])
    seen = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    embedded = read_embedded(embed(run, seen, tmp_path / "seen.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["items"] == 50
    said = "50 of 50 items were trained on or calibrated on: the numbers are of items that the encoder has seen"
    assert metrics["notes"][0] == f"{said}; no baselines"
    assert "baselines" not in metrics


def test_a_network_that_learned_from_pixels_is_compared_on_pixels(photos, tmp_path):
    settings = Settings(steps=2, dim=4, width=2, batch_size=8, size=8, holdout=0.4)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu")
    methods = [row["method"] for row in run.metrics["baselines"]["rows"]]
    assert methods == ["ours", "our labels", "raw cosine", "ten neighbours", "linear head"]
    assert recall(run.metrics, "ten neighbours") == 1.0  # colours tell the classes apart
    embedded = read_embedded(embed(run, read_collection(photos), tmp_path / "p.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["baselines"]["inputs"] == run.metrics["baselines"]["inputs"] == "pixels"
    for method in ("raw cosine", "ten neighbours", "linear head"):
        assert recall(metrics, method) == recall(run.metrics, method)


@pytest.mark.parametrize("tune", ["head", "last"])
def test_a_pretrained_network_is_compared_on_its_features(tune, network, photos, tmp_path, monkeypatch):
    """Also where the run has changed the network: the features are those that the user had before."""
    monkeypatch.setattr(tuning, "_improved", lambda before, after: True)
    settings = Settings(backbone=f"hf:{network}", steps=20, width=8, batch_size=24, dim=4, holdout=0.4)
    if tune != "head":
        settings = replace(settings, tune=tune, tune_steps=2, tune_learning_rate=0.1, augment="none")
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", figures=False)
    embedded = read_embedded(embed(run, read_collection(photos), tmp_path / "p.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, embedded.labels())
    assert metrics["baselines"]["inputs"] == run.metrics["baselines"]["inputs"] == "frozen features"
    for mine, theirs in zip(metrics["baselines"]["rows"], run.metrics["baselines"]["rows"], strict=True):
        if not mine["ours"]:
            assert mine["recall_at_1"]["value"] == theirs["recall_at_1"]["value"]
            assert mine["r_auroc"] == pytest.approx(theirs["r_auroc"], abs=0.02)


def test_groups_are_asked_against_each_other(tmp_path):
    """Of 150 groups, 30 calibrate and 30 evaluate. `evaluate` leaves out the others, and keeps no gallery of them."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((300, 4))[np.arange(300) // 2] + 0.1 * generator.standard_normal((300, 4))
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    (tmp_path / "g.csv").write_text("group\n" + "\n".join(f"g{i // 2}" for i in range(300)) + "\n")
    collection = read_collection(tmp_path / "x.npy", tmp_path / "g.csv")
    run = train(collection, tmp_path / "run", Settings(steps=5, width=8, dim=4, batch_size=32), device="cpu")
    assert run.metrics["items"] == 60
    assert run.metrics["gallery"] == run.metrics["baselines"]["gallery"] == 180 + 60
    assert run.metrics["recall_at_1"] == recall(run.metrics, "ours")
    embedded = read_embedded(embed(run, collection, tmp_path / "all.safetensors", device="cpu"))
    metrics = evaluate_embedded(embedded, collection.labels)
    assert (metrics["items"], metrics["gallery"], metrics["baselines"]["gallery"]) == (60, None, None)
    assert metrics["recall_at_1"] == recall(metrics, "ours")
    assert [row["method"] for row in metrics["baselines"]["rows"]] == ["ours", "raw cosine", "ten neighbours"]
    assert load_run(tmp_path / "run").metrics["baselines"]["verdicts"][0].startswith("no verdict: 60 queries")
