"""Image files of many formats; what cannot be read is named with its way out."""

import io

import numpy as np
import pytest
from PIL import Image, features

from aleator.data import IMAGE_SUFFIXES, Inputs, as_rgb, images, open_image, thumbnail

SMOOTH = np.broadcast_to(np.linspace(0, 255, 64).astype(np.uint8)[:, None, None], (64, 64, 3)).copy()


def written(format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(SMOOTH).save(buffer, format)
    return buffer.getvalue()


def nearly_smooth(data: bytes) -> bool:
    image = Inputs("images", size=64).load(data).permute(1, 2, 0).numpy()
    return abs(image.astype(int) - SMOOTH).max() < 16


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot read AVIF")
def test_avif_is_read():
    assert nearly_smooth(written("AVIF"))
    assert ".avif" in IMAGE_SUFFIXES


def test_heic_is_read_with_its_package():
    pytest.importorskip("pillow_heif")
    assert "HEIF" in images.readable_formats()
    assert nearly_smooth(written("HEIF"))


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", r"HEIC picture.*pip install 'aleator\[heic\]'"),
        (b"\0\0\0\x18ftypavif\0\0\0\0", r"AVIF picture.*pip install -U pillow"),
        (b"", "is empty"),
    ],
)
def test_formats_that_are_missing_say_what_to_install(monkeypatch, tmp_path, start, problem):
    monkeypatch.setattr(images, "readable_formats", lambda: ("PNG", "JPEG"))
    (tmp_path / "picture.heic").write_bytes(start)
    for item in (start, tmp_path / "picture.heic"):
        with pytest.raises(ValueError, match=problem):
            open_image(item)


def test_as_rgb_takes_the_levels_that_it_is_given():
    deep = Image.fromarray(np.array([[0, 1023, 4095]], np.uint16))
    assert np.asarray(as_rgb(deep))[0, :, 0].tolist() == [0, 63, 255]
    assert np.asarray(as_rgb(deep, whole_levels=(0, 1023)))[0, :, 0].tolist() == [0, 255, 255]


def test_a_thumbnail_keeps_the_shape_of_the_image(tmp_path):
    path = tmp_path / "wide.png"
    Image.fromarray(SMOOTH[:32]).save(path)
    small = thumbnail(path, 16)
    assert small.shape == (8, 16, 3)
    assert np.all(np.diff(small[:, 0, 0].astype(int)) > 0)
    assert thumbnail(path, 100).shape == (32, 64, 3)  # never larger than the image
