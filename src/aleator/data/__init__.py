"""Inputs, labels and pairs to contrastive batches; the generative process with known posteriors; CIFAR."""

from aleator.data.augmentation import ImageAugmentation, centre_crops, random_crops
from aleator.data.batches import LabelledBatches, PairBatches
from aleator.data.cifar import (
    CLASSES,
    FOLDS,
    MEAN,
    STD,
    CifarImages,
    data_folder,
    label_entropy,
    load_cifar10,
    load_cifar10h,
    load_cifar10n,
    load_crop_sizes,
    load_folds,
    require_fit,
    soft_labels,
)
from aleator.data.generative import GenerativeProcess, NoisyDirection
from aleator.data.inputs import IMAGE_SUFFIXES, Inputs, open_image
from aleator.data.sources import Batches, CalledSource, RolledNegatives, SharedNegatives, Source, open_source

__all__ = [
    "CLASSES",
    "FOLDS",
    "IMAGE_SUFFIXES",
    "MEAN",
    "STD",
    "Batches",
    "CalledSource",
    "CifarImages",
    "GenerativeProcess",
    "ImageAugmentation",
    "Inputs",
    "LabelledBatches",
    "NoisyDirection",
    "PairBatches",
    "RolledNegatives",
    "SharedNegatives",
    "Source",
    "centre_crops",
    "data_folder",
    "label_entropy",
    "load_cifar10",
    "load_cifar10h",
    "load_cifar10n",
    "load_crop_sizes",
    "load_folds",
    "open_image",
    "open_source",
    "random_crops",
    "require_fit",
    "soft_labels",
]
