"""Image augmentation in batches on the device. Every image gets a random draw of its own.

All functions take images (B, C, H, W) in floating point and a generator on their device. Nothing waits for the CPU, so
a CUDA graph can hold them.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from aleator.data.pixels import normalise_on_device
from aleator.foundation import require, require_at_least


def flip(images: Tensor, generator: Generator | None = None) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(-1), images)


def translate(images: Tensor, pixels: int, generator: Generator | None = None) -> Tensor:
    """Shift each image by up to `pixels` whole pixels in each direction. The border is filled by reflection."""
    B, C, H, W = images.shape
    padded = F.pad(images, (pixels,) * 4, mode="reflect")
    top, left = torch.randint(2 * pixels + 1, (2, B, 1), generator=generator, device=images.device)
    rows = top + torch.arange(H, device=images.device)  # (B, H)
    columns = left + torch.arange(W, device=images.device)
    padded = padded.gather(2, rows[:, None, :, None].expand(B, C, H, padded.shape[3]))
    return padded.gather(3, columns[:, None, None, :].expand(B, C, H, W))


def cutout(images: Tensor, size: int, generator: Generator | None = None) -> Tensor:
    """Set a square of `size` pixels, centred anywhere, to the image's mean colour (DeVries and Taylor 2017)."""
    B, _, H, W = images.shape
    u = torch.rand(2, B, 1, generator=generator, device=images.device)

    def covered(position: Tensor, length: int) -> Tensor:  # rows or columns of the square
        start = (position * length).floor() - size // 2
        place = torch.arange(length, device=images.device)
        return (place >= start) & (place < start + size)  # (B, length)

    hole = covered(u[0], H)[:, None, :, None] & covered(u[1], W)[:, None, None, :]
    return torch.where(hole, images.mean((2, 3), keepdim=True), images)


