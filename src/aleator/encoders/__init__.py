"""Inputs to posteriors: the encoder, its backbones, saving and loading."""

from aleator.encoders.backbones import MLP, Beside, Chain, Features, Flatten, ResNet18, Standardise, UnitScale
from aleator.encoders.encoder import Encoder, controlled_encoder, is_lazy, load_encoder
from aleator.encoders.huggingface import HubText, HubVision

__all__ = [
    "MLP",
    "Beside",
    "Chain",
    "Encoder",
    "Features",
    "Flatten",
    "HubText",
    "HubVision",
    "ResNet18",
    "Standardise",
    "UnitScale",
    "controlled_encoder",
    "is_lazy",
    "load_encoder",
]
