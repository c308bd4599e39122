"""Splits: what is held out, and which collections can be learned from."""

from dataclasses import replace

import numpy as np
import pytest

from aleator.own_data import read_collection
from aleator.own_data.collection.parts import select_labels
from aleator.own_data.collection.problems import Problem
from aleator.own_data.learning.defaults import held_out_share
from aleator.own_data.learning.splits import (
    allowed_share,
    describe_copies,
    describe_few_groups,
    describe_single_items,
    require_trainable,
    split_items,
)
from tests.own_data.conftest import image, write


def labelled(tmp_path, values):
    np.save(tmp_path / "x.npy", np.zeros((len(values), 2)))
    np.save(tmp_path / "y.npy", np.asarray(values))
    return read_collection(tmp_path / "x.npy", tmp_path / "y.npy")


def test_a_class_with_one_item_is_trained_on_and_named(tmp_path, pets):
    image(pets / "bird/only.png")
    labels = require_trainable(read_collection(pets))
    assert "1 class has one item only (bird)" in describe_single_items(labels)
    values = np.repeat([0, 1, 2], [20, 20, 1])
    collection = labelled(tmp_path, values)
    parts = split_items(collection, collection.labels, 0.2, seed=0)
    assert 40 in parts.train
    assert describe_single_items(labelled(tmp_path, [0, 0, 1, 1]).labels) == ""
    many = describe_single_items(labelled(tmp_path, [0, 0, 1, 1, 2, 3, 4, 5]).labels)
    assert "4 classes have one item only (2, 3, 4 and 1 more)" in many


def test_what_cannot_be_learned_from_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fewer than two classes have two items"):
        require_trainable(labelled(tmp_path, [1, 1, 3, 1]))
    with pytest.raises(ValueError, match="one class only"):
        require_trainable(labelled(tmp_path, [1, 1, 1]))
    with pytest.raises(ValueError, match=r"class 1 .*has no item"):
        require_trainable(labelled(tmp_path, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))


def test_a_split_holds_out_its_share_of_every_class(tmp_path):
    values = np.repeat([0, 1, 2], [100, 50, 3])
    collection = labelled(tmp_path, values)
    parts = split_items(collection, collection.labels, 0.2, seed=1)
    everything = np.concatenate([parts.train, parts.calibration, parts.test])
    assert sorted(everything.tolist()) == list(range(153))
    held = values[np.concatenate([parts.calibration, parts.test])]
    assert np.bincount(held, minlength=3).tolist() == [20, 10, 0]
    assert np.bincount(values[parts.calibration]).tolist() == [10, 5]
    again = split_items(collection, collection.labels, 0.2, seed=1)
    assert np.array_equal(parts.test, again.test)
    assert not np.array_equal(parts.test, split_items(collection, collection.labels, 0.2, seed=2).test)


def test_small_classes_get_a_larger_share_that_can_be_tested(tmp_path):
    """A fifth of eight items is one item. Two of a class are needed to calibrate, and two to test."""
    collection = labelled(tmp_path, np.repeat(np.arange(30), 8))
    with pytest.raises(ValueError, match="too few items"):
        split_items(collection, collection.labels, 0.2, seed=0)
    share = allowed_share(collection, collection.labels, 0.2, seed=0)
    assert share == 0.5
    split_items(collection, collection.labels, share, seed=0)
    large = labelled(tmp_path, np.repeat(np.arange(3), 50))
    assert allowed_share(large, large.labels, 0.2, seed=0) == 0.2
    hopeless = labelled(tmp_path, np.repeat(np.arange(3), 2))
    assert allowed_share(hopeless, hopeless.labels, 0.2, seed=0) == 0.2


