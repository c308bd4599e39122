"""Deep images become bytes by the same rule for a whole collection."""

import struct

import numpy as np
import pytest
from PIL import Image

from aleator.data import Inputs
from aleator.data import levels as module
from aleator.data.levels import bytes_of_values, levels_of_range, measure_levels

RAMP = np.arange(4096).reshape(64, 64)  # twelve bits
SAME_SIZE = Inputs("images", size=64)


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 255, True, (0, 255)),
        (9, 256, True, (0, 1023)),
        (0, 4095, True, (0, 4095)),
        (0, 4096, True, (0, 16383)),
        (0, 65535, True, (0, 65535)),
        (0, 2**40, True, (0, 2**32 - 1)),
        (-1000, 3000, True, (-1000, 3000)),
        (0.0, 1.0, False, (0.0, 1.0)),
        (0.0, 1.5, False, (0.0, 1.5)),
        (7.0, 7.0, False, (7.0, 8.0)),
    ],
)
def test_levels(low, high, whole, expected):
    assert levels_of_range(low, high, whole) == expected


def test_bytes_stand_for_equally_many_values():
    counts = np.bincount(bytes_of_values(RAMP, (0, 4095)).ravel(), minlength=256)
    assert (counts == 16).all()


def test_floats_are_clipped_and_gaps_are_black():
    values = np.array([np.nan, -np.inf, -3.0, 0.0, 0.5, 1.0, 9.0, np.inf])
    assert bytes_of_values(values, (0.0, 1.0)).tolist() == [0, 0, 0, 0, 128, 255, 255, 255]
    assert bytes_of_values(np.full((2, 2), np.nan)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("ending", ["tif", "png"])
@pytest.mark.parametrize("bits", [12, 16])
def test_whole_numbers_keep_256_levels(tmp_path, ending, bits):
    """Twelve bits in a 16-bit file had 16 levels."""
    path = tmp_path / f"ramp.{ending}"
    Image.fromarray((RAMP << (bits - 12)).astype(np.uint16)).save(path)
    image = SAME_SIZE.load(path)
    assert image[0].tolist() == (RAMP >> 4).tolist()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (4000.0, -1000.0)])
def test_floating_point_tiffs_are_not_black(tmp_path, scale, shift):
    path = tmp_path / "ramp.tif"
    Image.fromarray((RAMP / 4095 * scale + shift).astype(np.float32)).save(path)
    image = SAME_SIZE.load(path)
    assert abs(image[0].double().numpy() - RAMP / 4095 * 255).max() <= 0.51


def test_a_tiff_that_declares_twelve_bits_is_believed(tmp_path):
    path = tmp_path / "dark.tif"
    _write_packed_12_bits(path, RAMP % 64)
    assert SAME_SIZE.load(path)[0].tolist() == ((RAMP % 64) >> 4).tolist()


def test_one_black_and_white_for_a_collection(tmp_path):
    """A dark image stays darker than a bright one."""
    paths = [str(tmp_path / name) for name in ("dark.tif", "bright.tif", "float.tif", "plain.png")]
    Image.fromarray((RAMP // 16).astype(np.uint16)).save(paths[0])
    Image.fromarray(RAMP.astype(np.uint16)).save(paths[1])
    Image.fromarray((RAMP / 100).astype(np.float32)).save(paths[2])
    Image.fromarray((RAMP % 256).astype(np.uint8)).save(paths[3])
    (tmp_path / "damaged.tif").write_bytes(b"II*\0nothing")
    levels = measure_levels([*paths, str(tmp_path / "damaged.tif")], 10**6)
    assert levels.whole == (0, 4095)
    assert levels.float == pytest.approx((0, 40.95))
    assert levels.images == 3
    assert str(levels).startswith("whole numbers from 0 (black) to 4095 (white); floating-point numbers from 0")
    inputs = Inputs("images", size=64, whole_levels=levels.whole, float_levels=levels.float)
    assert inputs.load(paths[0]).max() == 15
    assert inputs.load(paths[1]).max() == 255
    assert SAME_SIZE.load(paths[0]).max() == 255  # alone, it decides for itself
    assert measure_levels(paths[3:], 10**6) == (None, None, 0)


def test_no_more_images_are_read_than_promised(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MEASURED", 3)
    Image.fromarray(RAMP.astype(np.uint16)).save(tmp_path / "one.tif")
    assert [measure_levels([str(tmp_path / "one.tif")] * count, 10**6).images for count in (3, 4, 5, 6)] == [3, 2, 3, 3]


def test_levels_survive_json_and_are_checked():
    inputs = Inputs("images", size=8, whole_levels=(0, 4095), float_levels=(-1.0, 1.0))
    assert Inputs.from_dict({**inputs.to_dict(), "whole_levels": [0, 4095]}) == inputs
    with pytest.raises(ValueError, match="whole_levels"):
        Inputs("images", size=8, whole_levels=(5, 5))


def _write_packed_12_bits(path, values: np.ndarray) -> None:
    """A TIFF with two pixels in three bytes."""
    first, second = values.reshape(-1, 2).T
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1).astype(np.uint8).tobytes()
    height, width = values.shape
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed + directory)


@pytest.mark.parametrize(("low", "high"), [(-0.02, 0.05), (1000.0, 1000.3)])
def test_a_narrow_range_of_floats_uses_all_bytes(low, high):
    values = np.linspace(low, high, 1000)
    assert levels_of_range(low, high, whole=False) == (low, high)
    assert len(np.unique(bytes_of_values(values))) == 256
    assert set(np.unique(bytes_of_values(np.full(9, -3.0)))) == {0}  # one value: black
