"""Collections on an S3 server: the same items, labels and contents as on disk."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from aleator.own_data import read_collection
from aleator.own_data.auditing.audit import equal_contents
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.object_store import ObjectPath


@pytest.fixture
def there(bucket_url):
    """Copies a file or folder to the server, and returns its place."""

    def copy(path):
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file():
                name = "" if file == path else f"/{file.relative_to(path).as_posix()}"
                ObjectPath.parse(f"{bucket_url}-{path.name}{name}").upload(file)
        return f"{bucket_url}-{path.name}"

    return copy


def test_a_folder_of_images_has_the_same_items_labels_and_contents(there, photos):
    here, remote = read_collection(photos), read_collection(there(photos))
    assert remote.items == here.items
    assert remote.labels.names == here.labels.names
    assert (remote.labels.values == here.labels.values).all()
    assert item_digests(remote).tolist() == item_digests(here).tolist()
    assert [item.open().read() for item in remote.raw(3, 6)] == [Path(path).read_bytes() for path in here.raw(3, 6)]


def test_parquet_features_are_read_in_parts(there, tmp_path):
    rows = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    table = pa.table({"features": list(rows), "label": [f"c{i % 2}" for i in range(50)]})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=8)
    place = there(tmp_path / "x.parquet")
    remote = read_collection(place)
    assert (remote.raw(5, 21) == rows[5:21]).all()
    assert remote.labels.names == ("c0", "c1")
    assert (pickle.loads(pickle.dumps(remote)).raw(5, 21) == rows[5:21]).all()
    assert (item_digests(remote) == item_digests(read_collection(place))).all()


def test_a_parquet_table_of_paths_names_images_beside_it(there, photos, tmp_path):
    place = there(photos)
    parquet.write_table(pa.table({"path": ["red/00.png", "blue/01.png"]}), tmp_path / "list.parquet")
    ObjectPath.parse(f"{place}/list.parquet").upload(tmp_path / "list.parquet")
    remote = read_collection(f"{place}/list.parquet")
    assert [item.open().read() for item in remote.raw(0, 2)] == [
        (photos / path).read_bytes() for path in ("red/00.png", "blue/01.png")
    ]


def test_options_may_have_the_credentials_which_are_never_shown(object_store, there, photos, monkeypatch):
    place = there(photos)
    options = {name.lower(): value for name, value in object_store.environment.items()}
    options = {**options, "aws_endpoint": options.pop("aws_endpoint_url"), "allow_http": "true"}
    for name in object_store.environment:
        monkeypatch.delenv(name)
    collection = read_collection(place, storage_options=options)
    assert len(collection) == 60
    assert "hunter2" not in repr(collection)
    collection.raw(0, 1)[0].open()


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("s3://collection/nothing-here", "there is no such file or folder"),
        ("s3://collection", "names nothing in a bucket"),
        ("s3://ann:secret@collection/x", "holds a user"),
    ],
)
def test_what_is_not_there_is_said(object_store, place, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        read_collection(place)
    assert "secret" not in str(caught.value)


def test_other_files_and_options_have_a_way_out(there, tmp_path, object_store):
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match="is not read from an object store"):
        read_collection(there(tmp_path / "x.npy"))
    with pytest.raises(ValueError, match="are for object stores"):
        read_collection(tmp_path / "x.npy", storage_options={"aws_region": "x"})
    with pytest.raises(ValueError, match="storage_options = 'colour': not known here"):
        read_collection("s3://collection/x", storage_options={"colour": "red"})


def test_a_store_that_does_not_answer_is_a_connection_error(monkeypatch):
    monkeypatch.setattr("aleator.own_data.collection.object_store._ATTEMPTS", 1)
    options = {
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_access_key_id": "ann",
        "aws_secret_access_key": "hunter2hunter2",
    }
    with pytest.raises(ConnectionError, match="does not answer") as caught:
        read_collection("s3://bucket/name", storage_options=options)
    assert "hunter2" not in str(caught.value)


def test_equal_images_are_found(there, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copy(tmp_path / "photos/red/03.png", tmp_path / "photos/blue/99.png")
    here, remote = read_collection(tmp_path / "photos"), read_collection(there(tmp_path / "photos"))
    pairs = equal_contents(item_digests(remote))
    assert [[remote.items[i] for i in pair] for pair in pairs] == [["blue/99.png", "red/03.png"]]
    assert (pairs == equal_contents(item_digests(here))).all()
