"""Views of an input, such as features and thumbnails, in which novelty is measured: is it unlike anything seen?

    features     what the head of the encoder gets: features of the backbone, standardised where the encoder does so
    pixels       for images: a thumbnail of 8 x 8 pixels
    statistics   for images: brightness, contrast, colourfulness, and edges at three scales
    letters      for texts: how often each letter follows each other one

A network that was trained on one kind of images may map a blank or noisy one anywhere, so `features` alone misses them.
The same holds for random letters.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from aleator.encoders import Encoder, Standardise
from aleator.posteriors import PosteriorBatch

Views = dict[str, Tensor]

_THUMBNAIL = 8
_SCALES = 3
_LETTERS, _SPACE, _DIGIT, _OTHER = 40, 26, 27, 28  # number of letters; a to z come first
_FLAT = 0.02  # a step between neighbouring pixels that counts as none, in standard deviations
_LEAST = 0.01  # keeps logarithms finite


@torch.inference_mode()
def posteriors_and_views(encoder: Encoder, batch: Any) -> tuple[PosteriorBatch, Views]:
    """Encode a batch, and keep views of it on the way.

    Args:
        encoder: The encoder.
        batch: B inputs, as the encoder takes them.

    Returns:
        Posteriors, batch shape (B,), and the views: tensors (B, F) by name. All in float32 on the CPU.
    """
    standardised = [module for module in encoder.modules() if isinstance(module, Standardise)]
    source: nn.Module = standardised[-1] if standardised else encoder.backbone
    kept: Views = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept["features"] = module.differences(inputs[0]) if isinstance(module, Standardise) else output

    hook = source.register_forward_hook(keep)
    try:
        q = encoder(batch)
    finally:
        hook.remove()
    views = {"features": kept["features"]}
    if isinstance(batch, Tensor) and batch.dim() == 4:
        views["pixels"] = adaptive_avg_pool2d(batch, _THUMBNAIL).flatten(1)
        views["statistics"] = image_statistics(batch)
    if isinstance(batch, list):
        views["letters"] = letter_pairs(batch)
    return q.float().cpu(), {name: view.float().cpu() for name, view in views.items()}


def image_statistics(images: Tensor) -> Tensor:
    """Numbers that describe an image as a whole, for images (B, 3, S, S) of about unit variance.

    Returns:
        Shape (B, 19): mean and deviation of each colour; at three scales the strength of horizontal and vertical edges,
        of the strongest edges, and the share that is flat; and how colourful the image is.
    """
    grey = images.mean(1, keepdim=True)
    columns = [*images.mean((2, 3)).T, *images.flatten(2).std(2, correction=0).T]
    scaled = grey
    for _ in range(_SCALES):
        across = (scaled[..., 1:] - scaled[..., :-1]).abs().flatten(1)
        down = (scaled[..., 1:, :] - scaled[..., :-1, :]).abs().flatten(1)
        strengths = (across.mean(1), down.mean(1), across.square().mean(1).sqrt(), (across < _FLAT).float().mean(1))
        columns += [(strength + _LEAST).log() for strength in strengths]
        if min(scaled.shape[-2:]) >= 4:  # a smaller image has no coarser scale, and repeats the last one
            scaled = avg_pool2d(scaled, 2)
    columns.append(((images - grey).abs().mean((1, 2, 3)) + _LEAST).log())
    return torch.stack(columns, 1)


def letter_pairs(texts: Sequence[str]) -> Tensor:
    """How often each letter follows each other one, in N texts.

    Letters are a to z, white space, digits, and twelve classes of all other characters.

    Returns:
        Counts, shape (N, 40 * 40).
    """
    return torch.stack([_letter_pairs(text) for text in texts])


def _letter_pairs(text: str) -> Tensor:
    codes = np.frombuffer(" ".join(text.lower().split()).encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
    letter = _OTHER + codes % (_LETTERS - _OTHER)
    letter = np.where((codes >= ord("a")) & (codes <= ord("z")), codes - ord("a"), letter)
    letter = np.where((codes >= ord("0")) & (codes <= ord("9")), _DIGIT, letter)
    letter = np.where(codes == ord(" "), _SPACE, letter)
    pairs = np.bincount(letter[:-1] * _LETTERS + letter[1:], minlength=_LETTERS**2)
    return torch.from_numpy(pairs).float()
