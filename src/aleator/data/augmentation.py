"""Image augmentation, batched on the device: every image its own draw, no host, so that a CUDA graph can hold it.

All functions take images (B, C, H, W) in floating point and a generator on their device.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from aleator.foundation import require


def flip(images: Tensor, generator: Generator | None = None) -> Tensor:
    """Left and right exchanged, in half of the images."""
    heads = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(heads, images.flip(-1), images)


def translate(images: Tensor, pixels: int, generator: Generator | None = None) -> Tensor:
    """Moved by up to so many whole pixels each way; what comes in at the border is its reflection."""
    B, C, H, W = images.shape
    padded = F.pad(images, (pixels,) * 4, mode="reflect")
    top, left = torch.randint(2 * pixels + 1, (2, B, 1), generator=generator, device=images.device)
    rows = top + torch.arange(H, device=images.device)  # (B, H)
    columns = left + torch.arange(W, device=images.device)
    padded = padded.gather(2, rows[:, None, :, None].expand(B, C, H, padded.shape[3]))
    return padded.gather(3, columns[:, None, None, :].expand(B, C, H, W))


def cutout(images: Tensor, size: int, generator: Generator | None = None) -> Tensor:
    """A square of this size set to the image's mean colour, its centre anywhere (DeVries and Taylor 2017)."""
    B, _, H, W = images.shape
    u = torch.rand(2, B, 1, generator=generator, device=images.device)

    def covered(position: Tensor, length: int) -> Tensor:
        start = (position * length).floor() - size // 2
        place = torch.arange(length, device=images.device)
        return (place >= start) & (place < start + size)  # (B, length)

    hole = covered(u[0], H)[:, None, :, None] & covered(u[1], W)[:, None, None, :]
    return torch.where(hole, images.mean((2, 3), keepdim=True), images)


def zoom(images: Tensor, least: float, generator: Generator | None = None) -> Tensor:
    """A square part of each image, its side a proportion in [least, 1] anywhere in the image, brought to full size."""
    B, _, H, W = images.shape
    u = torch.rand(3, B, generator=generator, device=images.device)
    side = least + (1 - least) * u[0]
    return resized_crop(images, u[1] * (1 - side) * H, u[2] * (1 - side) * W, side * H, side * W)


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Each image's own window, (B,) pixels each, brought to full size bilinearly, as `interpolate` would do one by one.

    What lies outside the window is not seen: at its border the samples stop at its outermost pixels.
    """
    images = _interpolated(images, top, height, 2)
    return _interpolated(images, left, width, 3)


def _interpolated(images: Tensor, start: Tensor, length: Tensor, dim: int) -> Tensor:
    """Linear interpolation of windows [start, start + length) along one dimension."""
    size = images.shape[dim]
    place = torch.arange(size, device=images.device) + 0.5
    inside = (place * (length[:, None] / size) - 0.5).clamp_min(0.0)  # (B, size), from the window's first pixel
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
    """The middle of each image, a proportion (B,) of its side in whole pixels, brought back to full size.

    The paper's second test set: information is lost and nothing else is added.
    """
    H = images.shape[-1]
    size = (proportions.to(images.device).double() * H).round().clamp_min(1)
    start = ((H - size) / 2).round()
    return resized_crop(images, start, start, size, size)


def random_crops(images: Tensor, proportions: Tensor, generator: Generator) -> Tensor:
    """As `centre_crops`, with the window anywhere in the image."""
    H = images.shape[-1]
    size = (proportions.to(images.device).double() * H).round().clamp_min(1)
    u = torch.rand(2, len(images), generator=generator, dtype=torch.float64).to(images.device)
    top, left = ((u * (H - size + 1)).floor()).unbind(0)
    return resized_crop(images, top, left, size, size)


@dataclass(frozen=True)
class ImageAugmentation:
    """What is done to every drawn image, in this order. `LabelledBatches(augment=...)` takes it.

    Args:
        flip: exchange left and right, half of the time.
        translate: move by up to so many pixels.
        zoom: show a part whose side is at least this proportion of the image's; None for the whole.
        cutout: hide a square of so many pixels; 0 for none.
        mean, std: subtract and divide, by channel; images are in [0, 1] before.
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
        for name in ("translate", "cutout"):
            value = getattr(self, name)
            require(value >= 0, name, value, "negative", "pass 0 for none")
        require(
            (self.mean is None) == (self.std is None),
            "std",
            self.std,
            "mean and std come together",
            "pass both or neither",
        )

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
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
        """Images in [0, 1] -> what the network is given; also for images that are not augmented."""
        if self.mean is None or self.std is None:
            return images
        # Plain numbers by channel: a tensor of them would have to be copied to the device at every call.
        channels = [(images[:, c] - m) / s for c, (m, s) in enumerate(zip(self.mean, self.std, strict=True))]
        return torch.stack(channels, 1)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "capturable"}
