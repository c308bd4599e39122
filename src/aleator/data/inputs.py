"""How raw items become the inputs of an encoder. A run saves this with its weights, as inputs.json.

    images     paths, bytes, PIL images or arrays -> (B, 3, size, size), float32, normalised
    features   vectors, or one matrix -> (B, F), float32, normalised
    text       strings -> the list of strings, for a backbone with a tokeniser

Image files are opened by `aleator.data.images`, which does not trust them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Number
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from aleator.data.images import MOST_PIXELS, as_rgb, open_image
from aleator.data.levels import Range
from aleator.data.pixels import normalise, to_unit
from aleator.foundation import plain_number, reject, require, require_one_of

InputKind = Literal["images", "features", "text"]


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
        whole_levels: The values that are black and white in images of more than eight bits. Default: what each image
            needs, see `aleator.data.levels`.
        float_levels: The same for images of floating-point numbers.

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
    whole_levels: Range | None = None
    float_levels: Range | None = None

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
        for name in ("whole_levels", "float_levels"):
            value = getattr(self, name)
            if value is not None:
                ordered = len(value) == 2 and all(np.isfinite(value)) and value[0] < value[1]
                require(ordered, name, value, "not two numbers in order", "pass black and white, such as (0, 4095)")
                object.__setattr__(self, name, tuple(value))

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
            square = ImageOps.fit(as_rgb(image, self.whole_levels, self.float_levels), (self.size, self.size))  # type: ignore[arg-type]
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
        if isinstance(items, np.ndarray) and items.dtype.kind not in "fiubc":
            shown = next((plain_number(value) for value in items.flat if not isinstance(value, Number)), "object")
            problem = f"no number, and this model takes rows of {self.features} numbers"
            reject("features", shown, problem, f"pass an array of numbers (B, {self.features})")
        rows = torch.as_tensor(items)
        problem = f"the encoder takes rows of {self.features} numbers"
        require(not rows.is_complex(), "features", str(rows.dtype), problem, "pass real numbers")
        fits = rows.dim() == 2 and rows.shape[1] == self.features
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
