"""Parquet files give the same collections as .npy and .csv files."""

import pickle

import numpy as np
import pytest

from aleator.own_data import read_collection
from aleator.own_data.collection.contents import item_digests
from tests.own_data.conftest import write

pa = pytest.importorskip("pyarrow", reason="needs the extra `ray`")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra `ray`")


def features_file(path, rows, rows_in_group=7, **columns):
    column = pa.array([list(map(float, row)) for row in rows], pa.list_(pa.float32()))
    pq.write_table(pa.table({"features": column, **columns}), path, row_group_size=rows_in_group)
    return path


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)


def test_features_are_those_of_an_array_in_every_slice(rows, tmp_path):
    collection = read_collection(features_file(tmp_path / "x.parquet", rows))
    assert (collection.kind, len(collection), collection.features) == ("features", 40, 3)
    for start in range(0, 40, 3):
        for stop in (start + 1, start + 7, start + 20, 40):
            np.testing.assert_array_equal(collection.raw(start, stop), rows[start : min(stop, 40)])
    assert collection.raw(5, 5).shape == (0, 3)
    other = pickle.loads(pickle.dumps(collection.items))
    np.testing.assert_array_equal(other[30:40], rows[30:])


def test_labels_stand_in_the_file_or_in_another_one(rows, tmp_path):
    labels = [f"class {i % 2}" for i in range(40)]
    inside = read_collection(features_file(tmp_path / "x.parquet", rows, label=labels))
    assert inside.labels.names == ("class 0", "class 1")
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    beside = read_collection(features_file(tmp_path / "z.parquet", rows), tmp_path / "y.npy")
    np.testing.assert_array_equal(beside.labels.values, inside.labels.values)


def test_a_column_id_names_the_rows_and_is_no_label(rows, tmp_path):
    ids = [f"P-{i}" for i in range(40)]
    alone = read_collection(features_file(tmp_path / "x.parquet", rows, id=ids))
    assert (alone.ids(), alone.labels) == (ids, None)
    votes = {"cat": [0.25] * 40, "dog": [0.75] * 40}
    soft = read_collection(features_file(tmp_path / "y.parquet", rows, id=ids, **votes))
    assert (soft.ids(), soft.labels.names) == (ids, ("cat", "dog"))
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    assert read_collection(tmp_path / "x.parquet", tmp_path / "y.npy").ids() == ids


def test_labels_of_another_file_are_joined_by_id(rows, tmp_path):
    path = features_file(tmp_path / "x.parquet", rows, id=[f"P-{i}" for i in range(40)])
    lines = "".join(f"P-{i},{'even' if i % 2 == 0 else 'odd'}\n" for i in reversed(range(40)))
    (tmp_path / "y.csv").write_text("id,label\n" + lines)
    labels = read_collection(path, tmp_path / "y.csv").labels
    assert [labels.names[number] for number in labels.values] == ["even", "odd"] * 20


def test_a_table_of_texts_is_that_of_a_csv_file(tmp_path):
    texts, labels = ["It purrs.", "It barks.", "Es muht, laut."], ["cat", "dog", "cow"]
    pq.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "t.parquet")
    lines = "".join(f'"{text}",{label}\n' for text, label in zip(texts, labels, strict=True))
    table = read_collection(write(tmp_path / "t.csv", f"text,label\n{lines}"))
    collection = read_collection(tmp_path / "t.parquet")
    assert list(collection.records()) == list(table.records())
    assert (item_digests(collection) == item_digests(table)).all()


def test_what_cannot_be_used_is_named(rows, tmp_path):
    bad = rows.astype(np.float64)
    for value in (np.nan, 1e300):  # beyond float32
        bad[33, 1] = value
        with pytest.raises(ValueError, match=r"row 34 of .*x\.parquet': its number 1 .*not finite, or too large"):
            read_collection(features_file(tmp_path / "x.parquet", bad)).raw(30, 40)
    with pytest.raises(ValueError, match="rows of different lengths"):
        read_collection(features_file(tmp_path / "r.parquet", [[1, 2], [1]]))
    # Lengths that add up to the right number must not shift rows.
    with pytest.raises(ValueError, match="rows of different lengths"):
        read_collection(features_file(tmp_path / "s.parquet", [[1, 2], [1], [1, 2, 3]]))
    with pytest.raises(ValueError, match=r"cannot be read as Parquet.*write it again"):
        read_collection(write(tmp_path / "d.parquet", "no such thing"))
    pq.write_table(pa.table({"features": ["a", "b"]}), tmp_path / "w.parquet")
    with pytest.raises(ValueError, match="holds no lists of numbers"):
        read_collection(tmp_path / "w.parquet")
