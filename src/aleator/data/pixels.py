"""Pixels: bytes (uint8, 0 to 255), unit values (float, 0 to 1) and normalised values, and the ways between them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_unit(pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn bytes into numbers in [0, 1].

    Args:
        pixels: Bytes of any shape (uint8).
        dtype: Floating-point type of the result.

    Returns:
        pixels / 255, a new tensor of the same shape.

    Examples:
        >>> import torch
        >>> from aleator.data import to_unit
        >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return pixels.to(dtype, copy=True).div_(255)


def to_bytes(unit: Tensor) -> Tensor:
    """Turn numbers in [0, 1] into bytes. Numbers outside become 0 or 255.

    Args:
        unit: Numbers of any shape.

    Returns:
        The nearest bytes (uint8), of the same shape.

    Examples:
        >>> import torch
        >>> from aleator.data import to_bytes
        >>> to_bytes(torch.tensor([0.0, 0.2, 1.0, 1.1]))
        tensor([  0,  51, 255, 255], dtype=torch.uint8)
    """
    return (unit * 255).round().clamp(0, 255).to(torch.uint8)


def normalise(values: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract a mean from every channel and divide by a standard deviation.

    Args:
        values: Images (B, C, H, W), or features (B, C).
        mean: C numbers.
        std: C positive numbers.

    Returns:
        (values - mean) / std, of the same shape.

    Examples:
        >>> import torch
        >>> from aleator.data import normalise
        >>> normalise(torch.tensor([[1.0, 2.0]]), (0.0, 1.0), (0.5, 2.0))
        tensor([[2.0000, 0.5000]])
    """
    shape = (-1,) + (1,) * (values.dim() - 2)
    mean_values, std_values = (torch.tensor(numbers, device=values.device).view(shape) for numbers in (mean, std))
    return (values - mean_values) / std_values


def normalise_on_device(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Do as `normalise`, one channel at a time, with plain numbers.

    Nothing is copied to the device, so a CUDA graph can hold it. On a GPU the last bit can differ from `normalise`:
    there, torch divides by a plain number as it multiplies by its reciprocal.

    Args:
        images: Images (B, C, H, W).
        mean: C numbers.
        std: C positive numbers.

    Returns:
        (images - mean) / std, of the same shape.
    """
    channels = [(images[:, c] - m) / s for c, (m, s) in enumerate(zip(mean, std, strict=True))]
    return torch.stack(channels, 1)
