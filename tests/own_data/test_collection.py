"""Collections are read as they are, and every complaint names the file and the row."""

import numpy as np
import pytest
from PIL import Image

from aleator.own_data.collection import read_collection
from aleator.own_data.splits import labels_of, require_trainable, split


def image(path, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (colour, colour, colour)).save(path)


@pytest.fixture
def photos(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "cat/old/3.PNG", "dog/1.png", "dog/2.png"):
        image(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    (tmp_path / "photos" / ".hidden.png").write_text("hidden")
    return tmp_path / "photos"


def write(path, text):
    path.write_text(text)
    return path


def test_class_folders(photos):
    found = read_collection(photos)
    assert (found.kind, found.items) == (
        "images",
        ["cat/1.png", "cat/2.png", "cat/old/3.PNG", "dog/1.png", "dog/2.png"],
    )
    assert (found.labels.kind, found.labels.names) == ("classes", ("cat", "dog"))
    assert found.labels.values.tolist() == [0, 0, 0, 1, 1]
    assert found.ignored == 1
    assert found.raw(0, 1) == [str(photos / "cat/1.png")]
    assert list(found.facts())[3] == {"id": "dog/1.png", "path": "dog/1.png", "label": "dog"}


def test_a_folder_without_classes_has_no_labels(photos):
    found = read_collection(photos / "dog")
    assert found.labels is None
    with pytest.raises(ValueError, match="has no labels"):
        require_trainable(found)


def test_csv_of_paths_with_labels(photos):
    path = write(photos / "items.csv", 'path,label\ncat/1.png,cat\ndog/1.png,"dog, old"\n')
    found = read_collection(path)
    assert found.items == ["cat/1.png", "dog/1.png"]
    assert found.labels.names == ("cat", "dog, old")
    assert found.raw(1, 2) == [str(photos / "dog/1.png")]


def test_csv_with_groups(photos):
    path = write(photos / "items.csv", "path,group\ncat/1.png,7\ncat/2.png,7\ndog/1.png,8\ndog/2.png,8\n")
    found = read_collection(path)
    assert (found.labels.kind, found.labels.values.tolist()) == ("groups", [0, 0, 1, 1])


def test_csv_with_soft_labels(photos):
    path = write(photos / "items.csv", "path,cat,dog\ncat/1.png,0.75,0.25\ndog/1.png,0,1\n")
    found = read_collection(path)
    assert (found.labels.kind, found.labels.names) == ("soft", ("cat", "dog"))
    np.testing.assert_allclose(found.labels.values, [[0.75, 0.25], [0, 1]])
    assert list(found.facts()) == [
        {"id": "cat/1.png", "path": "cat/1.png", "label": "cat", "labels": {"cat": 0.75, "dog": 0.25}},
        {"id": "dog/1.png", "path": "dog/1.png", "label": "dog", "labels": {"dog": 1.0}},
    ]


def test_csv_of_pairs(photos):
    path = write(photos / "pairs.csv", "first,second\ncat/1.png,cat/2.png\ndog/1.png,cat/1.png\n")
    found = read_collection(path)
    assert found.items == ["cat/1.png", "cat/2.png", "dog/1.png"]
    assert (found.labels.kind, found.labels.values.tolist()) == ("pairs", [[0, 1], [2, 0]])


def test_text(tmp_path):
    lines = write(tmp_path / "lines.txt", "one\r\ntwo \u2028 still two\n")
    assert read_collection(lines).items == ["one", "two \u2028 still two"]
    table = write(tmp_path / "table.csv", '\ufefftext,label\n"said ""no""\nand left",a\nb,b\n')
    found = read_collection(table)
    assert found.items == ['said "no"\nand left', "b"]
    assert list(found.facts())[1] == {"id": 1, "text": "b", "label": "b"}


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


def test_the_digest_tells_collections_apart(photos):
    before = read_collection(photos).digest()
    assert read_collection(photos).digest() == before
    image(photos / "dog/3.png")
    assert read_collection(photos).digest() != before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("path,label\n", "has no row"),
        ("file,label\ncat/1.png,cat\n", "name one of them path or text"),
        ("path,label\ncat/1.png,cat\ncat/9.png,cat\n", r"row 3 of .*items\.csv.*cat/9\.png is not there"),
        ("path,label\ncat/1.png,cat\n,cat\n", r"row 3 of .*items\.csv.*is empty"),
        ("path,label\ncat/1.png,cat\ncat/1.png,dog\n", "row 3.*is in row 2 too"),
        ("path,label\ncat/1.png\n", "row 2.*has 1 fields, and the header has 2"),
        ("path,label\ncat/1.png,\n", r"label = 'row 2 of .*is empty"),
        ("path,label,group\ncat/1.png,a,b\n", "a label and a group"),
        ("path,path\ncat/1.png,a\n", "names a column twice"),
        ("path,colour\ncat/1.png,red\n", "column colour is not known"),
        ("path,cat,dog\ncat/1.png,0.5,0.5\ncat/2.png,0.5,0.4\n", r"row 3 of .*items\.csv.*sum to 0\.9, not to 1"),
        ("path,cat,dog\ncat/1.png,1.5,-0.5\n", r"row 2 of .*negative"),
        ("path,cat,dog\ncat/1.png,nan,1\n", r"row 2 of .*not finite"),
        ("path,cat,dog\ncat/1.png,most,some\n", r"'most' in row 2 of .*is not a probability"),
        ("first,second\ncat/1.png,cat/1.png\n", "row 2.*with itself"),
        ("first,second\ncat/1.png,cat/7.png\n", r"row 2.*cat/7\.png is not there"),
        ('path,label\n"cat/1.png,cat\n', "is no CSV"),
    ],
)
def test_bad_tables_name_file_and_row(photos, text, problem):
    with pytest.raises(ValueError, match=problem):
        read_collection(write(photos / "items.csv", text))