def zoom(images: Tensor, least: float, generator: Generator | None = None) -> Tensor:
    """Enlarge a random square part of each image to full size. Its side is a share in [least, 1] of the image's."""
    B, _, H, W = images.shape
    u = torch.rand(3, B, generator=generator, device=images.device)
    side = least + (1 - least) * u[0]
    return resized_crop(images, u[1] * (1 - side) * H, u[2] * (1 - side) * W, side * H, side * W)


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Enlarge a window of each image to full size by bilinear interpolation.

    The result is that of cropping and torch's `interpolate`, one image at a time: pixels outside the window have no
    influence.

    Args:
        images: (B, C, H, W).
        top: First row of each window, (B,).
        left: First column, (B,).
        height: Rows, (B,).
        width: Columns, (B,).

    Returns:
        Images (B, C, H, W).
    """
    images = _interpolated(images, top, height, 2)
    return _interpolated(images, left, width, 3)


def _interpolated(images: Tensor, start: Tensor, length: Tensor, dim: int) -> Tensor:
    """Linear interpolation of the windows [start, start + length), (B,) each, along one dimension."""
    size = images.shape[dim]
    place = torch.arange(size, device=images.device) + 0.5
    inside = (place * (length[:, None] / size) - 0.5).clamp_min(0.0)  # (B, size), counted from the window's first pixel
    inside = torch.minimum(inside, (length[:, None] - 1).clamp_min(0.0))
    position = (start[:, None] + inside).clamp(0, size - 1)
    lower = position.floor()
    shape = (len(images), 1, size, 1) if dim == 2 else (len(images), 1, 1, size)
    share = (position - lower).view(shape).to(images.dtype)
    lower = lower.long()
    upper = (lower + 1).clamp_max(size - 1)
    first, second = (images.gather(dim, index.view(shape).expand_as(images)) for index in (lower, upper))
    return torch.lerp(first, second, share)


def centre_crops(images: Tensor, proportions: Tensor) -> Tensor:
    """Crop the centre of each image and enlarge it to full size: the paper's second test set.

    Args:
        images: (B, C, H, W) with H = W, floating point.
        proportions: Side of each crop as a share of the image's, (B,), rounded to whole pixels.

    Returns:
        Images (B, C, H, W).

    Examples:
        >>> import torch
        >>> from aleator.data import centre_crops
        >>> centre_crops(torch.rand(2, 3, 32, 32), torch.tensor([0.25, 1.0])).shape
        torch.Size([2, 3, 32, 32])
    """
    H = images.shape[-1]
    size = (proportions.to(images.device).double() * H).round().clamp_min(1)
    start = ((H - size) / 2).round()
    return resized_crop(images, start, start, size, size)


def random_crops(images: Tensor, proportions: Tensor, generator: Generator) -> Tensor:
    """Crop a random part of each image and enlarge it to full size.

    Args:
        images: (B, C, H, W) with H = W, floating point.
        proportions: Side of each crop as a share of the image's, (B,), rounded to whole pixels.
        generator: Random generator on the CPU.

    Returns:
        Images (B, C, H, W).

    Examples:
        >>> import torch
        >>> from aleator.data import random_crops
        >>> generator = torch.Generator().manual_seed(0)
        >>> random_crops(torch.rand(2, 3, 32, 32), torch.tensor([0.25, 1.0]), generator).shape
        torch.Size([2, 3, 32, 32])
    """
    H = images.shape[-1]
    size = (proportions.to(images.device).double() * H).round().clamp_min(1)
    u = torch.rand(2, len(images), generator=generator, dtype=torch.float64).to(images.device)
    top, left = ((u * (H - size + 1)).floor()).unbind(0)
    return resized_crop(images, top, left, size, size)


@dataclass(frozen=True)
class ImageAugmentation:
    """Random changes to images, in the order of the arguments below. Pass it as `LabelledBatches(augment=...)`.

    Args:
        flip: Mirror left to right, with probability 1/2.
        zoom: Show a square part whose side is at least this share of the image's. Default: the whole image.
        translate: Shift by up to this many pixels in each direction.
        cutout: Hide a square of this many pixels; 0 for none.
        mean: Numbers to subtract, one for each channel of images in [0, 1]. Default: none.
        std: Numbers to divide by, likewise. mean and std come together.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import torch
        >>> from aleator.data import ImageAugmentation
        >>> augment = ImageAugmentation(zoom=0.5, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> augment(torch.rand(4, 3, 32, 32), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 32, 32])
    """

    flip: bool = True
    translate: int = 4
    zoom: float | None = None
    cutout: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    capturable: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        ok = self.zoom is None or 0 < self.zoom <= 1
        require(ok, "zoom", self.zoom, "not a proportion in (0, 1]", "pass for example 0.5")
        require_at_least("translate", self.translate, 0, "pass 0 for none")
        require_at_least("cutout", self.cutout, 0, "pass 0 for none")
        both = (self.mean is None) == (self.std is None)
        require(both, "std", self.std, "mean and std come together", "pass both or neither")

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Change and normalise images (B, C, H, W) in [0, 1]."""
        if self.flip:
            images = flip(images, generator)
        if self.zoom is not None:
            images = zoom(images, self.zoom, generator)
        if self.translate:
            images = translate(images, self.translate, generator)
        if self.cutout:
            images = cutout(images, self.cutout, generator)
        return self.normalise(images)

    def normalise(self, images: Tensor) -> Tensor:
        """Subtract mean and divide by std, if there are any. Use it for images that are not augmented.

        Args:
            images: (B, C, H, W) in [0, 1].

        Returns:
            Images (B, C, H, W).
        """
        if self.mean is None or self.std is None:
            return images
        return normalise_on_device(images, self.mean, self.std)

    def to_dict(self) -> dict[str, Any]:
        """The arguments as JSON values.

        Returns:
            Arguments by name.
        """
        return {name: value for name, value in asdict(self).items() if name != "capturable"}
