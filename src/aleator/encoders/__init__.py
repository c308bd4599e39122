"""The encoder, which turns inputs into posteriors: its backbones, saving and loading."""

from aleator.encoders.averaged_views import AveragedViews
from aleator.encoders.backbones import (
    MLP,
    Beside,
    Chain,
    Features,
    Flatten,
    ResNet18,
    register_backbone,
)
from aleator.encoders.controlled import ControlledKappaOf, Initialisation, controlled_encoder
from aleator.encoders.efficientnet_lite import EfficientNetLite0
from aleator.encoders.encoder import Encoder, KappaFrom, KappaOf
from aleator.encoders.ensemble import Ensemble
from aleator.encoders.heads import is_lazy
from aleator.encoders.huggingface import HubText, HubVision, Pooling
from aleator.encoders.loading import load_encoder
from aleator.encoders.low_rank import LowRank, add_low_rank, merge_low_rank
from aleator.encoders.model_sources import cached_model, find_model, hub_answers
from aleator.encoders.scaling import BoundedScale, DirectionAndLength, Standardise, UnitScale
from aleator.encoders.small_resnet import SmallResNet

__all__ = [
    "MLP",
    "AveragedViews",
    "Beside",
    "BoundedScale",
    "Chain",
    "ControlledKappaOf",
    "DirectionAndLength",
    "EfficientNetLite0",
    "Encoder",
    "Ensemble",
    "Features",
    "Flatten",
    "HubText",
    "HubVision",
    "Initialisation",
    "KappaFrom",
    "KappaOf",
    "LowRank",
    "Pooling",
    "ResNet18",
    "SmallResNet",
    "Standardise",
    "UnitScale",
    "add_low_rank",
    "cached_model",
    "controlled_encoder",
    "find_model",
    "hub_answers",
    "is_lazy",
    "load_encoder",
    "merge_low_rank",
    "register_backbone",
]
