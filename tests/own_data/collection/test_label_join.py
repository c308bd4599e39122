"""Labels of a second file belong to the item that they name, in whatever order they stand."""

import numpy as np
import pytest

from aleator.own_data import read_labels_of
from tests.own_data.conftest import write

PATHS = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]
RECORDS = [{"id": path, "path": path} for path in PATHS]
NUMBERED = [{"id": i} for i in range(4)]


def labels_of(path, records=RECORDS):
    labels = read_labels_of(path, records, "photos.safetensors")
    return [labels.names[number] for number in labels.values]


@pytest.mark.parametrize("column", ["id", "path"])
def test_rows_in_another_order_are_joined_by_name(tmp_path, column):
    lines = [f"{column},label"] + [f"{path},{path.split('/')[0]}" for path in reversed(PATHS)]
    table = write(tmp_path / "labels.csv", "\n".join(lines) + "\n")
    assert labels_of(table) == ["cat", "cat", "dog", "dog"]


def test_other_spellings_of_a_path_and_rows_of_other_items(tmp_path):
    table = write(tmp_path / "l.csv", "path,label\n./dog/2.png,b\ncat\\1.png,a\ncat/2.png,a\ndog/1.png,b\nx.png,c\n")
    assert labels_of(table) == ["a", "a", "b", "b"]


def test_soft_labels_are_joined_too(tmp_path):
    table = write(tmp_path / "l.csv", "id,cat,dog\n3,0,1\n1,0.5,0.5\n0,1,0\n2,0.25,0.75\n")
    labels = read_labels_of(table, NUMBERED, "x")
    assert labels.kind == "soft"
    np.testing.assert_allclose(labels.values[:, 0], [1, 0.5, 0.25, 0])


def test_pairs_of_paths(tmp_path):
    table = write(tmp_path / "pairs.csv", "first,second\ndog/2.png,dog/1.png\ncat/1.png,cat/2.png\n")
    labels = read_labels_of(table, RECORDS, "photos.safetensors")
    assert labels.kind == "pairs"
    assert labels.values.tolist() == [[3, 2], [0, 1]]


def test_row_numbers_are_ids_only_where_the_ids_are_row_numbers(tmp_path):
    np.save(tmp_path / "y.npy", np.array([0, 0, 1, 1]))
    table = write(tmp_path / "y.csv", "label\na\na\nb\nb\n")
    assert labels_of(tmp_path / "y.npy", NUMBERED) == ["0", "0", "1", "1"]
    assert labels_of(table, NUMBERED) == ["a", "a", "b", "b"]
    for path in (tmp_path / "y.npy", table):
        with pytest.raises(ValueError, match=r"does not say which item a row belongs to.*columns id"):
            labels_of(path)
        with pytest.raises(ValueError, match="does not say which item"):
            labels_of(path, NUMBERED[::-1])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,label\ncat/1.png,a\ncat/1.png,b\n", "row 3.*cat/1.png is in row 2 too"),
        ("path,label\ncat/1.png,a\n", r"has no row for 3 of 4 items.*cat/2.png"),
        ("path\ncat/1.png\n", "has no row for|has no column of labels"),
        ("first,second\ncat/1.png,bird.png\n", "'bird.png' in row 2.*is no item"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path, text, problem):
    with pytest.raises(ValueError, match=problem):
        labels_of(write(tmp_path / "labels.csv", text))
