"""Raw items to encoder inputs: shapes, values, and files that are not what they seem."""

import io
import json
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from aleator.data.inputs import Inputs

IMAGES = Inputs("images", size=8)


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims so many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_every_way_to_give_an_image_gives_the_same(tmp_path):
    array = noise(8, 8, 3)
    path = tmp_path / "image.png"
    path.write_bytes(png(array))
    ways = [path, str(path), path.read_bytes(), Image.fromarray(array), array, torch.from_numpy(array).permute(2, 0, 1)]
    batch = IMAGES.prepare(ways)
    assert batch.shape == (6, 3, 8, 8)
    assert batch.dtype == torch.float32
    for image in batch:
        assert torch.equal(image, torch.from_numpy(array).permute(2, 0, 1) / 255)


def test_images_are_normalised_colour_by_colour():
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    plain, scaled = IMAGES.prepare([noise(8, 8, 3)]), Inputs("images", 8, mean, std).prepare([noise(8, 8, 3)])
    expected = (plain - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(scaled, expected)


def test_the_centre_of_a_long_image_is_kept():
    array = np.zeros((10, 30, 3), np.uint8)
    array[:, 7:23] = 200  # the middle square, and the pixels beside it that resampling sees
    assert torch.equal(IMAGES.load(array), torch.full((3, 8, 8), 200, dtype=torch.uint8))


def test_modes_become_rgb():
    grey = noise(8, 8)
    expected = torch.from_numpy(grey).expand(3, 8, 8)
    assert torch.equal(IMAGES.load(grey), expected)
    assert torch.equal(IMAGES.load(Image.fromarray(grey.astype(np.uint16) * 256)), expected)
    transparent = np.dstack([noise(8, 8, 3), np.zeros((8, 8), np.uint8)])
    assert torch.equal(IMAGES.load(png(transparent)), torch.full((3, 8, 8), 255, dtype=torch.uint8))
    palette = Image.fromarray(noise(8, 8, 3)).convert("P")
    assert torch.equal(IMAGES.load(palette), IMAGES.load(palette.convert("RGB")))


def test_a_photograph_stands_upright(tmp_path):
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    Image.fromarray(upright[::-1].copy()).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        for way in (tmp_path / "turned.png", opened):
            assert torch.equal(IMAGES.load(way), IMAGES.load(upright))


@pytest.mark.parametrize("size", [(20_000, 20_000), (2**31 - 1, 2**31 - 1), (8_000, 8_000)])
@pytest.mark.filterwarnings("default")  # as in a program that does not turn warnings into errors
def test_decompression_bombs_are_refused_before_decoding(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    with pytest.raises(ValueError, match=r"bomb\.png.*pixels"):
        IMAGES.load(path)


def test_the_pixel_limit_is_ours_to_set():
    with pytest.raises(ValueError, match="8 x 9 pixels, and 64 are allowed"):
        Inputs("images", 4, most_pixels=64).load(png(noise(9, 8, 3)))
    Inputs("images", 4, most_pixels=72).load(png(noise(9, 8, 3)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
        (b"just text", "not an image"),
        (png(noise(64, 64, 3))[:3000], "damaged"),
    ],
)
def test_files_that_are_no_whole_image_are_named(tmp_path, content, problem):
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"cat\.png'.*{problem}"):
        IMAGES.load(path)


def test_every_truncation_is_an_image_or_a_value_error():
    for data in (png(noise(16, 16, 3)), jpeg(noise(16, 16, 3))):
        refused = 0
        for length in range(0, len(data), 7):
            try:
                IMAGES.load(data[:length])
            except ValueError:
                refused += 1
        assert refused > len(data) // 14


def jpeg(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_wrong_suffix_does_no_harm(tmp_path):
    """Many collections hold JPEGs called .png; what the bytes say counts."""
    (tmp_path / "image.png").write_bytes(jpeg(noise(8, 8, 3)))
    assert torch.equal(IMAGES.load(tmp_path / "image.png"), IMAGES.load(jpeg(noise(8, 8, 3))))


def test_large_jpegs_are_decoded_small_and_nearly_alike():
    smooth = np.linspace(0, 255, 800).astype(np.uint8)
    array = np.broadcast_to(smooth[:, None, None], (800, 800, 3))
    from_file, whole = IMAGES.load(jpeg(array)).float(), IMAGES.load(np.ascontiguousarray(array)).float()
    assert (from_file - whole).abs().max() <= 3


def test_features():
    rows = torch.randn(5, 4, dtype=torch.float64)
    inputs = Inputs("features", features=4, mean=(1, 2, 3, 4), std=(2, 2, 2, 2))
    expected = ((rows - torch.tensor([1, 2, 3, 4])) / 2).float()
    for given in (rows, rows.numpy(), list(rows), [row.tolist() for row in rows]):
        torch.testing.assert_close(inputs.prepare(given), expected)
    with pytest.raises(ValueError, match=r"\(5, 3\).*rows of 4 numbers"):
        inputs.prepare(rows[:, :3])
    with pytest.raises(ValueError, match="not of one length"):
        inputs.prepare([[1.0, 2.0, 3.0, 4.0], [1.0]])
    rows[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"row 3.*not finite"):
        inputs.prepare(rows)


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        (["a.jpg"], "'a.jpg'"),
        (np.array([["x", "y"]]), "'x'"),
        (np.array([[1.0, None]], object), "None"),
        (np.array([[1, 2]], object), "'object'"),
    ],
)
def test_what_is_no_number_is_no_feature(items, shown):
    expected = f"features = {shown}: no number, and this model takes rows of 2 numbers; pass an array of numbers (B, 2)"
    with pytest.raises(ValueError, match=re.escape(expected)):
        Inputs("features", features=2).prepare(items)


def test_uint8_features_are_not_taken_for_pixels():
    rows = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert torch.equal(Inputs("features", features=2).prepare(rows), torch.tensor([[0.0, 255.0]]))


def test_text():
    assert Inputs("text").prepare(["one", "two"]) == ["one", "two"]
    with pytest.raises(ValueError, match="item 1 is empty"):
        Inputs("text").prepare(["one", "  "])
    with pytest.raises(ValueError, match="item 0 is not text"):
        Inputs("text").prepare([3])


@pytest.mark.parametrize(
    "inputs",
    [
        Inputs("images", 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        Inputs("features", features=3, mean=(0, 1, 2), std=(1, 1, 1)),
        Inputs("text"),
    ],
    ids=lambda inputs: inputs.kind,
)
def test_inputs_survive_json(inputs):
    assert Inputs.from_dict(json.loads(json.dumps(inputs.to_dict()))) == inputs


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"kind": "sound"}, "kind"),
        ({"kind": "images"}, "size"),
        ({"kind": "features"}, "features"),
        ({"kind": "images", "size": 8, "mean": [0.5] * 3}, "go together"),
        ({"kind": "images", "size": 8, "mean": [0.5] * 2, "std": [1.0] * 2}, "3 usable numbers"),
        ({"kind": "images", "size": 8, "mean": [0.5] * 3, "std": [1.0, 0.0, 1.0]}, "std"),
        ({"kind": "text", "colour": "blue"}, "colour"),
        ({}, "kind"),
    ],
)
def test_unusable_inputs_are_refused(facts, problem):
    with pytest.raises(ValueError, match=problem):
        Inputs.from_dict(facts)


def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match=r"nowhere\.png.*no such file"):
        IMAGES.prepare(["nowhere.png"])
