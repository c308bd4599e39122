"""Contrastive batches from inputs, labels and pairs; the generative process with known posteriors; CIFAR."""

from aleator.data.augmentation import ImageAugmentation, centre_crops, random_crops
from aleator.data.batches import LabelledBatches, NegativeRule, PairBatches
from aleator.data.cifar import (
    CLASSES,
    FOLDS,
    MEAN,
    STD,
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
from aleator.data.downloads import download
from aleator.data.generative import Family, GenerativeProcess, ProcessKappaOf, RangeOf, Smoothing
from aleator.data.images import IMAGE_SUFFIXES, MOST_PIXELS, as_rgb, open_image, readable_formats, thumbnail
from aleator.data.inputs import InputKind, Inputs
from aleator.data.levels import Levels, measure_levels
from aleator.data.negatives import RolledNegatives, SharedNegatives
from aleator.data.noisy_direction import NoiseFamily, NoisyDirection
from aleator.data.pair_sampler import PairSampler, PositiveLaw
from aleator.data.pixels import normalise, to_bytes, to_unit
from aleator.data.soft_batches import LabelRowBatches, SoftBatch, SoftLabelBatches, SoftPairBatches, match_weights
from aleator.data.soft_process import SoftProcessBatches
from aleator.data.sources import Batches, CalledSource, Source, open_source

__all__ = [
    "CLASSES",
    "FOLDS",
    "IMAGE_SUFFIXES",
    "MEAN",
    "MOST_PIXELS",
    "STD",
    "Batches",
    "CalledSource",
    "CifarImages",
    "Family",
    "GenerativeProcess",
    "ImageAugmentation",
    "InputKind",
    "Inputs",
    "LabelRowBatches",
    "LabelledBatches",
    "Levels",
    "NegativeRule",
    "NoiseFamily",
    "NoisyDirection",
    "PairBatches",
    "PairSampler",
    "PositiveLaw",
    "ProcessKappaOf",
    "RangeOf",
    "RolledNegatives",
    "SharedNegatives",
    "Smoothing",
    "SoftBatch",
    "SoftLabelBatches",
    "SoftPairBatches",
    "SoftProcessBatches",
    "Source",
    "as_rgb",
    "centre_crops",
    "data_folder",
    "download",
    "load_cifar10",
    "load_cifar10h",
    "load_cifar10n",
    "load_crop_sizes",
    "load_folds",
    "match_weights",
    "measure_levels",
    "normalise",
    "open_image",
    "open_source",
    "random_crops",
    "readable_formats",
    "require_fit",
    "soft_labels",
    "thumbnail",
    "to_bytes",
    "to_unit",
]
