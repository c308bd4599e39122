"""The setting of a CIFAR-10H run, and the images and labels of its folds.

The environment variable ALEATOR_DATA names the data folder.
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
from aleator.foundation import require, require_one_of
from aleator.matching import NegativeLaw

CifarLossName = LossName | Literal["softmax-entropy"]
LOSSES = (*CONTRASTIVE_LOSSES, "softmax-entropy")
LabelSource = Literal["soft", "hard", "train", "votes"]
LABELS: tuple[LabelSource, ...] = get_args(LabelSource)
TargetName = Literal["drawn", "soft", "classes"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)


@dataclass(frozen=True)
class CifarSetting:
    """One row of a table. The defaults are what the paper's losses have in common.

    Args:
        name: Name of the setting in the results.
        loss: Name of the loss; see experiments/settings.py. "softmax-entropy" trains nothing and measures the
            pretrained classifier.
        labels: Labels to train on. "soft": CIFAR-10H's soft labels. "hard": their most likely class. "train":
            CIFAR-10's train images and labels. "votes": CIFAR-10N's three votes on the train images, together with
            CIFAR-10H's soft labels, `repeat` times.
        repeat: See `labels`.
        pretrained: Whether to start from the pretrained classifier, or from scratch.
        network: Arguments of `PretrainingSetting`. Its width is the encoder's.
        beside: The same for further networks. Their features are concatenated with the first one's.
        pretraining_images: Number of train images that the classifier sees. None: all.
        images: Number of images that are used of each fold. None: all.
        hidden: Widths of layers between the network's features and the encoder's output layer.
        members: How many times the hidden layers are made. Members learn from different parts of every batch, and
            the output layer takes the mean of what it gives for each (`Ensemble`). It needs `hidden`.
        dim: Dimension of the posteriors.
        modes: Number of components of the posteriors.
        main_weight: Weight of the first component before training. None: all even.
        kappa: How the encoder computes kappa, "norm" or "head"; see `Encoder`.
        kappa_hidden: Hidden layers of the kappa head.
        kappa_start: Median of kappa before training, about.
        kernel: Kernel of the loss and of match probabilities. "acceptance" levels off for close latents, as r does for
            two images that are certainly of the same class. "vmf" is the paper's.
        kappa_pos: Concentration of the kernel.
        terms: Number of terms of the exact loss's series. None: as many as the kernel can need.
        samples: Number of samples of the Monte-Carlo losses.
        a: Scale of HIB.
        b: Offset of HIB.
        batch_size: Number of anchors in a batch.
        negatives: "batch": the other anchors. "rolled": the positive of the previous pair, which is the paper's M = 0.
            A number: so many, drawn by the paper's rule.
        targets: "drawn": an anchor has one positive, which is drawn. "soft": every pair of a batch has the probability
            that both images are of one class as its match weight. "classes": images are compared with learned
            posteriors of the classes too (`PrototypeLoss`; for the exact loss). Except for "drawn", a batch has 2
            `batch_size` images, as many as anchors and positives together, and `negatives` is not used.
        pairs: For the targets "classes", the weight of the pairs of images beside that of images and classes.
        augment: Arguments of `ImageAugmentation`. None: no augmentation.
        augmented: How many augmented copies of an image the stage `head_first` trains on, besides the image and its
            mirror image. More copies help with crops, at the expense of whole images.
        head_first: Arguments of the `Recipe` of a first stage, which trains only the output layers on features of the
            frozen network. None: no such stage.
        recipe: Arguments of the `Recipe` that trains all layers. Empty: no such stage, the network stays as pretrained.
        views: At test time an image has the mean features of so many views. 1: itself. 2: also its mirror image. 10:
            also both shifted by two pixels in four directions.
        watch: Whether validations also compute the correlation with label entropy.
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
    members: int = 1
    dim: int = 8
    modes: int = 1
    main_weight: float | None = None
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
    targets: TargetName = "drawn"
    pairs: float = 1.0
    augment: Mapping[str, Any] | None = None
    augmented: int = 1
    head_first: Mapping[str, Any] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    views: int = 1
    watch: bool = True

    # `make_loss` reads these too. The CIFAR experiments do not vary them, so they are no fields.
    learnable: ClassVar[bool] = False
    group: ClassVar[int | None] = None
    assumed_rule: ClassVar[NegativeLaw] = "marginal"
    average_negatives: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_one_of("loss", self.loss, LOSSES)
        require_one_of("labels", self.labels, LABELS)
        require_one_of("kernel", self.kernel, KERNELS)
        require_one_of("targets", self.targets, TARGETS)
        alone = self.members == 1 or bool(self.hidden)
        require(alone, "members", self.members, "there are no hidden layers to make more of", "pass hidden")
        takes_soft = self.targets == "drawn" or self.loss != "hib"
        require(takes_soft, "targets", self.targets, "HIB takes no soft targets", 'pass "drawn"')
        takes_classes = self.targets != "classes" or self.loss == "exact"
        require(takes_classes, "targets", self.targets, f"is not for the loss {self.loss}", 'pass "soft"')


def require_data(folder: str | Path | None = None) -> None:
    """Read all data once, so that a bad file is found before training, and set ALEATOR_DATA for worker processes."""
    root = data_folder(folder).resolve()
    test_set(root)
    require_fit(train_set(root).images, load_cifar10n(root), "CIFAR-10N")
    os.environ["ALEATOR_DATA"] = str(root)


@lru_cache(maxsize=4)
def test_set(root: Path) -> tuple[CifarImages, Tensor, Tensor, Tensor]:
    """CIFAR-10's test images, CIFAR-10H's soft labels (10000, 10), the folds' image numbers, and crop sizes."""
    images, votes = load_cifar10("test", root), load_cifar10h(root)
    require_fit(images.images, votes, "CIFAR-10H")
    return images, soft_labels(votes), load_folds(root), load_crop_sizes(root)


@lru_cache(maxsize=4)
def train_set(root: Path) -> CifarImages:
    """CIFAR-10's train images and labels."""
    return load_cifar10("train", root)


def held_out(setting: CifarSetting, fold: int) -> HeldOut:
    """One of the five folds of test images; `fold` counts modulo 5."""
    images, labels, folds, sizes = test_set(data_folder())
    number = folds[fold % FOLDS][: setting.images]
    return HeldOut(images.images[number], labels[number], sizes[: len(number)], number)


def training_data(setting: CifarSetting, fold: int) -> tuple[Tensor, Tensor]:
    """Images and labels that the encoder of a fold is trained on."""
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
    """CIFAR-10N: the train images, and three people's votes on each as soft labels (N, 10)."""
    train, votes = train_set(data_folder()), load_cifar10n(data_folder())
    require_fit(train.images, votes, "CIFAR-10N")
    few = slice(None if setting.images is None else 3 * setting.images)
    return train.images[few], soft_labels(votes[few])
