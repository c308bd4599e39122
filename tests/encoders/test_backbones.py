"""Backbones: their features, and the registry that rebuilds them."""

import subprocess
import sys

import pytest
import torch

from aleator.encoders.backbones import (
    BACKBONES,
    MLP,
    Beside,
    Chain,
    ResNet18,
    register_backbone,
)
from aleator.encoders.encoder import Encoder
from aleator.encoders.loading import load_encoder
from tests.encoders.cases import Pooled


def test_resnet18_is_the_cifar_resnet18():
    resnet = ResNet18()
    # He et al.'s ResNet-18 has 11,176,512 parameters below its classifier; the stem has 3 x 3 x 3 x 64 here
    # instead of 7 x 7 x 3 x 64.
    assert sum(parameter.numel() for parameter in resnet.parameters()) == 11_176_512 - (49 - 9) * 3 * 64
    assert ResNet18(width=8).eval()(torch.randn(2, 3, 32, 32)).shape == (2, 64)
    shapes = []
    for block in resnet.blocks:
        block.register_forward_hook(lambda _m, _i, y: shapes.append(tuple(y.shape[1:])))
    with torch.no_grad():
        assert resnet(torch.randn(2, 3, 32, 32)).shape == (2, 512)
    assert shapes[::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_backbones_side_by_side_and_one_after_the_other(tmp_path):
    one, other = MLP(4, (3,)), MLP(4, (5, 2))
    beside = Beside([one, other])
    x = torch.randn(6, 4)
    assert beside.out_features == 5
    torch.testing.assert_close(beside(x), torch.cat([one(x), other(x)], 1))
    encoder = Encoder(Chain([beside, MLP(5, (7,))]), 3).eval()
    assert encoder.mu_head.in_features == 7
    encoder.save(tmp_path / "encoder")
    again = load_encoder(tmp_path / "encoder")
    torch.testing.assert_close(again(x).mu, encoder(x).mu)
    torch.testing.assert_close(again(x).kappa, encoder(x).kappa)
    with pytest.raises(ValueError, match="parts = 0"):
        Beside([])


def test_a_registered_backbone_rebuilds_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("aleator.encoders.backbones.BACKBONES", dict(BACKBONES))
    monkeypatch.setattr(Pooled, "arguments", {}, raising=False)
    register_backbone("pooled")(Pooled)
    encoder = Encoder(Pooled(), 4, features=5).eval()
    encoder.save(tmp_path / "model")
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(load_encoder(tmp_path / "model")(x).mu, encoder(x).mu)
    with pytest.raises(ValueError, match="is taken"):
        register_backbone("mlp")(Pooled)


def test_every_backbone_of_ours_can_be_loaded_without_further_imports():
    code = "import aleator.encoders.backbones as b, sys; assert 'transformers' not in sys.modules; "
    names = subprocess.run(
        [sys.executable, "-c", code + "print(*sorted(b.BACKBONES))"], capture_output=True, text=True, check=True
    )
    plain = {
        "beside",
        "bounded-scale",
        "chain",
        "direction-and-length",
        "features",
        "flatten",
        "mlp",
        "resnet18",
        "small-resnet",
        "standardise",
        "unit-scale",
    }
    plain |= {"averaged-views", "ensemble", "efficientnet-lite0"}
    assert set(names.stdout.split()) == plain | {"hub-text", "hub-vision"}
