"""Mirrored images: the test tells letters from things."""

import numpy as np
from PIL import Image, ImageDraw

from aleator.own_data import read_collection
from aleator.own_data.learning.mirroring import mirror_test


def _save(folder, name, draw, count, seed):
    generator = np.random.default_rng(seed)
    (folder / name).mkdir(parents=True)
    for i in range(count):
        image = Image.new("L", (24, 24))
        draw(ImageDraw.Draw(image), *generator.integers(-2, 3, 2))
        pixels = np.asarray(image) + generator.normal(0, 20, (24, 24))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")


def _hook(left):
    """A stem with a bow on one side: b or d."""

    def draw(pen, dx, dy):
        stem = 7 if left else 16
        pen.line((stem + dx, 3 + dy, stem + dx, 20 + dy), fill=255, width=3)
        pen.ellipse((7 + dx, 11 + dy, 16 + dx, 20 + dy), outline=255, width=2)

    return draw


def _symmetric(round_):
    def draw(pen, dx, dy):
        shape = pen.ellipse if round_ else pen.rectangle
        shape((6 + dx, 6 + dy, 17 + dx, 17 + dy), fill=255)

    return draw


def test_mirrored_letters_are_other_letters(tmp_path):
    _save(tmp_path, "b", _hook(True), 40, 0)
    _save(tmp_path, "d", _hook(False), 40, 1)
    collection = read_collection(tmp_path)
    plain, mirrored = mirror_test(collection, collection.labels)
    assert plain > 0.9
    assert mirrored < 0.5


def test_mirrored_symmetric_shapes_stay_what_they_are(tmp_path):
    _save(tmp_path, "disc", _symmetric(True), 40, 0)
    _save(tmp_path, "square", _symmetric(False), 40, 1)
    collection = read_collection(tmp_path)
    plain, mirrored = mirror_test(collection, collection.labels)
    assert mirrored > 0.85 * plain
