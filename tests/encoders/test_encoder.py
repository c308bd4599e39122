"""Encoders: posteriors that are always proper, and files that are always whole."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from aleator.encoders.backbones import (
    BACKBONES,
    MLP,
    Beside,
    Chain,
    Features,
    ResNet18,
    controlled_mlp,
    register_backbone,
)
from aleator.encoders.encoder import Encoder, controlled_encoder, is_lazy, load_encoder

BOUNDS = (1e-3, 1e6)


def norm_encoder():
    return Encoder(MLP(4, (16,)), 3)


def shared_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_hidden=(8, 8))


def independent_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_backbone=MLP(4, (12, 8)))


def directional_encoder():
    return Encoder(MLP(4, (16,)), 3, kappa="head", kappa_hidden=(8, 8), kappa_of="mu")


KINDS = [norm_encoder, shared_encoder, independent_encoder, directional_encoder]


class Pooled(nn.Module):
    """A backbone of a user's own, which does not say how many features it gives."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posteriors_have_the_promised_shapes_and_dtype(kind, dtype):
    q = kind().to(dtype)(torch.randn(7, 4, dtype=dtype))
    assert q.mu.shape == (7, 3)
    assert q.kappa.shape == (7,)
    assert q.mu.dtype == q.kappa.dtype == dtype
    torch.testing.assert_close(q.mu.norm(dim=-1), torch.ones(7, dtype=dtype))
    assert (q.kappa > 0).all()


