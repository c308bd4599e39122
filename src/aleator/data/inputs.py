"""How raw items become what an encoder takes, as data: a run keeps it beside its weights, as `inputs.json`.

    images     paths, bytes, PIL images or arrays -> (B, 3, size, size), float32, normalised
    features   vectors, or one matrix -> (B, F), float32, normalised
    text       strings -> the list of them, for a backbone that brings its tokeniser

Files are not trusted. An image is measured before it is decoded, only common formats are tried, and a file that is
cut short or is no image, whatever its name says, raises a ValueError that names it.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import reject, require, require_one_of

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = ("images", "features", "text")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Formats that decode in-process and predictably; others (EPS, say) would start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 50_000_000  # 50 megapixels; decoded, 150 MB


@dataclass(frozen=True)
class Inputs:
    """What one item is, and how it is prepared.

    Args:
        kind: "images", "features" or "text".
        size: side of the square that an image is cropped and resized to; its shorter side fits.
        mean, std: subtracted and divided by, for each colour of an image scaled to [0, 1], or for each feature.
        features: F.
        most_pixels: larger images are refused before they are decoded.
    """

    kind: str
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    features: int | None = None
    most_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        needed = {"images": "size", "features": "features"}.get(self.kind)
        if needed is not None:
            value = getattr(self, needed)
            require(isinstance(value, int) and value >= 1, needed, value, f"{self.kind} need it", f"pass {needed} >= 1")
        length = {"images": 3, "features": self.features, "text": 0}[self.kind]
        require((self.mean is None) == (self.std is None), "std", self.std, "mean and std go together", "pass both")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is None:
                continue
            value = tuple(float(number) for number in value)
            object.__setattr__(self, name, value)  # a list from JSON is as good as a tuple
            finite = len(value) == length and all(np.isfinite(value)) and (name == "mean" or min(value) > 0)
            require(finite, name, value[:8], f"not {length} usable numbers", "leave it out, or pass one for each")

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without what was left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Inputs":
        """The inverse of `to_dict`."""
        unknown = sorted(set(facts) - set(cls.__dataclass_fields__))
        require(not unknown, "inputs", unknown, "not known here", "load them with the release that wrote them")
        require("kind" in facts, "inputs", sorted(facts), "do not say their kind", f"one of {KINDS}")
        return cls(**facts)

    def prepare(self, items: Sequence[Any] | np.ndarray | Tensor) -> Any:
        """B raw items -> what the encoder takes; see the module."""
        if self.kind == "text":
            return [self._text(item, number) for number, item in enumerate(items)]
        if self.kind == "features":
            return self.normalise(self._matrix(items))
        require(len(items) > 0, "items", 0, "no image", "pass at least one")
        return self.normalise(torch.stack([self.load(item) for item in items]))

    def load(self, item: Any) -> Tensor:
        """One image, of any size -> (3, size, size) uint8, before normalisation."""
        from PIL import ImageOps

        image, name = open_image(item, self.most_pixels, self.size)
        with image:
            square = ImageOps.fit(_rgb(image), (self.size, self.size))  # type: ignore[arg-type]
        require(square.mode == "RGB", "image", name, f"has the mode {square.mode}", "convert it to RGB")
        return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()

    def normalise(self, batch: Tensor) -> Tensor:
        """Loaded images (B, 3, size, size) uint8, or features (B, F) -> float32, less the mean, over the deviation."""
        batch = batch.float() / 255 if batch.dtype == torch.uint8 and self.kind == "images" else batch.float()
        if self.mean is None:
            return batch
        shape = (-1, 1, 1) if self.kind == "images" else (-1,)
        mean, std = (torch.tensor(value, device=batch.device).view(shape) for value in (self.mean, self.std))
        return (batch - mean) / std

    def _matrix(self, items: Any) -> Tensor:
        if not isinstance(items, np.ndarray | Tensor):
            lengths = {np.shape(item) for item in items}
            require(
                len(lengths) == 1, "features", sorted(lengths), "not of one length", f"pass rows of {self.features}"
            )
            items = np.stack([np.asarray(item) for item in items])
        rows = torch.as_tensor(items)
        require(
            rows.dim() == 2 and rows.shape[1] == self.features and not rows.is_complex(),
            "features",
            tuple(rows.shape),
            f"the encoder takes rows of {self.features} numbers",
            f"pass (B, {self.features})",
        )
        rows = rows.float()
        finite = rows.isfinite().all(1)
        if not bool(finite.all()):
            reject("features", f"row {int((~finite).nonzero()[0])}", "has a number that is not finite", "leave it out")
        return rows

    @staticmethod
    def _text(item: Any, number: int) -> str:
        require(isinstance(item, str), "text", item, f"item {number} is no text", "pass strings")
        require(bool(item.strip()), "text", item, f"item {number} is empty", "leave it out")
        return item


def open_image(item: Any, most_pixels: int = MOST_PIXELS, size: int | None = None) -> tuple["Image", str]:
    """An image from a path, bytes, a PIL image or an array (H, W[, 3]), and what to call it in an error.

    It is decoded and stands upright. `size` lets a JPEG be decoded at a fraction of its scale, never below that side.
    """
    from PIL import Image, ImageOps

    if isinstance(item, Image.Image):
        return item.copy(), "the image given"
    if isinstance(item, np.ndarray | Tensor):
        return _from_array(item), "the array given"
    name = "the bytes given" if isinstance(item, bytes) else os.fspath(item)
    if not isinstance(item, bytes):
        require(Path(name).is_file(), "image", name, "there is no such file", "check the path")
    way_out = "convert it to PNG or JPEG again, or leave it out"
    try:
        with Image.open(io.BytesIO(item) if isinstance(item, bytes) else name, formats=_FORMATS) as image:
            width, height = image.size
            if width * height <= most_pixels:
                if size is not None:
                    image.draft("RGB", (size, size))
                return ImageOps.exif_transpose(image), name
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width, height = -1, -1
    except Image.UnidentifiedImageError:
        reject("image", name, "is no image that can be read here", way_out)
    except Exception as damage:  # decoders of damaged files raise whatever they stumble over
        reject("image", name, f"is damaged ({damage})", way_out)
    seen = "far too many" if width < 0 else f"{width} x {height}"
    return reject("image", name, f"has {seen} pixels, and {most_pixels} are allowed", "make it smaller")


def _from_array(item: np.ndarray | Tensor) -> "Image":
    from PIL import Image

    array = np.asarray(item.cpu() if isinstance(item, Tensor) else item)
    if isinstance(item, Tensor) and array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)  # torch keeps colours first
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.dtype == np.uint8 and array.size > 0 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3))
    problem = f"{array.dtype} of shape {array.shape} is no image"
    require(fits, "image", type(item).__name__, problem, "pass uint8 (H, W) or (H, W, 3), or a tensor (3, H, W)")
    return Image.fromarray(np.ascontiguousarray(array))


def _rgb(image: "Image") -> "Image":
    """Any mode to RGB: 16 bits keep their upper eight, what is transparent becomes white."""
    from PIL import Image

    if image.mode.startswith("I"):
        sixteen = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray((sixteen >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layers = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    return image.convert("RGB")
