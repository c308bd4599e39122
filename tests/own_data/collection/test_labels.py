"""Labels from a second file: row by row, or of the items that they name, in whatever order they stand."""

import numpy as np
import pytest

from aleator.own_data import read_collection, read_labels, read_labels_of
from aleator.own_data.collection.labels import soft_labels
from tests.own_data.conftest import write

PATHS = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]
RECORDS = [{"id": path, "path": path} for path in PATHS]
NUMBERED = [{"id": i} for i in range(4)]


def test_features_with_every_kind_of_labels(tmp_path):
    rows = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "hard.npy", np.array([5, 9, 5, 9], np.uint8))
    np.save(tmp_path / "soft.npy", np.full((4, 2), 0.5))
    write(tmp_path / "hard.csv", "label\na\nb\na\nb\n")
    write(tmp_path / "pairs.csv", "first,second\n0,2\n1,3\n")
    x = tmp_path / "x.npy"
    plain = read_collection(x)
    assert plain.labels is None
    assert plain.raw(1, 3).tolist() == rows[1:3].tolist()
    assert read_collection(x, tmp_path / "hard.npy").labels.names == ("5", "9")
    assert read_collection(x, tmp_path / "hard.csv").labels.values.tolist() == [0, 1, 0, 1]
    assert read_collection(x, tmp_path / "soft.npy").labels.kind == "soft"
    assert read_collection(x, tmp_path / "pairs.csv").labels.values.tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.zeros(3, int), r"y\.npy.*has 3 rows, and .*x\.npy has 4"),
        (np.full(4, 0.5), "is not labels"),
        (
            np.array([[0.5, 0.5]] * 3 + [[0.5, 0.6]]),
            r"row 3 of .*y\.npy.*sum to 1\.1, not to 1; divide each row by its sum",
        ),
        (np.array([[3, 1], [0, 0], [1, 1], [1, 1]]), r"row 1 of .*y\.npy.*has no votes"),
        (np.zeros((4, 1), int), "is not labels"),
        (
            np.array(["a", "b", "a", "b"], object),
            r"y\.npy.*; write it with numpy\.save, names as labels\.astype\(str\)",
        ),
    ],
)
def test_bad_label_arrays(tmp_path, labels, problem):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(ValueError, match=problem):
        read_collection(tmp_path / "x.npy", tmp_path / "y.npy")


def test_numbers_of_votes_are_soft_labels(tmp_path):
    (tmp_path / "x.csv").write_text("text,cat,dog\na b,3,1\nc d,0,5\ne f,1,1\n")
    labels = read_collection(tmp_path / "x.csv").labels
    assert labels.kind == "soft"
    np.testing.assert_allclose(labels.values, [[0.75, 0.25], [0, 1], [0.5, 0.5]])
    (tmp_path / "x.csv").write_text("text,cat,dog\na b,3,1\nc d,0,0\ne f,1,1\n")
    with pytest.raises(ValueError, match=r"row 3 of .*has no votes"):
        read_collection(tmp_path / "x.csv")


def test_numbers_of_votes_in_an_array_are_soft_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    np.save(tmp_path / "y.npy", np.array([[3, 1], [0, 5]]))
    labels = read_collection(tmp_path / "x.npy", tmp_path / "y.npy").labels
    assert labels.kind == "soft"
    np.testing.assert_allclose(labels.values, [[0.75, 0.25], [0, 1]])


def test_pairs_of_rows_that_are_not_there(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    pairs = write(tmp_path / "pairs.csv", "first,second\n0,1\n2,4\n")
    with pytest.raises(ValueError, match=r"'4' in row 3 of .*is no item; write ids such as 0 and 3"):
        read_collection(tmp_path / "x.npy", pairs)


def test_labels_are_joined_by_id(tmp_path):
    path = write(tmp_path / "labels.csv", "label,id\nb,2\na,0\nc,1\nz,9\n")
    labels = read_labels(path, 3, "x.npy")
    assert [labels.names[value] for value in labels.values] == ["a", "c", "b"]
    named = write(tmp_path / "named.csv", "path,label\nb.png,b\na.png,a\n")
    labels = read_labels(named, 2, "photos", ids=["a.png", "b.png"])
    assert [labels.names[value] for value in labels.values] == ["a", "b"]
    in_order = read_labels(named, 2, "x.npy")  # row numbers cannot be looked up among paths
    assert [in_order.names[value] for value in in_order.values] == ["b", "a"]


def test_soft_labels_are_joined_by_id(tmp_path):
    path = write(tmp_path / "labels.csv", "id,cat,dog\n1,0.25,0.75\n0,1,0\n")
    assert read_labels(path, 2, "x.npy").values.tolist() == [[1, 0], [0.25, 0.75]]


def test_pairs_of_paths_are_found_by_id(tmp_path):
    path = write(tmp_path / "pairs.csv", "first,second\nb.png,c.png\n./a.png,c.png\n")
    labels = read_labels(path, 3, "photos", ids=["a.png", "b.png", "c.png"])
    assert labels.values.tolist() == [[1, 2], [0, 2]]


def test_joins_that_do_not_fit(tmp_path):
    path = write(tmp_path / "labels.csv", "id,label\na,1\nb,2\n")
    with pytest.raises(ValueError, match=r"no row for 2 of 3 items of photos \(c, d\)"):
        read_labels(path, 3, "photos", ids=["a", "c", "d"])
    with pytest.raises(ValueError, match=r"row 3.*a is in row 2 too"):
        read_labels(write(tmp_path / "twice.csv", "id,label\na,1\na,2\n"), 1, "photos", ids=["a"])
    with pytest.raises(ValueError, match="no column of labels"):
        read_labels(write(tmp_path / "none.csv", "id\na\n"), 1, "photos", ids=["a"])


def test_floats_that_are_whole_numbers_are_classes(tmp_path):
    """pandas makes 7.0 of 7 in a column where one number was missing."""
    np.save(tmp_path / "y.npy", np.array([10.0, 7.0, 7.0]))
    labels = read_labels(tmp_path / "y.npy", 3, "x.npy")
    assert (labels.names, labels.values.tolist()) == (("10", "7"), [0, 1, 1])
    np.save(tmp_path / "y.npy", np.array([10.0, 7.5, np.nan]))
    with pytest.raises(ValueError, match="is not labels"):
        read_labels(tmp_path / "y.npy", 3, "x.npy")


def test_probabilities_that_were_rounded_are_divided_by_their_sum():
    rounded = np.array([[0.33, 0.33, 0.33], [0.67, 0.17, 0.17], [0.2, 0.3, 0.5]])
    labels = soft_labels("votes.csv", rounded, ("a", "b", "c"))
    np.testing.assert_allclose(labels.values.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(labels.values[0], 1 / 3, rtol=1e-6)
    with pytest.raises(ValueError, match=r"sum to 0\.98, not to 1"):
        soft_labels("votes.csv", np.array([[0.32, 0.33, 0.33]]), ("a", "b", "c"))
    many = np.full((1, 30), 0.03)  # sums to 0.9: too far, however many classes there are
    with pytest.raises(ValueError, match=r"sum to 0\.9, not to 1"):
        soft_labels("votes.csv", many, tuple(map(str, range(30))))


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
