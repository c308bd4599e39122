"""Saved encoders: the same bits after loading, and folders that are whole."""

import json

import pytest
import torch

from aleator.encoders.backbones import MLP, ResNet18
from aleator.encoders.controlled import controlled_encoder
from aleator.encoders.encoder import FORMAT_VERSION, Encoder
from aleator.encoders.loading import load_encoder
from aleator.foundation import write_bundle
from tests.encoders.cases import ENCODERS, Pooled, norm_encoder, several_modes, shared_encoder


@pytest.mark.parametrize(
    "build", [*ENCODERS, lambda: controlled_encoder(2, kappa_of="mu"), lambda: norm_encoder().double()]
)
def test_save_and_load_give_the_same_bits(build, tmp_path):
    encoder = build().eval()
    size = encoder.backbone.arguments["in_features"]
    x = torch.randn(9, size, dtype=encoder.axis.dtype)
    if encoder.separable:
        encoder.set_kappa_range(x, (3.0, 300.0))
        encoder.scale_kappa(0.3)
    state = torch.get_rng_state()
    fingerprint = encoder.save(tmp_path / "model")
    loaded = load_encoder(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
    assert not loaded.training
    assert loaded.spec() == encoder.spec()
    assert torch.equal(loaded(x).mu, encoder(x).mu)
    assert torch.equal(loaded(x).kappa, encoder(x).kappa)
    assert loaded.save(tmp_path / "again") == fingerprint


def test_a_backbone_of_another_precision_keeps_it(tmp_path):
    encoder = Encoder(MLP(4, (8,)), 3)
    encoder.backbone.bfloat16()
    encoder.eval().save(tmp_path / "model")
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    loaded = load_encoder(tmp_path / "model")
    assert torch.equal(loaded(x).mu, encoder(x).mu)
    assert loaded.mu_head.weight.dtype == torch.float32
    assert torch.equal(load_encoder(tmp_path / "model", backbone=MLP(4, (8,)))(x).kappa, encoder(x).kappa)


def test_resnet_round_trip_keeps_running_statistics(tmp_path):
    encoder = Encoder(ResNet18(width=4), 3)
    encoder(torch.randn(8, 3, 16, 16) * 3 + 1)
    encoder.save(tmp_path / "model")
    loaded = load_encoder(tmp_path / "model").state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in encoder.state_dict().items())


def test_a_users_own_backbone_must_come_along(tmp_path):
    encoder = Encoder(Pooled(), 4).eval()
    with pytest.raises(ValueError, match="have no size yet"):
        encoder.save(tmp_path / "model")
    x = torch.randn(2, 3, 8, 8)
    mu = encoder(x).mu
    encoder.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"a Pooled, which.*load_encoder\(path, backbone=module\)"):
        load_encoder(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model", backbone=Pooled())(x).mu, mu)
    with pytest.raises(ValueError, match="does not fit what was saved"):
        load_encoder(tmp_path / "model", backbone=MLP(4, (5,)))


def test_saving_refuses_to_overwrite(tmp_path):
    first = shared_encoder()
    first.save(tmp_path / "model")
    first.save(tmp_path / "model")
    second = shared_encoder()
    with pytest.raises(ValueError, match="overwrite=True"):
        second.save(tmp_path / "model")
    second.save(tmp_path / "model", overwrite=True)
    assert torch.equal(load_encoder(tmp_path / "model").mu_head.weight, second.mu_head.weight)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="not empty"):
        first.save(tmp_path / "notes")
    with pytest.raises(ValueError, match="is a file"):
        first.save(tmp_path / "notes" / "mine.txt")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    shared_encoder().save(tmp_path / "model")
    (weights,) = (tmp_path / "model").glob("*.safetensors")
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="damaged"):
        load_encoder(tmp_path / "model")
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match="checksum"):
        load_encoder(tmp_path / "model")
    weights.write_bytes(data)
    index = tmp_path / "model" / "encoder.json"
    document = json.loads(index.read_text())
    index.write_text(json.dumps(document | {"version": 99}))
    with pytest.raises(ValueError, match="format version 99"):
        load_encoder(tmp_path / "model")
    index.write_text(json.dumps(document | {"facts": document["facts"] | {"dim": 4}}))
    with pytest.raises(ValueError, match="damaged"):
        load_encoder(tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds no encoder\.json"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("kappa", ["norm", "head"])
def test_several_modes_round_trip(kappa, tmp_path):
    encoder = several_modes(kappa=kappa).eval()
    torch.nn.init.normal_(encoder.weight_head.weight)
    x = torch.randn(9, 4)
    fingerprint = encoder.save(tmp_path / "model")
    loaded = load_encoder(tmp_path / "model")
    assert loaded.spec() == encoder.spec()
    for a, b in zip(loaded(x)._tensors(), encoder(x)._tensors(), strict=True):
        assert torch.equal(a, b)
    assert loaded.save(tmp_path / "again") == fingerprint


def test_an_encoder_from_before_there_were_modes(tmp_path):
    encoder = norm_encoder().eval()
    spec = encoder.spec()
    del spec["modes"]
    write_bundle(tmp_path / "model", "encoder", FORMAT_VERSION, spec, encoder.state_dict(), overwrite=False)
    x = torch.randn(3, 4)
    assert torch.equal(load_encoder(tmp_path / "model")(x).mu, encoder(x).mu)
