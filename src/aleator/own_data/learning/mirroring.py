"""Do mirrored images still belong to their class? Shoes do, letters do not."""

import contextlib

import numpy as np
import torch

from aleator.data import Inputs, to_unit
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels

_IMAGES = 1000  # that are compared
_SIDE = 16  # pixels of the images for this comparison


def mirror_test(collection: Collection, labels: Labels) -> tuple[float, float]:
    """Share of images whose nearest neighbour by pixels has their label, as they are and mirrored.

    Args:
        collection: Images.
        labels: Their labels. Pairs say nothing here.

    Returns:
        The two shares, over a sample of the images. An image and its own mirror image are not compared. (1.0, 1.0) for
        pairs.
    """
    hard = labels.hard()
    if hard is None:
        return 1.0, 1.0
    numbers = np.unique(np.linspace(0, len(collection) - 1, _IMAGES).round().astype(int))
    inputs = Inputs("images", size=_SIDE)
    images, read = [], []
    for i in numbers.tolist():
        with contextlib.suppress(ValueError):  # what cannot be read is reported when all images are read
            images.append(inputs.load(collection.raw(i, i + 1)[0]))
            read.append(i)
    if not images:
        return 1.0, 1.0
    grey = to_unit(torch.stack(images)).mean(1)  # (n, side, side)
    label = torch.as_tensor(hard[read])
    rows = _normalised(grey)
    return _right_neighbours(rows, rows, label), _right_neighbours(_normalised(grey.flip(-1)), rows, label)


def _normalised(grey: torch.Tensor) -> torch.Tensor:
    """Images (n, side, side) as rows of mean 0 and length 1."""
    rows = grey.flatten(1)
    return torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def _right_neighbours(questions: torch.Tensor, rows: torch.Tensor, label: torch.Tensor) -> float:
    """Share of questions whose nearest row, apart from the one of the same number, has the same label."""
    cosine = (questions @ rows.T).fill_diagonal_(-2.0)
    return (label[cosine.argmax(1)] == label).double().mean().item()
