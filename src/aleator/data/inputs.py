"""How raw items become the inputs of an encoder. A run saves this with its weights, as inputs.json.

    images     paths, bytes, PIL images or arrays -> (B, 3, size, size), float32, normalised
    features   vectors, or one matrix -> (B, F), float32, normalised
    text       strings -> the list of strings, for a backbone with a tokeniser

Files are not trusted. The size of an image is checked before it is decoded, and only common formats are tried. A file
that is truncated or not an image, whatever its name says, raises a ValueError that names it.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from aleator.data.pixels import normalise, to_unit
from aleator.foundation import reject, require, require_one_of

if TYPE_CHECKING:
    from PIL.Image import Image

InputKind = Literal["images", "features", "text"]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Formats that are decoded within this process. Others, such as EPS, would start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 50_000_000  # 50 megapixels: 150 MB when decoded


@dataclass(frozen=True)
class Inputs:
    """How raw items become the inputs of an encoder: what an item is, and how it is resized and normalised.

    Args:
        kind: What an item is: "images", "features" or "text".
        size: Side of the square that images are resized and cropped to. Needed for images.
        mean: Numbers to subtract: one for each colour of an image in [0, 1], or for each feature. Default: none.
        std: Numbers to divide by, likewise. mean and std come together.
        features: F, the length of a feature vector. Needed for features.
        most_pixels: Images with more pixels are refused before they are decoded.

    Raises:
        ValueError: If a needed argument is missing, or mean and std do not fit.

    Examples:
        >>> import numpy as np
        >>> from aleator.data import Inputs
        >>> inputs = Inputs("images", size=32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> inputs.prepare([np.zeros((48, 64, 3), np.uint8)]).shape
        torch.Size([1, 3, 32, 32])
    """

    kind: InputKind
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    features: int | None = None
    most_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, get_args(InputKind))
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
            object.__setattr__(self, name, value)  # JSON gives lists
            finite = len(value) == length and all(np.isfinite(value)) and (name == "mean" or min(value) > 0)
            require(finite, name, value[:8], f"not {length} usable numbers", "leave it out, or pass one for each")

    def to_dict(self) -> dict[str, Any]:
        """The arguments as JSON values, without those that are None.

        Returns:
            Arguments by name.
        """
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> "Inputs":
        """The inverse of `to_dict`.

        Args:
            arguments: Arguments by name.

        Returns:
            The inputs.

        Raises:
            ValueError: If an argument is missing, not known or out of range.
        """
        unknown = sorted(set(arguments) - set(cls.__dataclass_fields__))
        require(not unknown, "inputs", unknown, "not known here", "load them with the release that wrote them")
        known = get_args(InputKind)
        require("kind" in arguments, "inputs", sorted(arguments), "kind is missing", f"add a kind, one of {known}")
        return cls(**arguments)

    def prepare(self, items: Sequence[Any] | np.ndarray | Tensor) -> Any:
        """Turn raw items into the inputs of an encoder.

        Args:
            items: B items. Images: paths, bytes, PIL images, or arrays (H, W[, 3]) or tensors (3, H, W) of uint8.
                Features: vectors, or one matrix (B, F). Text: strings.

        Returns:
            Images (B, 3, size, size) or features (B, F), float32 and normalised; for text, the list of strings.

        Raises:
            ValueError: If an item cannot be read. The error names it.
        """
        if self.kind == "text":
            return [self._text(item, number) for number, item in enumerate(items)]
        if self.kind == "features":
            return self.normalise(self._matrix(items))
        require(len(items) > 0, "items", 0, "no image", "pass at least one")
        return self.normalise(torch.stack([self.load(item) for item in items]))

    def load(self, item: Any) -> Tensor:
        """Read one image and resize it. It is cropped to a square around its centre.

        Args:
            item: Path, bytes, PIL image, array or tensor.

        Returns:
            (3, size, size) uint8, not normalised.

        Raises:
            ValueError: If the image cannot be read.
        """
        from PIL import ImageOps

        image, name = open_image(item, self.most_pixels, self.size)
        with image:
            square = ImageOps.fit(_rgb(image), (self.size, self.size))  # type: ignore[arg-type]
        require(square.mode == "RGB", "image", name, f"has the mode {square.mode}", "convert it to RGB")
        return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()

    def normalise(self, batch: Tensor) -> Tensor:
        """Subtract mean and divide by std, if there are any.

        Args:
            batch: Images (B, 3, size, size), as bytes or in [0, 1], or features (B, F).

        Returns:
            float32, of the same shape.
        """
        pixels = batch.dtype == torch.uint8 and self.kind == "images"
        batch = to_unit(batch) if pixels else batch.float()
        return batch if self.mean is None or self.std is None else normalise(batch, self.mean, self.std)

    def _matrix(self, items: Any) -> Tensor:
        """Vectors or a matrix -> (B, F), float32, checked."""
        if not isinstance(items, np.ndarray | Tensor):
            shapes = {np.shape(item) for item in items}
            way_out = f"pass rows of {self.features}"
            require(len(shapes) == 1, "features", sorted(shapes), "not of one length", way_out)
            items = np.stack([np.asarray(item) for item in items])
        rows = torch.as_tensor(items)
        fits = rows.dim() == 2 and rows.shape[1] == self.features and not rows.is_complex()
        problem = f"the encoder takes rows of {self.features} numbers"
        require(fits, "features", tuple(rows.shape), problem, f"pass (B, {self.features})")
        rows = rows.float()
        finite = rows.isfinite().all(1)
        if not bool(finite.all()):
            reject("features", f"row {int((~finite).nonzero()[0])}", "has a number that is not finite", "leave it out")
        return rows

    @staticmethod
    def _text(item: Any, number: int) -> str:
        require(isinstance(item, str), "text", item, f"item {number} is not text", "pass strings")
        require(bool(item.strip()), "text", item, f"item {number} is empty", "leave it out")
        return item


def open_image(item: Any, most_pixels: int = MOST_PIXELS, size: int | None = None) -> tuple["Image", str]:
    """Open and decode an image. It is rotated as its EXIF orientation says.

    Args:
        item: Path, bytes, PIL image, array (H, W[, 3]) or tensor (3, H, W).
        most_pixels: Larger images are refused before they are decoded.
        size: A JPEG may be decoded at a fraction of its size, with sides of at least this many pixels.

    Returns:
        The image, and its name for errors.

    Raises:
        ValueError: If the image cannot be read.
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
        reject("image", name, "is not an image in a format that can be read here", way_out)
    except Exception as damage:  # decoders raise errors of any kind for damaged files
        reject("image", name, f"is damaged ({damage})", way_out)
    pixels = "far too many" if width < 0 else f"{width} x {height}"
    return reject("image", name, f"has {pixels} pixels, and {most_pixels} are allowed", "make it smaller")


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


def _rgb(image: "Image") -> "Image":
    """Convert any mode to RGB. 16-bit values keep their upper eight bits; transparent pixels become white."""
    from PIL import Image

    if image.mode.startswith("I"):
        sixteen = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray((sixteen >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layers = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    return image.convert("RGB")
