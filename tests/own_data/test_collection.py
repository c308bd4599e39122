"""Collections are read as they are; an error names the file and the row."""

import numpy as np
import pytest

from aleator.own_data import read_collection
from aleator.own_data.splits import require_trainable
from tests.own_data.conftest import image, write


def test_class_folders(pets):
    collection = read_collection(pets)
    assert (collection.kind, collection.items) == (
        "images",
        ["cat/1.png", "cat/2.png", "cat/old/3.PNG", "dog/1.png", "dog/2.png"],
    )
    assert (collection.labels.kind, collection.labels.names) == ("classes", ("cat", "dog"))
    assert collection.labels.values.tolist() == [0, 0, 0, 1, 1]
    assert collection.ignored == 1
    assert collection.raw(0, 1) == [str(pets / "cat/1.png")]
    assert list(collection.records())[3] == {"id": "dog/1.png", "path": "dog/1.png", "label": "dog"}


def test_a_folder_without_classes_has_no_labels(pets):
    collection = read_collection(pets / "dog")
    assert collection.labels is None
    with pytest.raises(ValueError, match="has no labels"):
        require_trainable(collection)


def test_csv_of_paths_with_labels(pets):
    path = write(pets / "items.csv", 'path,label\ncat/1.png,cat\ndog/1.png,"dog, old"\n')
    collection = read_collection(path)
    assert collection.items == ["cat/1.png", "dog/1.png"]
    assert collection.labels.names == ("cat", "dog, old")
    assert collection.raw(1, 2) == [str(pets / "dog/1.png")]


def test_csv_with_groups(pets):
    path = write(pets / "items.csv", "path,group\ncat/1.png,7\ncat/2.png,7\ndog/1.png,8\ndog/2.png,8\n")
    collection = read_collection(path)
    assert (collection.labels.kind, collection.labels.values.tolist()) == ("groups", [0, 0, 1, 1])


def test_csv_with_soft_labels(pets):
    path = write(pets / "items.csv", "path,cat,dog\ncat/1.png,0.75,0.25\ndog/1.png,0,1\n")
    collection = read_collection(path)
    assert (collection.labels.kind, collection.labels.names) == ("soft", ("cat", "dog"))
    np.testing.assert_allclose(collection.labels.values, [[0.75, 0.25], [0, 1]])
    assert list(collection.records()) == [
        {"id": "cat/1.png", "path": "cat/1.png", "label": "cat", "labels": {"cat": 0.75, "dog": 0.25}},
        {"id": "dog/1.png", "path": "dog/1.png", "label": "dog", "labels": {"dog": 1.0}},
    ]


def test_csv_of_pairs(pets):
    path = write(pets / "pairs.csv", "first,second\ncat/1.png,cat/2.png\ndog/1.png,cat/1.png\n")
    collection = read_collection(path)
    assert collection.items == ["cat/1.png", "cat/2.png", "dog/1.png"]
    assert (collection.labels.kind, collection.labels.values.tolist()) == ("pairs", [[0, 1], [2, 0]])


def test_text(tmp_path):
    lines = write(tmp_path / "lines.txt", "one\r\ntwo \u2028 still two\n")
    assert read_collection(lines).items == ["one", "two \u2028 still two"]
    table = write(tmp_path / "table.csv", '\ufefftext,label\n"said ""no""\nand left",a\nb,b\n')
    collection = read_collection(table)
    assert collection.items == ['said "no"\nand left', "b"]
    assert list(collection.records())[1] == {"id": 1, "text": "b", "label": "b"}


def test_the_digest_tells_collections_apart(pets):
    before = read_collection(pets).digest()
    assert read_collection(pets).digest() == before
    image(pets / "dog/3.png")
    assert read_collection(pets).digest() != before


def test_bad_folders(tmp_path, pets):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty.*holds no image"):
        read_collection(tmp_path / "empty")
    (pets / "bird").mkdir()
    with pytest.raises(ValueError, match=r"photos/bird.*holds no image"):
        read_collection(pets)
    (pets / "bird").rmdir()
    image(pets / "loose.png")
    with pytest.raises(ValueError, match=r"loose\.png.*beside class folders"):
        read_collection(pets)
    unlabelled = read_collection(pets, labels_optional=True)
    assert unlabelled.labels is None
    assert len(unlabelled) == 6
    with pytest.raises(ValueError, match="no such file or folder"):
        read_collection(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="unknown ending"):
        read_collection(write(tmp_path / "data.parquet", "x"))
    with pytest.raises(ValueError, match=r"labels.*go with \.npy"):
        read_collection(pets, tmp_path / "labels.npy")
