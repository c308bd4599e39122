"""Images made worse by a known amount: noise, blur, or a part that is hidden."""

import torch
from torch import Generator, Tensor

from aleator.data import Inputs

KINDS = ("noise", "blur", "cover")


def degrade(images: Tensor, kind: Tensor, strength: Tensor, generator: Generator) -> Tensor:
    """Images (B, C, S, S) in [0, 1], kinds (B,) as places in `KINDS`, strengths (B,) in [0, 1] -> the same shape."""
    s = strength.view(-1, 1, 1, 1)
    B, _, S, _ = images.shape
    noise = torch.randn(B, 1, S, S, generator=generator)
    noisy = (1 - s / 2) * images + s / 2 * (0.5 + 0.8 * noise)
    ways = torch.stack([noisy.clamp(0, 1), _blurred(images, strength), _covered(images, strength, generator)])
    return ways[kind, torch.arange(B)]


class RandomDegradation:
    """For training: every image of a batch gets a kind and a strength of its own, and is normalised."""

    def __init__(self, inputs: Inputs):
        self.inputs = inputs

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        kind = torch.randint(len(KINDS), (len(images),), generator=generator)
        strength = torch.rand(len(images), generator=generator)
        return self.inputs.normalise(degrade(images, kind, strength, generator))


def _blurred(images: Tensor, strength: Tensor) -> Tensor:
    """A Gaussian of up to a quarter of the side, as a matrix on rows and on columns."""
    S = images.shape[-1]
    place = torch.arange(S, dtype=images.dtype)
    width = (1e-3 + strength * S / 4).view(-1, 1, 1)
    weight = torch.softmax(-(((place[:, None] - place) / width) ** 2) / 2, -1)  # (B, S, S)
    return weight[:, None] @ images @ weight[:, None].transpose(-1, -2)


def _covered(images: Tensor, strength: Tensor, generator: Generator) -> Tensor:
    """A grey square over up to three quarters of the area, anywhere."""
    B, _, S, _ = images.shape
    side = (S * (0.75 * strength).sqrt()).view(-1, 1)
    corner = torch.rand(2, B, 1, generator=generator) * (S - side)  # (2, B, 1)
    place = torch.arange(S) + 0.5
    inside = (place >= corner) & (place < corner + side)  # (2, B, S)
    hidden = (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
    return torch.where(hidden, 0.5, images)
