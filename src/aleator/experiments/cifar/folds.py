"""What a fold of the CIFAR-10H experiments is made of: its setting, and its images and labels.

The data folder is the one that ALEATOR_DATA names.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from aleator.data import (
    FOLDS,
    CifarImages,
    data_folder,
    load_cifar10,
    load_cifar10h,
    load_cifar10n,
    load_crop_sizes,
    load_folds,
    require_fit,
    soft_labels,
)
from aleator.encoders import KappaFrom
from aleator.experiments.cifar.evaluation import HeldOut
from aleator.experiments.settings import KERNELS, KernelName, LossName
from aleator.experiments.settings import LOSSES as CONTRASTIVE_LOSSES
from aleator.foundation import require_one_of

CifarLossName = LossName | Literal["softmax-entropy"]
LOSSES = (*CONTRASTIVE_LOSSES, "softmax-entropy")
LabelSource = Literal["soft", "hard", "train", "votes"]
LABELS: tuple[LabelSource, ...] = get_args(LabelSource)


@dataclass(frozen=True)
class CifarSetting:
    """What one row of a table is made of; the defaults are what the paper's losses share.

    Args:
        name: of the row's setting, as in the results.
        loss: one of LOSSES; "softmax-entropy" trains nothing and measures the pretrained classifier.
        labels: "soft", CIFAR-10H's; "hard", its likeliest class; "train", CIFAR-10's train images and labels; "votes",
            CIFAR-10N's three votes on the train images, with CIFAR-10H's soft labels `repeat` times over.
        pretrained: whether to start from the classifier, or from scratch.
        network: arguments of `PretrainingSetting`; its width is the encoder's.
        beside: the same for further networks, whose features stand beside the first one's.
        pretraining_images: how many train images the classifier sees; None for all.
        images: how many of each fold are used; None for all.
        hidden: widths of layers between the network's features and the encoder's output.
        dim, kappa, kappa_hidden: of the encoder. kappa_start: where kappa starts.
        kernel: of the loss and of match probabilities; "acceptance" levels off where latents are close, as r does among
            images that are surely of one class, "vmf" is the paper's.
        kappa_pos: of the kernel. samples, a, b: of the loss. terms: of the exact loss's series.
        negatives: "batch", the other anchors; "rolled", the positive of the pair before, which is the paper's M = 0; or
            a number, drawn by the paper's rule.
        augment: arguments of `ImageAugmentation`, or None for images as they are.
        augmented: how often an image is seen augmented by output layers that are trained first, beside itself and its
            mirror image. More of it teaches parts of images at the price of whole ones.
        head_first: arguments of the `Recipe` with which the output layer alone is trained before all of it, on features
            of the frozen backbone; None for no such stage.
        recipe: arguments of the `Recipe` for all layers; empty, and the network stays as it was pretrained.
        views: an image is measured by the mean features of so many views: 1, itself; 2, its mirror image too; 10, both
            shifted by two pixels in each direction as well.
        watch: whether validations also follow the entropy correlation.
    """

    name: str = "soft"
    loss: CifarLossName = "mcinfonce"
    labels: LabelSource = "soft"
    repeat: int = 1
    pretrained: bool = True
    network: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[Mapping[str, Any], ...] = ()
    pretraining_images: int | None = None
    images: int | None = None
    hidden: tuple[int, ...] = ()
    dim: int = 8
    kappa: KappaFrom = "norm"
    kappa_hidden: tuple[int, ...] = (256,)
    kappa_start: float = 16.0
    kernel: KernelName = "vmf"
    kappa_pos: float = 16.0
    terms: int | None = None
    samples: int = 128
    a: float = 1.0
    b: float = 0.0
    batch_size: int = 128
    negatives: int | str = "batch"
    augment: Mapping[str, Any] | None = None
    augmented: int = 1
    head_first: Mapping[str, Any] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    views: int = 1
    watch: bool = True

    # `make_loss` reads these too. The CIFAR experiments do not vary them, so they are no fields.
    learnable: ClassVar[bool] = False
    group: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        require_one_of("loss", self.loss, LOSSES)
        require_one_of("labels", self.labels, LABELS)
        require_one_of("kernel", self.kernel, KERNELS)


def require_data(folder: str | Path | None = None) -> None:
    """Read everything once, so that a bad file is found before training, and name the folder to all processes."""
    root = data_folder(folder).resolve()
    test_set(root)
    require_fit(train_set(root).images, load_cifar10n(root), "CIFAR-10N")
    os.environ["ALEATOR_DATA"] = str(root)


@lru_cache(maxsize=4)
def test_set(root: Path) -> tuple[CifarImages, Tensor, Tensor, Tensor]:
    images, votes = load_cifar10("test", root), load_cifar10h(root)
    require_fit(images.images, votes, "CIFAR-10H")
    return images, soft_labels(votes), load_folds(root), load_crop_sizes(root)


@lru_cache(maxsize=4)
def train_set(root: Path) -> CifarImages:
    return load_cifar10("train", root)


def held_out(setting: CifarSetting, fold: int) -> HeldOut:
    """One of the five sets of test images."""
    images, labels, folds, sizes = test_set(data_folder())
    number = folds[fold % FOLDS][: setting.images]
    return HeldOut(images.images[number], labels[number], sizes[: len(number)], number)


def training_data(setting: CifarSetting, fold: int) -> tuple[Tensor, Tensor]:
    """(images, labels) that the fold's encoder learns from."""
    parts = [held_out(setting, fold + i) for i in range(3)]
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    if setting.labels == "soft":
        return images, labels
    if setting.labels == "hard":
        return images, labels.argmax(1)
    train = train_set(data_folder())
    if setting.labels == "train":
        few = slice(None if setting.images is None else 3 * setting.images)
        return train.images[few], train.labels[few]
    more_images, votes = vote_data(setting)
    return (
        torch.cat([more_images, *[images] * setting.repeat]),
        torch.cat([votes, *[labels] * setting.repeat]),
    )


def vote_data(setting: CifarSetting) -> tuple[Tensor, Tensor]:
    """CIFAR-10N: the train images and what three people said of each."""
    train, votes = train_set(data_folder()), load_cifar10n(data_folder())
    require_fit(train.images, votes, "CIFAR-10N")
    few = slice(None if setting.images is None else 3 * setting.images)
    return train.images[few], soft_labels(votes[few])
