"""Parts of a collection: some items, and the labels that belong to them."""

import numpy as np
import pytest

from aleator.own_data import Collection, Labels, read_collection
from aleator.own_data.collection.parts import select_items, select_labels


def test_soft_labels_of_a_part_leave_out_classes_that_it_lacks(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "y.npy", np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0]]))
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    part = select_labels(collection.labels, np.array([0, 2]))
    assert part.names == ("0", "1")
    assert part.values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (Labels("classes", np.array([0, 1, 1, 2]), ("a", "b", "c")), Labels("classes", np.array([0, 1]), ("b", "c"))),
        (Labels("pairs", np.array([[0, 1], [1, 3], [3, 2]])), Labels("pairs", np.array([[0, 1]]))),
        (
            Labels("soft", np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0.5, 0.5]], np.float32), ("a", "b", "c")),
            Labels("soft", np.array([[1, 0], [0.5, 0.5]], np.float32), ("b", "c")),
        ),
    ],
    ids=lambda labels: labels.kind,
)
def test_labels_follow_the_items(tmp_path, labels, expected):
    collection = Collection("text", tmp_path / "t.txt", ["one", "two", "three", "four"], labels=labels)
    part = select_items(collection, np.array([1, 3]))
    assert part.items == ["two", "four"]
    assert part.ids() == [1, 3]
    assert part.labels.kind == expected.kind
    assert part.labels.names == expected.names
    assert part.labels.values.tolist() == expected.values.tolist()
