"""Encoders and a backbone that several test files use."""

from torch import nn

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder


def norm_encoder():
    return Encoder(MLP(4, (16,)), 3)


def shared_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_hidden=(8, 8))


def independent_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_backbone=MLP(4, (12, 8)))


def directional_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_hidden=(8, 8), kappa_of="mu")


def several_modes(kappa_backbone=None, **options):
    """An encoder of three modes in five dimensions."""
    own = None if kappa_backbone is None else MLP(4, kappa_backbone)
    return Encoder(MLP(4, (16,)), 5, kappa_hidden=(8,), kappa_backbone=own, modes=3, **options)


ENCODERS = [norm_encoder, shared_encoder, independent_encoder, directional_encoder]


class Pooled(nn.Module):
    """A backbone of a user's own, which does not say how many features it gives."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))
