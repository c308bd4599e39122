"""Images with more than eight bits: which value is black, which is white, and how values between become bytes.

Cameras and microscopes write 10, 12, 14 or 16 bits, often into 16-bit files, and floating-point numbers of any range.
A file seldom says which value is white. So the values of the whole collection decide, and a run remembers it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aleator.foundation import even_sample

if TYPE_CHECKING:
    from PIL.Image import Image

Range = tuple[float, float]

_DEPTHS = (8, 10, 12, 14, 16, 24, 32)
_BITS_PER_SAMPLE = 258  # the TIFF tag
_DEEP_SUFFIXES = (".tif", ".tiff", ".png", ".pgm")
_MEASURED = 1000  # images that are read to find black and white


class Levels(NamedTuple):
    """The values that are black and white, for whole numbers and for floating-point numbers.

    Args:
        whole: Black and white of whole numbers; None if there are no such images.
        float: Black and white of floating-point numbers; None if there are no such images.
        images: Number of deep images that were read.
    """

    whole: Range | None = None
    float: Range | None = None
    images: int = 0

    def __str__(self) -> str:
        kinds = {"whole numbers": self.whole, "floating-point numbers": self.float}
        return "; ".join(
            f"{name} from {ends[0]:.6g} (black) to {ends[1]:.6g} (white)" for name, ends in kinds.items() if ends
        )


def is_deep(image: "Image") -> bool:
    """Whether an image has more than eight bits for each pixel of one colour.

    Args:
        image: An open image. It need not be decoded.

    Returns:
        True for 16-bit, 32-bit and floating-point images.
    """
    return image.mode == "F" or image.mode.startswith("I")


def deep_values(image: "Image") -> np.ndarray:
    """The values of a deep image.

    Args:
        image: The image.

    Returns:
        Values (H, W), int64 or float64.
    """
    values = np.asarray(image)
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def declared_levels(image: "Image") -> Range | None:
    """Black and white of a TIFF that says it has fewer bits than its pixels take, such as 12.

    Args:
        image: The image.

    Returns:
        Black and white; None if the file does not say.
    """
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
    return (0, 2**bits - 1) if 8 < bits < 16 and image.mode != "F" else None


def levels_of_range(low: float, high: float, whole: bool) -> Range:
    """Black and white for values of a range.

    Whole numbers from 0 on get the smallest common depth that holds them: 8, 10, 12, 14, 16, 24 or 32 bits.
    Floating-point numbers inside [0, 1] go from 0 to 1. All others go from the lowest to the highest value.

    Args:
        low: Lowest value.
        high: Highest value.
        whole: Whether they are whole numbers.

    Returns:
        Black and white.

    Examples:
        >>> from aleator.data.levels import levels_of_range
        >>> levels_of_range(17, 3900, whole=True), levels_of_range(0.1, 0.9, whole=False)
        ((0, 4095), (0.0, 1.0))
    """
    if whole and low >= 0:
        return 0, next(2**bits - 1 for bits in _DEPTHS if high < 2**bits or bits == _DEPTHS[-1])
    if not whole and low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def bytes_of_values(values: np.ndarray, levels: Range | None = None) -> np.ndarray:
    """Turn values into bytes: black becomes 0 and white 255. Numbers that are not finite become black.

    Args:
        values: Whole or floating-point numbers of any shape.
        levels: Black and white. Default: from the range of these values, see `levels_of_range`.

    Returns:
        Bytes (uint8) of the same shape.

    Examples:
        >>> import numpy as np
        >>> from aleator.data.levels import bytes_of_values
        >>> bytes_of_values(np.array([0, 2048, 4095]))
        array([  0, 128, 255], dtype=uint8)
        >>> bytes_of_values(np.array([-1.0, 0.0, 1.0]), (-1.0, 1.0))
        array([  0, 128, 255], dtype=uint8)
    """
    whole = values.dtype.kind in "iu"
    if levels is None:
        ends = value_range(values)
        levels = (0, 1) if ends is None else levels_of_range(*ends, whole)
    black, white = levels
    if whole:  # each byte stands for equally many values
        scaled = (values.astype(np.float64) - black) * 256 / (white - black + 1)
        return np.floor(scaled).clip(0, 255).astype(np.uint8)
    unit = (np.nan_to_num(values, nan=black, posinf=white, neginf=black) - black) / (white - black)
    return (unit * 255).round().clip(0, 255).astype(np.uint8)


def value_range(values: np.ndarray) -> Range | None:
    """The lowest and the highest finite value; None if there is none.

    Args:
        values: Numbers of any shape.

    Returns:
        The two values.
    """
    finite = values[np.isfinite(values)]
    return (finite.min().item(), finite.max().item()) if finite.size else None


def measure_levels(paths: Sequence[str], most_pixels: int) -> Levels:
    """Find the black and white of a collection: one for all its images, so that they stay comparable.

    At most 1,000 images are read, at even distances. Files that cannot be read are skipped.

    Args:
        paths: Image files.
        most_pixels: Larger images are skipped.

    Returns:
        Black and white, as the ranges of all values that were read say.
    """
    candidates = [path for path in paths if str(path).lower().endswith(_DEEP_SUFFIXES)]
    chosen = candidates[even_sample(len(candidates), _MEASURED)]
    ranges: dict[bool, list[Range]] = {True: [], False: []}
    for whole, ends in _deep_ranges(chosen, most_pixels):
        ranges[whole].append(ends)
    found = {
        whole: levels_of_range(min(low for low, _ in ends), max(high for _, high in ends), whole)
        for whole, ends in ranges.items()
        if ends
    }
    return Levels(found.get(True), found.get(False), len(ranges[True]) + len(ranges[False]))


def _deep_ranges(paths: Iterable[str], most_pixels: int) -> Iterable[tuple[bool, Range]]:
    """For each deep image: whether it has whole numbers, and its lowest and highest value."""
    from PIL import Image

    for path in paths:
        try:
            with Image.open(path if isinstance(path, str) else path.open(), formats=("TIFF", "PNG", "PPM")) as image:
                if not is_deep(image) or image.width * image.height > most_pixels:
                    continue
                declared: Any = declared_levels(image)
                values = deep_values(image)
        except Exception:  # decoders raise errors of any kind for damaged files; these are reported elsewhere
            continue
        ends = declared or value_range(values)
        if ends is not None:
            yield values.dtype.kind == "i", ends
