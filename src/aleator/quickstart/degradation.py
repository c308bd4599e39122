"""Degrade images by a known amount: noise, blur, or a part that is covered."""

import torch
from torch import Generator, Tensor

from aleator.data import Inputs

DEGRADATIONS = ("noise", "blur", "cover")
FULL_COVER = 0.75  # share of the area that is covered at full strength


def degrade(images: Tensor, degradation: Tensor, strength: Tensor, generator: Generator) -> Tensor:
    """Degrade each image in one way.

    Args:
        images: Images (B, C, S, S) in [0, 1].
        degradation: For each image an index into DEGRADATIONS, (B,).
        strength: For each image how much it is degraded, (B,) in [0, 1].
        generator: Source of randomness.

    Returns:
        Images (B, C, S, S) in [0, 1].
    """
    s = strength.view(-1, 1, 1, 1)
    B, _, S, _ = images.shape
    noise = torch.randn(B, 1, S, S, generator=generator)
    noisy = (1 - s / 2) * images + s / 2 * (0.5 + 0.8 * noise)
    ways = torch.stack([noisy.clamp(0, 1), _blurred(images, strength), _covered(images, strength, generator)])
    return ways[degradation, torch.arange(B)]


class RandomDegradation:
    """Augmentation for training: each image gets its own degradation and strength, and is then normalised."""

    def __init__(self, inputs: Inputs):
        self.inputs = inputs

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        degradation = torch.randint(len(DEGRADATIONS), (len(images),), generator=generator)
        strength = torch.rand(len(images), generator=generator)
        return self.inputs.normalise(degrade(images, degradation, strength, generator))


def _blurred(images: Tensor, strength: Tensor) -> Tensor:
    """Gaussian blur, at full strength with a quarter of the side as its deviation; a matrix for rows and columns."""
    S = images.shape[-1]
    place = torch.arange(S, dtype=images.dtype)
    width = (1e-3 + strength * S / 4).view(-1, 1, 1)
    weight = torch.softmax(-(((place[:, None] - place) / width) ** 2) / 2, -1)  # (B, S, S)
    return weight[:, None] @ images @ weight[:, None].transpose(-1, -2)


def _covered(images: Tensor, strength: Tensor, generator: Generator) -> Tensor:
    """A grey square at a random place; at full strength it covers `FULL_COVER` of the area."""
    B, _, S, _ = images.shape
    side = (S * (FULL_COVER * strength).sqrt()).view(-1, 1)
    corner = torch.rand(2, B, 1, generator=generator) * (S - side)  # (2, B, 1)
    place = torch.arange(S) + 0.5
    inside = (place >= corner) & (place < corner + side)  # (2, B, S)
    covered = (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
    return torch.where(covered, 0.5, images)