def test_bad_folders(tmp_path, photos):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty.*holds no image"):
        read_collection(tmp_path / "empty")
    (photos / "bird").mkdir()
    with pytest.raises(ValueError, match=r"photos/bird.*holds no image"):
        read_collection(photos)
    (photos / "bird").rmdir()
    image(photos / "loose.png")
    with pytest.raises(ValueError, match=r"loose\.png.*beside class folders"):
        read_collection(photos)
    unlabelled = read_collection(photos, labels_optional=True)
    assert unlabelled.labels is None
    assert len(unlabelled) == 6
    with pytest.raises(ValueError, match="no such file or folder"):
        read_collection(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="unknown ending"):
        read_collection(write(tmp_path / "data.parquet", "x"))
    with pytest.raises(ValueError, match=r"labels.*go with \.npy"):
        read_collection(photos, tmp_path / "labels.npy")


def test_bad_arrays(tmp_path):
    x = tmp_path / "x.npy"
    np.save(x, np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"x\.npy.*cannot be read.*Python objects"):
        read_collection(x)
    np.save(x, np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(3,\) is not a matrix"):
        read_collection(x)
    np.save(x, np.asfortranarray(np.zeros((3, 2))))
    with pytest.raises(ValueError, match="column by column"):
        read_collection(x)
    rows = np.zeros((3, 2))
    rows[1, 1] = np.inf
    np.save(x, rows)
    with pytest.raises(ValueError, match=r"row 1 of .*x\.npy.*not finite"):
        read_collection(x).raw(0, 3)
    write(x, "damaged")
    with pytest.raises(ValueError, match="cannot be read"):
        read_collection(x)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.zeros(3, int), r"y\.npy.*has 3 rows, and .*x\.npy has 4"),
        (np.zeros(4), "is not labels"),
        (np.array([[0.5, 0.5]] * 3 + [[0.5, 0.6]]), r"row 3 of .*y\.npy.*sum to 1\.1"),
    ],
)
def test_bad_label_arrays(tmp_path, labels, problem):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(ValueError, match=problem):
        read_collection(tmp_path / "x.npy", tmp_path / "y.npy")