def test_norm_is_the_embeddings_length():
    encoder = norm_encoder()
    x = torch.randn(50, 4) * 10
    e = encoder.mu_head(encoder.backbone(x))
    q = encoder(x)
    assert encoder.mu_head.bias is None
    torch.testing.assert_close(q.kappa, e.norm(dim=-1) + BOUNDS[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(q.mu, e / e.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-15, 1e-6, 1.0, 1e6, 1e15, 1e30, 1e37])
@pytest.mark.parametrize("kappa", ["norm", "head"])
def test_extreme_features_give_proper_posteriors_and_finite_gradients(kappa, size):
    encoder = Encoder(Features(6), 4, kappa=kappa, kappa_hidden=())
    direction = torch.randn(20, 6)
    features = (direction / direction.norm(dim=-1, keepdim=True) * size).requires_grad_()
    q = encoder(features)
    torch.testing.assert_close(q.mu.norm(dim=-1), torch.ones(20))
    assert torch.isfinite(q.kappa).all()
    assert (q.kappa >= BOUNDS[0] * (1 - 1e-5)).all()
    assert (q.kappa <= BOUNDS[1] * (1 + 1e-5)).all()
    (q.kappa.sum() + q.mu[:, 0].sum()).backward()
    assert torch.isfinite(features.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in encoder.parameters())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("kappa", ["norm", "head"])
def test_kappa_can_always_be_unlearned(kappa, size):
    # A saturating sigmoid has a gradient of exactly zero here: a kappa at its bound would stay there.
    encoder = Encoder(Features(6), 4, kappa=kappa, kappa_hidden=())
    features = (torch.randn(20, 6) * size).requires_grad_()
    encoder(features).kappa.log().sum().backward()
    assert (features.grad.norm(dim=-1) > 0).all()


def test_zero_features_are_uncertain_not_undefined():
    q = norm_encoder()(torch.zeros(2, 4) - 0.0)
    assert torch.isfinite(q.mu).all()
    q = Encoder(Features(6), 4)(torch.zeros(2, 6))
    torch.testing.assert_close(q.kappa, torch.full((2,), BOUNDS[0]))
    torch.testing.assert_close(q.mu.norm(dim=-1), torch.ones(2))


@pytest.mark.parametrize("kind", [shared_encoder, independent_encoder])
@pytest.mark.parametrize("kappa_range", [(16.0, 32.0), (64.0, 128.0), (0.01, 1e5)])
def test_calibration_spans_the_range_and_leaves_mu(kind, kappa_range):
    encoder, x = kind(), torch.rand(1000, 4)
    before = encoder(x).mu
    assert encoder.calibrate(x, kappa_range) is encoder
    q = encoder(x)
    torch.testing.assert_close(q.kappa.min().item(), kappa_range[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(q.kappa.max().item(), kappa_range[1], rtol=1e-3, atol=0)
    assert torch.equal(q.mu, before)


def test_calibrating_a_norm_centres_it():
    encoder, x = norm_encoder(), torch.rand(1000, 4)
    before = encoder(x).mu
    q = encoder.calibrate(x, (16.0, 32.0))(x)
    assert q.kappa.log().mean().exp().item() == pytest.approx(math.sqrt(16 * 32), rel=1e-3)
    torch.testing.assert_close(q.mu, before)


def test_a_head_starts_inside_its_range_even_without_calibration():
    kappa = Encoder(MLP(4, (16,)), 3, kappa="head", kappa_range=(64.0, 128.0))(torch.rand(500, 4)).kappa
    assert kappa.min() > 60
    assert kappa.max() < 136


def test_calibration_on_identical_inputs_goes_to_the_middle():
    encoder = shared_encoder()
    kappa = encoder.calibrate(torch.ones(5, 4), (16.0, 32.0))(torch.ones(5, 4)).kappa
    torch.testing.assert_close(kappa, torch.full((5,), math.sqrt(16 * 32)), rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_mu_and_kappa(kind):
    encoder = kind()
    mu, kappa = set(encoder.mu_parameters()), set(encoder.kappa_parameters())
    assert mu | kappa == set(encoder.parameters())
    assert (mu & kappa == set()) == encoder.separable
    q = encoder(torch.randn(5, 4))
    torch.autograd.grad(q.mu.sum(), list(mu), retain_graph=True)  # every one of them is used
    torch.autograd.grad(q.kappa.sum(), list(kappa), retain_graph=True)
    if kind is independent_encoder:
        unused = torch.autograd.grad(q.kappa.sum(), list(mu), allow_unused=True)
        assert unused == (None,) * len(mu)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_output_layers_in_float32(kind):
    encoder = kind()
    x = torch.randn(64, 4) * 5
    exact = encoder(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder.backbone(x).dtype == torch.bfloat16
        q = encoder(x)
    assert q.mu.dtype == q.kappa.dtype == torch.float32
    torch.testing.assert_close(q.mu.norm(dim=-1), torch.ones(64))
    torch.testing.assert_close(q.kappa, exact.kappa, rtol=0.05, atol=0.05)
    (q.mu.sum() + q.kappa.sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in encoder.parameters())


def test_the_papers_networks():
    encoder = controlled_encoder(10)
    widths = [layer.out_features for layer in encoder.backbone.layers] + [encoder.mu_head.out_features]
    assert widths == [100, 500, 500, 500, 500, 500, 100, 10]
    assert [layer.out_features for layer in encoder.kappa_backbone.layers] == widths[:-1]
    assert not set(encoder.backbone.parameters()) & set(encoder.kappa_backbone.parameters())
    for kappa_of, given in (("features", 100), ("mu", 16)):
        shared = controlled_encoder(10, 16, kappa_of=kappa_of)
        assert shared.kappa_backbone is None
        assert shared.kappa_head.in_features == given
        assert sum(isinstance(layer, nn.Linear) for layer in shared.kappa_head.layers) == 3
        assert shared(torch.rand(2, 10)).mu.shape == (2, 16)
    assert controlled_mlp(2).arguments == {"in_features": 2, "widths": [20, 100, 100, 100, 100, 100, 20]}


def test_kappa_of_mu_knows_the_direction_and_nothing_else():
    encoder, x = directional_encoder(), torch.randn(50, 4)
    before = encoder(x)
    with torch.no_grad():  # longer embeddings, and other features with the same directions
        encoder.mu_head.weight *= 3
        encoder.mu_head.bias *= 3
    torch.testing.assert_close(encoder(x).kappa, before.kappa)
    with torch.no_grad():
        encoder.mu_head.weight.copy_(encoder.mu_head.weight.flip(0))
        encoder.mu_head.bias.copy_(encoder.mu_head.bias.flip(0))
    assert (encoder(x).kappa / before.kappa - 1).abs().max() > 1e-3
    assert encoder.mu_parameters() == [*encoder.backbone.parameters(), *encoder.mu_head.parameters()]
    assert encoder.kappa_parameters() == list(encoder.kappa_head.parameters())


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


def test_a_frozen_backbone_stays_as_it_is():
    encoder = Encoder(ResNet18(width=4), 3, kappa="head", freeze_backbone=True)
    before = {name: tensor.clone() for name, tensor in encoder.backbone.state_dict().items()}
    encoder.train()
    q = encoder(torch.randn(8, 3, 16, 16))
    (q.kappa.sum() + q.mu.sum()).backward()
    assert all(parameter.grad is None for parameter in encoder.backbone.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.backbone.state_dict().items())
    assert encoder.mu_head.training


@pytest.mark.parametrize("kappa", ["norm", "head"])
def test_a_backbone_need_not_say_its_size(kappa):
    encoder = Encoder(Pooled(), 4, kappa=kappa)
    assert is_lazy(encoder)
    optimiser = torch.optim.Adam(encoder.parameters())
    encoder(torch.randn(2, 3, 8, 8)).kappa.sum().backward()
    optimiser.step()
    assert not is_lazy(encoder)
    assert encoder.mu_head.in_features == 5


@pytest.mark.parametrize(
    ("backbone", "features"),
    [
        (nn.Linear(4, 6), 6),
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout()), 6),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 6)), nn.GELU()), 6),
        (Features(4), 4),
    ],
)
def test_sizes_that_are_known_are_used(backbone, features):
    encoder = Encoder(backbone, 3)
    assert encoder.mu_head.in_features == features
    assert encoder(torch.randn(5, 4)).mu.shape == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 1}, "dim = 1"),
        ({"dim": 2.5}, "dim = 2.5"),
        ({"kappa": "scale"}, "choose one of 'norm', 'head'"),
        ({"kappa_backbone": MLP(4, (3,))}, 'pass kappa="head"'),
        ({"kappa_of": "mu"}, "another source"),
        ({"kappa": "head", "kappa_of": "input"}, "'features', 'mu'"),
        ({"kappa_bounds": (0.0, 1.0)}, "kappa_bounds"),
        ({"kappa_range": (32.0, 16.0)}, "kappa_range"),
        ({"kappa_range": (16.0, 1e9)}, "within the bounds"),
        ({"backbone": "resnet18"}, "backbone = 'resnet18'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Encoder(**({"backbone": MLP(4, (8,)), "dim": 3} | arguments))


def test_features_of_another_shape_are_named():
    with pytest.raises(ValueError, match=r"features of shape \(B, F\), not shape \(2, 5, 6, 6\)"):
        Encoder(nn.Conv2d(3, 5, 3), 3, features=5)(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    "kind", [*KINDS, lambda: controlled_encoder(2, kappa_of="mu"), lambda: norm_encoder().double()]
)
def test_save_and_load_give_the_same_bits(kind, tmp_path):
    encoder = kind().eval()
    size = encoder.backbone.arguments["in_features"]
    x = torch.randn(9, size, dtype=encoder.axis.dtype)
    if encoder.separable:
        encoder.calibrate(x, (3.0, 300.0))
    state = torch.get_rng_state()
    fingerprint = encoder.save(tmp_path / "model")
    loaded = load_encoder(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
    assert not loaded.training
    assert loaded.spec() == encoder.spec()
    assert torch.equal(loaded(x).mu, encoder(x).mu)
    assert torch.equal(loaded(x).kappa, encoder(x).kappa)
    assert loaded.save(tmp_path / "again") == fingerprint


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


def test_every_backbone_of_ours_can_be_loaded_without_further_imports():
    code = "import aleator.encoders as e, aleator.backbones as b, sys; assert 'transformers' not in sys.modules; "
    names = subprocess.run(
        [sys.executable, "-c", code + "print(*sorted(b.BACKBONES))"], capture_output=True, text=True, check=True
    )
    plain = {"beside", "chain", "features", "flatten", "mlp", "resnet18", "standardise", "unit-scale"}
    assert set(names.stdout.split()) == plain | {"hub-text", "hub-vision"}


def test_hub_backbones_say_what_to_install(monkeypatch):
    from aleator.encoders.huggingface import HubText, HubVision

    monkeypatch.setitem(sys.modules, "transformers", None)
    for load in (HubText.from_pretrained, HubVision.from_pretrained):
        with pytest.raises(ImportError, match=r"pip install 'aleator\[hub\]'"):
            load("any/model")


def test_hub_text_round_trip(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from aleator.encoders.huggingface import HubText

    words = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3, "cat": 4}, unk_token="[UNK]")
    tokeniser = tokenizers.Tokenizer(words)
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.BertConfig(
        vocab_size=5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    backbone = HubText(json.loads(config.to_json_string(use_diff=False)), tokeniser.to_str())
    encoder = Encoder(backbone, 4, kappa="head").eval()
    texts = ["a dog", "cat", "a cat a dog"]
    q = encoder(texts)
    assert q.mu.shape == (3, 4)
    torch.testing.assert_close(encoder(["cat"]).mu[0], q.mu[1])  # padding does not count
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(texts).mu, q.mu)
    with pytest.raises(ValueError, match="no tokeniser"):
        HubText(backbone.arguments["config"])(texts)


def test_hub_vision_round_trip(tmp_path):
    transformers = pytest.importorskip("transformers")
    from aleator.encoders.huggingface import HubVision

    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    encoder = Encoder(HubVision(json.loads(config.to_json_string(use_diff=False))), 4).eval()
    x = torch.randn(2, 3, 8, 8)
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(x).mu, encoder(x).mu)


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