def test_groups_and_pairs_are_held_out_whole(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((91, 2)))
    groups = np.repeat(np.arange(30), 3)
    rows = "\n".join(str(g) for g in groups)
    collection = read_collection(tmp_path / "x.npy", write(tmp_path / "g.csv", f"group\n{rows}\n99\n"))
    parts = split_items(collection, collection.labels, 0.4, seed=0)
    assert 90 not in np.concatenate([parts.train, parts.calibration, parts.test])  # the group of one
    sets = [set(collection.labels.values[part].tolist()) for part in (parts.train, parts.calibration, parts.test)]
    assert [len(s) for s in sets] == [18, 6, 6]
    assert len(set.union(*sets)) == 30

    links = "\n".join(f"{3 * g},{3 * g + 1}\n{3 * g + 1},{3 * g + 2}" for g in range(30))
    pairs = read_collection(tmp_path / "x.npy", write(tmp_path / "p.csv", f"first,second\n{links}\n"))
    parts = split_items(pairs, pairs.labels, 0.4, seed=0)
    kept = [select_labels(pairs.labels, part) for part in (parts.train, parts.calibration, parts.test)]
    assert [len(k.values) for k in kept] == [36, 12, 12]  # no pair is torn apart
    first = select_labels(pairs.labels, parts.test).values[0]
    assert groups[parts.test[first[0]]] == groups[parts.test[first[1]]]