def test_pairs_of_rows_that_are_not_there(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    pairs = write(tmp_path / "pairs.csv", "first,second\n0,1\n2,4\n")
    with pytest.raises(ValueError, match=r"'4' in row 3 of .*no row of the features"):
        read_collection(tmp_path / "x.npy", pairs)


def test_text_that_is_not_text(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_collection(tmp_path / "t.txt")
    with pytest.raises(ValueError, match=r"line 2 of .*is empty"):
        read_collection(write(tmp_path / "gap.txt", "one\n\nthree\n"))


def labelled(tmp_path, values):
    np.save(tmp_path / "x.npy", np.zeros((len(values), 2)))
    np.save(tmp_path / "y.npy", np.asarray(values))
    return read_collection(tmp_path / "x.npy", tmp_path / "y.npy")


def test_a_class_with_one_item_is_named(tmp_path, photos):
    image(photos / "bird/only.png")
    with pytest.raises(ValueError, match=r"class bird of .*photos.*one item only \(bird/only\.png\)"):
        require_trainable(read_collection(photos))
    with pytest.raises(ValueError, match=r"class 3 .*row 2"):
        require_trainable(labelled(tmp_path, [1, 1, 3, 1]))
    with pytest.raises(ValueError, match="one class only"):
        require_trainable(labelled(tmp_path, [1, 1, 1]))
    with pytest.raises(ValueError, match=r"class 1 .*has no item"):
        require_trainable(labelled(tmp_path, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))


def test_a_split_holds_out_its_share_of_every_class(tmp_path):
    values = np.repeat([0, 1, 2], [100, 50, 3])
    found = labelled(tmp_path, values)
    parts = split(found, found.labels, 0.2, seed=1)
    everything = np.concatenate([parts.train, parts.calibration, parts.test])
    assert sorted(everything.tolist()) == list(range(153))
    held = values[np.concatenate([parts.calibration, parts.test])]
    assert np.bincount(held, minlength=3).tolist() == [20, 10, 0]
    assert np.bincount(values[parts.calibration]).tolist() == [10, 5]
    again = split(found, found.labels, 0.2, seed=1)
    assert np.array_equal(parts.test, again.test)
    assert not np.array_equal(parts.test, split(found, found.labels, 0.2, seed=2).test)


def test_groups_and_pairs_are_held_out_whole(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((91, 2)))
    groups = np.repeat(np.arange(30), 3)
    rows = "\n".join(str(g) for g in groups)
    found = read_collection(tmp_path / "x.npy", write(tmp_path / "g.csv", f"group\n{rows}\n99\n"))
    parts = split(found, found.labels, 0.4, seed=0)
    assert 90 not in np.concatenate([parts.train, parts.calibration, parts.test])  # the group of one
    sets = [set(found.labels.values[part].tolist()) for part in (parts.train, parts.calibration, parts.test)]
    assert [len(s) for s in sets] == [18, 6, 6]
    assert len(set.union(*sets)) == 30

    links = "\n".join(f"{3 * g},{3 * g + 1}\n{3 * g + 1},{3 * g + 2}" for g in range(30))
    pairs = read_collection(tmp_path / "x.npy", write(tmp_path / "p.csv", f"first,second\n{links}\n"))
    parts = split(pairs, pairs.labels, 0.4, seed=0)
    kept = [labels_of(pairs.labels, part) for part in (parts.train, parts.calibration, parts.test)]
    assert [len(k.values) for k in kept] == [36, 12, 12]  # no pair is torn apart
    first = labels_of(pairs.labels, parts.test).values[0]
    assert groups[parts.test[first[0]]] == groups[parts.test[first[1]]]


def test_soft_labels_of_a_part_leave_out_classes_that_it_lacks(tmp_path):
    found = labelled(tmp_path, np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0]]))
    part = labels_of(found.labels, np.array([0, 2]))
    assert part.names == ("0", "1")
    assert part.values.tolist() == [[1, 0], [0, 1]]


def test_too_few_items_to_hold_out(tmp_path):
    found = labelled(tmp_path, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="too few items"):
        split(found, found.labels, 0.2, seed=0)
