"""Collections are read as they are; an error names the file and the row."""

import os

import numpy as np
import pytest

from aleator.own_data import read_collection, read_labels_of
from aleator.own_data.learning.splits import require_trainable
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


def test_an_id_beside_soft_labels_is_no_class(pets):
    path = write(pets / "items.csv", "id,path,cat,dog\n7,cat/1.png,0.75,0.25\n8,dog/1.png,0,1\n")
    collection = read_collection(path)
    assert collection.labels.names == ("cat", "dog")
    assert collection.ids() == ["cat/1.png", "dog/1.png"]  # the path of an image is its id


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
        read_collection(write(tmp_path / "data.arrow", "x"))
    with pytest.raises(ValueError, match=r"labels.*does not name the images.*\.csv"):
        read_collection(pets, tmp_path / "labels.npy")


def test_an_image_whose_name_is_no_unicode_is_told_of_and_left_out(pets):
    picture = (pets / "dog" / "1.png").read_bytes()
    with open(os.fsencode(pets / "cat") + b"/caf\xe9.png", "wb") as file:
        file.write(picture)
    with pytest.raises(ValueError, match="has a name that is not UTF-8; rename it"):
        read_collection(pets)
    collection = read_collection(pets, strict=False)
    assert len(collection) == 5
    (problem,) = collection.problems
    assert problem.item.endswith(r"cat/caf\udce9.png")
    assert problem.reason == "has a name that is not UTF-8"
    assert problem.item.encode()  # it can be printed


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".CSV", ".TSV"])
def test_tables_of_labels_have_one_of_these_endings(pets, tmp_path, ending):
    rows = ["id,label", *(f"{path},{path[:3]}" for path in read_collection(pets).items)]
    text = "\n".join(rows).replace(",", "\t" if ending.lower() == ".tsv" else ",")
    table = write(tmp_path / f"labels{ending}", text)
    assert read_collection(pets, table).labels.names == ("cat", "dog")
    records = [{"id": row.split(",")[0]} for row in rows[1:]]
    assert read_labels_of(table, records, "pets.safetensors").names == ("cat", "dog")


def test_problems_of_a_folder_are_listed_and_left_out(pets):
    (pets / "bird").mkdir()
    image(pets / "loose.png")
    (pets / "cat" / "raw.NEF").write_bytes(b"raw")
    collection = read_collection(pets, strict=False)
    assert len(collection) == 5
    assert {problem.item.removeprefix(f"{pets}/"): problem.way_out for problem in collection.problems} == {
        "cat/raw.NEF": "convert it to JPEG, PNG or TIFF",
        "loose.png": "move it into the folder of its class",
        "bird": "fill or remove the folder",
    }
    assert collection.ignored == 1
    with pytest.raises(ValueError, match="3 of 8 items cannot be used"):
        read_collection(pets)


def test_problems_of_a_table_are_listed_and_left_out(pets):
    rows = ("cat/1.png,cat", "cat/9.png,cat", ",cat", "dog/1.png,", "cat/1.png,dog", "dog/2.png,dog")
    collection = read_collection(write(pets / "t.csv", "\n".join(("path,label", *rows))), strict=False)
    assert collection.items == ["cat/1.png", "dog/2.png"]
    assert collection.labels.names == ("cat", "dog")
    assert [problem.reason for problem in collection.problems] == [
        "path: cat/9.png is not there",
        "path: is empty",
        "label: is empty",
        "path: cat/1.png is in row 2 too",
    ]
    with pytest.raises(ValueError, match="2 of 2 items"):
        read_collection(write(pets / "t.csv", "path,label\na.png,a\nb.png,b\n"), strict=False)


def test_texts_keep_their_numbers(tmp_path):
    lines = read_collection(write(tmp_path / "lines.txt", "one\n\nthree\n"), strict=False)
    assert [record["id"] for record in lines.records()] == [0, 2]
    table = read_collection(write(tmp_path / "t.csv", "text,label\none,a\n  ,b\nthree,b\n"), strict=False)
    assert [(record["id"], record["label"]) for record in table.records()] == [(0, "a"), (2, "b")]


def test_bad_pairs_are_left_out(pets):
    text = "first,second\ncat/1.png,cat/2.png\ncat/1.png,nowhere.png\ndog/1.png,dog/1.png\ndog/2.png,dog/1.png\n"
    collection = read_collection(write(pets / "pairs.csv", text), strict=False)
    assert collection.items == ["cat/1.png", "cat/2.png", "dog/2.png", "dog/1.png"]
    assert collection.labels.values.tolist() == [[0, 1], [2, 3]]
    assert len(collection.problems) == 2


def test_a_file_of_labels_is_joined_by_path(pets):
    labels = write(pets.parent / "labels.csv", "path;label\ndog/2.png;x\n./cat/1.png;y\nother.png;z\ncat/2.png;\n")
    collection = read_collection(pets, labels, strict=False)
    assert [(record["id"], record["label"]) for record in collection.records()] == [
        ("cat/1.png", "y"),
        ("dog/2.png", "x"),
    ]
    assert [problem.reason for problem in collection.problems] == [
        "is empty",
        f"has no row in labels.csv, where paths start in {pets}",
        f"has no row in labels.csv, where paths start in {pets}",
    ]
    pairs = write(pets.parent / "pairs.csv", "first,second\ndog/2.png,dog/1.png\n")
    assert read_collection(pets, pairs).labels.values.tolist() == [[4, 3]]


def test_parts_of_a_data_set_are_no_classes(tmp_path):
    for part in ("train", "Val"):
        for kind in ("cat", "dog"):
            image(tmp_path / part / kind / "1.png")
    with pytest.raises(ValueError, match="Val, train look like parts of a data set, not classes; name one of them"):
        read_collection(tmp_path)
    assert read_collection(tmp_path / "train").labels.names == ("cat", "dog")


def test_labels_that_a_loose_image_costs_are_told(tmp_path):
    image(tmp_path / "cat/1.png")
    image(tmp_path / "loose.png")
    collection = read_collection(tmp_path, labels_optional=True)
    assert collection.labels is None
    assert "because loose.png lies beside them: no item has a label; move it to another place" in collection.note
    assert read_collection(tmp_path / "cat", labels_optional=True).note == ""


def test_spaces_around_a_label_do_not_count(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("text,label\na,cat\nb,cat \nc, dog\n")
    assert read_collection(path).labels.names == ("cat", "dog")


def test_one_path_written_in_two_ways_is_one_item(pets):
    text = "first,second\n./cat/1.png,cat/2.png\ncat/1.png,dog/1.png\ncat/1.png,./cat/1.png\n"
    collection = read_collection(write(pets / "pairs.csv", text), strict=False)
    assert collection.items == ["./cat/1.png", "cat/2.png", "dog/1.png"]
    assert collection.labels.values.tolist() == [[0, 1], [0, 2]]
    assert [problem.reason for problem in collection.problems] == ["pairs: pairs an item with itself"]
    twice = write(pets / "items.csv", "path,label\ncat/1.png,x\n./cat/1.png,y\n")
    with pytest.raises(ValueError, match=r"cat/1\.png is in row 2 too"):
        read_collection(twice)