@pytest.mark.parametrize(("groups", "held_out"), [(600, 60), (200, 60), (120, 60), (119, 36), (40, 12)])
def test_thirty_groups_calibrate_and_thirty_evaluate_or_it_is_said(tmp_path, groups, held_out):
    """However many items a group has: 600 items were six groups, on whose word kappa was divided by twenty."""
    np.save(tmp_path / "x.npy", np.zeros((20 * groups, 2)))
    rows = "\n".join(str(g) for g in np.repeat(np.arange(groups), 20))
    collection = read_collection(tmp_path / "x.npy", write(tmp_path / "g.csv", f"group\n{rows}\n"))
    share = allowed_share(collection, collection.labels, held_out_share(20 * groups), seed=0)
    split = split_items(collection, collection.labels, share, seed=0)
    parts = [np.unique(collection.labels.values[part]) for part in (split.train, split.calibration, split.test)]
    assert [len(part) for part in parts] == [groups - held_out, held_out // 2, held_out // 2]
    said = describe_few_groups(collection.labels, split)
    assert said.startswith("NOT CALIBRATED: ") == (held_out < 60)
    assert (f"{held_out // 2} groups are too few" in said) == (held_out < 60)


def refused(collection, share):
    with pytest.raises(ValueError, match="too few items") as error:
        split_items(collection, collection.labels, share, seed=0)
    return str(error.value)


def test_too_few_items_to_hold_out_and_a_share_that_would_do(tmp_path):
    few = labelled(tmp_path, [0, 0, 1, 1])
    for share, shown in ((0.2, "20 %"), (0.5, "50 %"), (0.001, "<1 %")):
        expected = f"data = '{few.source}': too few items (4) to hold out {shown} of them; add items of each class "
        expected += "(one needs 6), or call the labels groups"
        assert refused(few, share) == expected  # no share would do
    eight = labelled(tmp_path, np.repeat(np.arange(30), 8))
    assert refused(eight, 0.2).endswith("; add items of each class; or pass holdout=0.5")
    split_items(eight, eight.labels, 0.5, seed=0)


def test_too_few_groups_to_hold_out(tmp_path):
    def grouped(count):
        np.save(tmp_path / "x.npy", np.zeros((10 * count, 2)))
        rows = "\n".join(str(g) for g in np.repeat(np.arange(count), 10))
        return read_collection(tmp_path / "x.npy", write(tmp_path / "g.csv", f"group\n{rows}\n"))

    said = refused(grouped(4), 0.5)
    assert "to hold out 50 % of them (4 groups of two items or more, which stay whole); add groups" in said
    assert "holdout" not in said
    eight = grouped(8)
    assert refused(eight, 0.2).endswith("; or pass holdout=0.5")
    assert refused(eight, 0.95).endswith("; or pass holdout=0.5")
    split_items(eight, eight.labels, 0.5, seed=0)
    links = "\n".join(f"{2 * g},{2 * g + 1}" for g in range(3))
    pairs = read_collection(tmp_path / "x.npy", write(tmp_path / "p.csv", f"first,second\n{links}\n"))
    assert "(the pairs link them into 3 groups of two items or more, which stay whole)" in refused(pairs, 0.2)


def test_equal_items_are_on_one_side(tmp_path):
    """Of 300 items each comes twice, also with another label."""
    generator = np.random.default_rng(0)
    values, digests = generator.integers(0, 3, 600), np.tile(np.arange(300), 2)
    collection = labelled(tmp_path, values)
    parts = split_items(collection, collection.labels, 0.2, 0, None, digests)
    train, calibration, test = (set(digests[part]) for part in (parts.train, parts.calibration, parts.test))
    assert not train & (calibration | test)
    assert not calibration & test
    assert sorted(np.concatenate([parts.train, parts.calibration, parts.test])) == list(range(600))
    assert 80 <= len(parts.calibration) + len(parts.test) <= 120
    assert describe_copies(digests, parts).startswith("300 items are copies of others; equal items are all")
    alike = split_items(collection, collection.labels, 0.2, 0)
    assert "test items are copies of items that are trained on" in describe_copies(digests, alike)


def test_digests_of_different_items_change_nothing(tmp_path):
    collection = labelled(tmp_path, np.repeat([0, 1], 50))
    plain = split_items(collection, collection.labels, 0.2, 3)
    other = split_items(collection, collection.labels, 0.2, 3, None, np.random.default_rng(1).permutation(100))
    for name in ("train", "calibration", "test"):
        assert np.array_equal(getattr(plain, name), getattr(other, name))
    assert describe_copies(np.arange(100), plain) == ""


def test_a_collection_of_copies_is_split_and_told(tmp_path):
    """All items of a class are equal: nothing could be held out."""
    values = np.repeat([0, 1], 20)
    collection = labelled(tmp_path, values)
    parts = split_items(collection, collection.labels, 0.4, 0, None, values)
    assert len(parts.test)
    assert (
        describe_copies(values, parts)
        == "8 of 8 test items are copies of items that are trained on: figures are too good"
    )


def test_features_that_float32_cannot_tell_apart_are_refused(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    x[:, 1] = 1e9 + x[:, 1]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    with pytest.raises(ValueError, match="column 1: float32 cannot tell the values apart; subtract the mean"):
        require_trainable(read_collection(tmp_path / "x.npy", tmp_path / "y.npy"))
    np.save(tmp_path / "x.npy", x - x.mean(0))
    require_trainable(read_collection(tmp_path / "x.npy", tmp_path / "y.npy"))


def test_measurements_are_no_classes(tmp_path):
    problem = "its labels are 50 different numbers, such as .*, and not classes; make classes of them"
    with pytest.raises(ValueError, match=problem):
        require_trainable(labelled(tmp_path, [f"{i / 7:.3f}" for i in range(50)]))
    assert require_trainable(labelled(tmp_path, [f"{i % 5 / 2}" for i in range(50)])).kind == "classes"


def test_what_is_left_out_is_said_where_too_little_is_left(tmp_path):
    collection = replace(labelled(tmp_path, [1, 1, 1]), problems=(Problem("x", "has no row", "add one"),) * 3)
    with pytest.raises(ValueError, match="has one class only, without 3 items that cannot be used"):
        require_trainable(collection)


@pytest.mark.parametrize("size", [2, 5, 6])
def test_one_class_needs_six_items(size, tmp_path):
    """Two to learn from, two to calibrate and two to test."""
    few = labelled(tmp_path, np.repeat(np.arange(80), size))
    said = refused(few, 0.2)
    assert ("one needs 6" in said) == (size < 6)
    assert ("or pass holdout=0.7" in said) == (size == 6)
