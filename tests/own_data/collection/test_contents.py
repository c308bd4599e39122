"""What an item is: its whole content, under any name."""

import shutil

import numpy as np
import pytest
from PIL import Image

from aleator.own_data import Collection, read_collection
from aleator.own_data.collection.contents import item_digests, items_made_from


def test_equal_content_has_equal_digests(photos, tmp_path):
    collection = read_collection(photos)
    digests = item_digests(collection)
    assert len(np.unique(digests)) == len(collection)
    shutil.copy(photos / collection.items[5], tmp_path / "renamed.png")
    assert item_digests(read_collection(tmp_path))[0] == digests[5]
    large = bytes(range(256)) * 400
    for name, data in (("a.bmp", large), ("b.bmp", large[:-1] + b"!"), ("c.bmp", large + b"!")):
        (tmp_path / name).write_bytes(data)
    assert len(np.unique(item_digests(read_collection(tmp_path)))) == 4


def test_texts_and_features_have_digests(features, tmp_path):
    texts = Collection("text", tmp_path, ["It purrs.", "It barks.", "It purrs."])
    a, b, c = item_digests(texts)
    assert a == c != b
    rows = np.load(features / "x.npy")
    np.save(tmp_path / "reversed.npy", rows[::-1].copy())
    first = item_digests(read_collection(features / "x.npy"))
    assert np.array_equal(item_digests(read_collection(tmp_path / "reversed.npy")), first[::-1])


@pytest.mark.parametrize("ending", ["bmp", "tiff", "ppm"])
def test_images_with_plain_borders_are_not_one(tmp_path, ending):
    """Of these formats 16 kB at either end, and the size, are the same: a white border."""
    for i in range(4):
        picture = Image.new("RGB", (150, 150), "white")
        picture.paste((60 * i, 0, 0), (70, 70, 80, 80))
        picture.save(tmp_path / f"{i}.{ending}")
    assert len({path.stat().st_size for path in tmp_path.iterdir()}) == 1
    assert len(np.unique(item_digests(read_collection(tmp_path)))) == 4


def test_names_order_and_contents_are_told_apart(pets):
    before = read_collection(pets)
    sources = items_made_from(before, item_digests(before))
    assert items_made_from(read_collection(pets), item_digests(read_collection(pets))) == sources
    (pets / "dog/2.png").rename(pets / "dog/3.png")
    after = read_collection(pets)
    now = items_made_from(after, item_digests(after))
    assert (now["names"] == sources["names"], now["contents"] == sources["contents"]) == (False, True)
    with open(pets / "dog/3.png", "r+b") as file:
        file.write(b"!")
    assert items_made_from(after, item_digests(after))["contents"] != sources["contents"]


def test_a_file_that_is_gone_is_like_no_other(pets):
    collection = read_collection(pets)
    for name in ("cat/1.png", "dog/1.png"):
        (pets / name).unlink()
    assert len(np.unique(item_digests(collection))) == 3  # two that are gone; the others are copies of each other
