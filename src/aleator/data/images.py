"""Open image files safely, whatever their format and depth.

Files are not trusted. The size of an image is checked before it is decoded, and only common formats are tried. A file
that is truncated or not an image, whatever its name says, raises a ValueError that names it.
"""

import io
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from aleator.data.levels import Range, bytes_of_values, declared_levels, deep_values, is_deep
from aleator.foundation import reject, require, require_file

if TYPE_CHECKING:
    from PIL.Image import Image

HEIC_SUFFIXES, AVIF_SUFFIXES = (".heic", ".heif"), (".avif",)
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *AVIF_SUFFIXES,
    *HEIC_SUFFIXES,
)
MOST_PIXELS = 50_000_000  # 50 megapixels: 150 MB when decoded

# Formats that are decoded within this process. Others, such as EPS, would start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_WAY_OUT = "convert it to PNG or JPEG again, or leave it out"


@cache
def readable_formats() -> tuple[str, ...]:
    """Names of the image formats that can be read here.

    AVIF is among them if Pillow was built with it, HEIF if the package pillow-heif is installed.

    Returns:
        Names as in Pillow, such as "PNG".
    """
    from PIL import features

    formats = [*_FORMATS, *(["AVIF"] if features.check("avif") else [])]
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return tuple(formats)
    register_heif_opener()
    return (*formats, "HEIF")


def open_image(item: Any, most_pixels: int = MOST_PIXELS, size: int | None = None) -> tuple["Image", str]:
    """Open and decode an image. It is rotated as its EXIF orientation says.

    Args:
        item: Path, bytes, PIL image, array (H, W[, 3]), tensor (3, H, W), or an object with a method `open`, such as a
            file on an object store.
        most_pixels: Larger images are refused before they are decoded.
        size: A JPEG may be decoded at a fraction of its size, with sides of at least this many pixels.

    Returns:
        The image, and its name for errors.

    Raises:
        ValueError: If the image cannot be read.
    """
    from PIL import Image

    if isinstance(item, Image.Image):
        return _upright(item), "the image given"
    if isinstance(item, np.ndarray | Tensor):
        return _from_array(item), "the array given"
    name = "the bytes given" if isinstance(item, bytes) else str(item)
    if not isinstance(item, bytes | str | os.PathLike):
        item = item.open().read()
    if not isinstance(item, bytes):
        require_file("image", Path(name), "check the path")
    try:
        with Image.open(io.BytesIO(item) if isinstance(item, bytes) else name, formats=readable_formats()) as image:
            width, height = image.size
            if width * height <= most_pixels:
                if size is not None:
                    image.draft("RGB", (size, size))
                return _upright(image), name
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width, height = -1, -1
    except Image.UnidentifiedImageError:
        reject("image", name, *_unknown_format(item))
    except Exception as damage:  # decoders raise errors of any kind for damaged files
        reject("image", name, f"is damaged ({damage})", _WAY_OUT)
    pixels = "far too many" if width < 0 else f"{width} x {height}"
    return reject("image", name, f"has {pixels} pixels, and {most_pixels} are allowed", "make it smaller")


def as_rgb(image: "Image", whole_levels: Range | None = None, float_levels: Range | None = None) -> "Image":
    """Convert an image of any mode to RGB. Transparent pixels become white.

    Args:
        image: The image.
        whole_levels: Black and white of deep images with whole numbers. Default: what the file says, or what its own
            values need; see `aleator.data.levels`.
        float_levels: The same for floating-point images.

    Returns:
        The image with eight bits for each colour.
    """
    from PIL import Image

    if is_deep(image):
        values = deep_values(image)
        levels = float_levels if values.dtype.kind == "f" else whole_levels
        return Image.fromarray(bytes_of_values(values, levels or image.info.get("levels"))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layers = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    return image.convert("RGB")


def _upright(image: "Image") -> "Image":
    """A copy of an image, rotated as its EXIF orientation says."""
    from PIL import ImageOps

    declared = declared_levels(image)
    upright = ImageOps.exif_transpose(image)
    if declared is not None:  # the copy has lost the tags
        upright.info["levels"] = declared
    return upright


def thumbnail(item: Any, side: int) -> np.ndarray:
    """A small picture of an image, for figures.

    Args:
        item: What `open_image` takes.
        side: Largest height and width.

    Returns:
        Bytes, shape (H, W, 3).

    Raises:
        ValueError: If the image cannot be read.
    """
    image, _ = open_image(item, size=side)
    with image:
        small = as_rgb(image)
        small.thumbnail((side, side))
        return np.asarray(small)


def _unknown_format(item: Any) -> tuple[str, str]:
    """What is wrong with a file in no format that can be read here, and the way out."""
    if isinstance(item, bytes):
        start = item[:16]
    else:
        with open(item, "rb") as file:
            start = file.read(16)
    brand = start[8:12] if start[4:8] == b"ftyp" else b""
    if brand in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"):
        return "is a HEIC picture, which cannot be read here yet", "pip install 'aleator[heic]', or convert it to JPEG"
    if brand in (b"avif", b"avis"):
        return "is an AVIF picture, which this Pillow cannot read", "pip install -U pillow, or convert it to JPEG"
    if not start:
        return "is empty, not an image", "copy it again, or leave it out"
    return "is not an image in a format that can be read here", _WAY_OUT


def _from_array(item: np.ndarray | Tensor) -> "Image":
    """A PIL image from an array (H, W[, 3]) or a tensor (3, H, W) of uint8."""
    from PIL import Image

    array = np.asarray(item.cpu() if isinstance(item, Tensor) else item)
    if isinstance(item, Tensor) and array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)  # torch keeps colours first
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.dtype == np.uint8 and array.size > 0 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3))
    problem = f"{array.dtype} of shape {array.shape} is not an image"
    require(fits, "image", type(item).__name__, problem, "pass uint8 (H, W) or (H, W, 3), or a tensor (3, H, W)")
    return Image.fromarray(np.ascontiguousarray(array))
