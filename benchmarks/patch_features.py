"""Features of small images that need no labels and no pretrained network: whitened patches and k-means.

Coates, Ng and Lee (2011), An Analysis of Single-Layer Networks in Unsupervised Feature Learning. They are far worse
than the features of a good network. But they saw no label, so methods can be compared on them fairly.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH, STRIDE, CENTRES, WIDTH = 6, 2, 200, 256
_SAMPLES, _ROUNDS, _BATCH, _CONTRAST = 40_000, 20, 200, 10 / 255**2


def patch_features(images: Tensor, seed: int = 0) -> Tensor:
    """Features (N, 256) of images (N, 3, H, W) uint8."""
    generator = torch.Generator().manual_seed(seed)
    mean, whitening, centres = _dictionary(images, generator)
    blocks = []
    for start in range(0, len(images), _BATCH):
        patches = (_patches(images[start : start + _BATCH]) - mean) @ whitening  # (B, positions, 3 PATCH^2)
        similarity = patches @ centres.T
        active = torch.cat([F.relu(similarity - 0.5), F.relu(-similarity - 0.5)], 2)
        side = round(active.shape[1] ** 0.5)
        plane = active.transpose(1, 2).unflatten(2, (side, side))
        blocks.append(F.adaptive_avg_pool2d(plane, 2).flatten(1))
    features = torch.cat(blocks)
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-6)
    _, directions = torch.linalg.eigh(torch.cov(features.T))
    return features @ directions[:, -WIDTH:]


def _patches(images: Tensor) -> Tensor:
    """All patches of some images, each with mean 0 and standard deviation 1."""
    patches = F.unfold(images.float() / 255, PATCH, stride=STRIDE).transpose(1, 2)
    centred = patches - patches.mean(2, keepdim=True)
    return centred / (patches.var(2, keepdim=True) + _CONTRAST).sqrt()


def _dictionary(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and whitening matrix of patches, and the centres of spherical k-means on whitened patches."""
    some = torch.randperm(len(images), generator=generator)[: _SAMPLES // 50]
    patches = _patches(images[some]).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=generator)[:_SAMPLES]]
    mean = patches.mean(0)
    variance, axes = torch.linalg.eigh(torch.cov(patches.T))
    whitening = axes @ torch.diag((variance + 0.1).rsqrt()) @ axes.T
    white = (patches - mean) @ whitening
    centres = F.normalize(torch.randn(CENTRES, white.shape[1], generator=generator), dim=1)
    for _ in range(_ROUNDS):
        value, nearest = (white @ centres.T).max(1)
        sums = torch.zeros_like(centres).index_add(0, nearest, white * value[:, None])
        centres = F.normalize(sums + 1e-3 * torch.randn(sums.shape, generator=generator), dim=1)
    return mean, whitening, centres
