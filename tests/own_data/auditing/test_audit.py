"""`audit`: planted errors, copies and odd ones in small collections."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from aleator.foundation import lock_beside, only_process
from aleator.own_data import audit, read_collection
from tests.own_data.conftest import blobs, write

QUIET = {"device": "cpu", "progress": False}


def planted(folder, count=200, errors=(20, 31, 42, 101, 151)):
    """x.npy, y.npy: four clear classes with some wrong labels, and items 5 and 9 the same."""
    rows, labels = blobs(count)
    rows, labels = rows[np.arange(count) % 4 > 0], labels[np.arange(count) % 4 > 0]  # every fourth is ambiguous
    rows, labels = np.concatenate([rows, rows + 0.1]), np.concatenate([labels, labels])
    true = labels.copy()
    labels[list(errors)] = (labels[list(errors)] + 1) % 4
    rows[9], labels[9], true[9] = rows[5], labels[5], true[5]
    rows[77] = 0
    rows[77, 5] = -40  # unlike everything
    np.save(folder / "x.npy", rows)
    np.save(folder / "y.npy", labels)
    return read_collection(folder / "x.npy", folder / "y.npy"), true


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    collection, true = planted(folder)
    lines = []
    return audit(collection, folder / "audit", log=lines.append, **QUIET), folder / "audit", true, lines


def test_planted_errors_come_first_with_their_true_label(finished):
    found, folder, true, lines = finished
    rows = table(folder / "label_errors.csv")
    assert len(rows) == 300
    first = {int(row["id"]): row for row in rows[:5]}
    assert set(first) == {20, 31, 42, 101, 151}
    for i, row in first.items():
        assert int(row["likelier"]) == true[i]
        assert int(row["given"]) == (true[i] + 1) % 4
        assert float(row["p_likelier"]) > float(row["p_given"])
        ratio = np.log(float(row["p_likelier"]) / float(row["p_given"]))
        assert float(row["score"]) == pytest.approx(ratio, rel=1e-2)
    assert [float(row["score"]) for row in rows] == sorted((float(row["score"]) for row in rows), reverse=True)
    assert found.label_errors.order()[0] == int(rows[0]["id"])
    assert any("likely wrong" in line for line in lines)


def test_copies_are_one_group(finished):
    found, folder, _, _ = finished
    rows = table(folder / "near_duplicates.csv")
    assert {(row["group"], row["id"]) for row in rows} == {("1", "5"), ("1", "9")}
    assert {row["labels_differ"] for row in rows} == {"no"}
    assert {row["same_content"] for row in rows} == {"yes"}
    assert found.summary["near_duplicates"]["same_content"] == 2
    assert found.duplicates == [(5, 9)]


def test_the_odd_one_comes_first(finished):
    _, folder, _, _ = finished
    assert table(folder / "odd_ones.csv")[0]["id"] == "77"


def test_confused_classes_name_examples(finished):
    _, folder, true, _ = finished
    rows = table(folder / "confused_classes.csv")
    assert len(rows) == 12
    confused = {(row["given"], row["other"]): row["examples"].split() for row in rows}
    assert "20" in confused[str((true[20] + 1) % 4), str(true[20])]


def test_the_summary_says_what_was_done(finished):
    found, folder, _, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["items"] == 300
    assert summary["label_errors"]["likely"] >= 5
    assert summary["label_errors"]["folds"] == 5
    assert summary["near_duplicates"]["groups"] == 1
    assert {"command", "versions", "wall_seconds"} <= set(summary["provenance"])
    assert summary == json.loads(json.dumps(found.summary))


def test_images_by_given_features(photos, tmp_path):
    """Features from elsewhere, items from a folder: ids are paths, equal files are copies, figures are drawn."""
    import shutil

    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    shutil.copy(folder / "blue" / "03.png", folder / "red" / "99.png")  # a copy with another label
    collection = read_collection(folder)
    rows = [np.asarray(Image.open(folder / path)).mean((0, 1)) for path in collection.items]
    np.save(tmp_path / "colours.npy", np.array(rows))
    found = audit(collection, tmp_path / "audit", features=tmp_path / "colours.npy", **QUIET)
    first = table(tmp_path / "audit" / "label_errors.csv")[0]
    assert (first["id"], first["given"], first["likelier"]) == ("red/99.png", "red", "blue")
    rows = table(tmp_path / "audit" / "near_duplicates.csv")
    assert [row["id"] for row in rows if row["same_content"] == "yes"] == ["blue/03.png", "red/99.png"]
    assert {row["labels_differ"] for row in rows if row["group"] == rows[0]["group"]} == {"yes"}
    assert found.summary["near_duplicates"]["groups_with_different_labels"] == 1
    assert {path.name for path in (tmp_path / "audit" / "figures").iterdir()} == {
        "label_errors.png",
        "near_duplicates.png",
        "odd_ones.png",
    }


def test_without_classes_labels_are_not_judged(tmp_path):
    planted(tmp_path)
    found = audit(read_collection(tmp_path / "x.npy"), tmp_path / "audit", **QUIET)
    assert found.label_errors is None
    assert found.duplicates == [(5, 9)]
    assert table(tmp_path / "audit" / "label_errors.csv") == []
    assert "label_errors" not in found.summary


def test_groups_and_pairs_are_not_judged_and_the_log_says_so(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((30, 3)))
    groups = write(tmp_path / "g.csv", "group\n" + "".join(f"{i // 5}\n" for i in range(30)))
    pairs = write(tmp_path / "p.csv", "first,second\n0,1\n2,3\n")
    for labels, kind in ((groups, "groups"), (pairs, "pairs")):
        lines = []
        collection = read_collection(tmp_path / "x.npy", labels)
        found = audit(collection, tmp_path / kind, **QUIET, log=lines.append)
        assert found.label_errors is None
        assert lines == [f"The labels are {kind}, which are not judged: only classes and soft labels are."]


def test_soft_labels_are_judged(tmp_path):
    _, true = planted(tmp_path)
    soft = np.full((300, 4), 0.1)
    soft[np.arange(300), true] = 0.7
    soft[8] = np.roll(soft[8], 1)
    np.save(tmp_path / "soft.npy", soft)
    found = audit(read_collection(tmp_path / "x.npy", tmp_path / "soft.npy"), tmp_path / "audit", **QUIET)
    assert found.label_errors.order()[0] == 8
    assert found.label_errors.likelier[8] == true[8]


def test_few_items(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(10))
    with pytest.raises(ValueError, match="data = 10: too few items to compare"):
        audit(read_collection(tmp_path / "x.npy"), tmp_path / "audit", **QUIET)


def test_texts_need_features(tmp_path):
    lines = write(tmp_path / "lines.txt", "".join(f"line {i}\n" for i in range(30)))
    with pytest.raises(ValueError, match="text have no features yet; pass a run"):
        audit(read_collection(lines), tmp_path / "audit", **QUIET)


def test_of_two_audits_into_one_folder_the_second_is_told(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((30, 3)))
    held = only_process(lock_beside(tmp_path / "audit"), "output", "audit")
    with held, pytest.raises(ValueError, match=r"audit, process \d+ on .*; wait for it or stop it"):
        audit(read_collection(tmp_path / "x.npy"), tmp_path / "audit", device="cpu")
    assert not (tmp_path / "audit").exists()
