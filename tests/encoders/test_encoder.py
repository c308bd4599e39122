"""Encoders: posteriors are always proper, and kappa can be set and scaled."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from aleator.encoders.backbones import MLP, Features, ResNet18
from aleator.encoders.encoder import Encoder
from aleator.encoders.heads import is_lazy
from aleator.encoders.loading import load_encoder
from aleator.posteriors import VMFMixture, VonMisesFisher
from tests.encoders.cases import (
    ENCODERS,
    Pooled,
    directional_encoder,
    independent_encoder,
    norm_encoder,
    several_modes,
    shared_encoder,
)

BOUNDS = (1e-3, 1e6)
SEVERAL_MODES: list[dict] = [
    {"kappa": "norm"},
    {"kappa": "head"},
    {"kappa": "head", "kappa_of": "mu"},
    {"kappa": "head", "kappa_backbone": (12, 8)},
]


@pytest.mark.parametrize("build", ENCODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posteriors_have_the_promised_shapes_and_dtype(build, dtype):
    q = build().to(dtype)(torch.randn(7, 4, dtype=dtype))
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


@pytest.mark.parametrize("build", [shared_encoder, independent_encoder])
@pytest.mark.parametrize("kappa_range", [(16.0, 32.0), (64.0, 128.0), (0.01, 1e5)])
def test_a_head_spans_its_kappa_range_and_mu_stays(build, kappa_range):
    encoder, x = build(), torch.rand(1000, 4)
    before = encoder(x).mu
    assert encoder.set_kappa_range(x, kappa_range) is encoder
    q = encoder(x)
    torch.testing.assert_close(q.kappa.min().item(), kappa_range[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(q.kappa.max().item(), kappa_range[1], rtol=1e-3, atol=0)
    assert torch.equal(q.mu, before)


def test_a_norm_is_centred_on_its_kappa_range():
    encoder, x = norm_encoder(), torch.rand(1000, 4)
    before = encoder(x).mu
    q = encoder.set_kappa_range(x, (16.0, 32.0))(x)
    assert q.kappa.log().mean().exp().item() == pytest.approx(math.sqrt(16 * 32), rel=1e-3)
    torch.testing.assert_close(q.mu, before)


def test_a_head_starts_inside_its_range_without_a_sample():
    kappa = Encoder(MLP(4, (16,)), 3, kappa="head", kappa_range=(64.0, 128.0))(torch.rand(500, 4)).kappa
    assert kappa.min() > 60
    assert kappa.max() < 136


def test_identical_inputs_get_the_middle_of_the_kappa_range():
    encoder = shared_encoder()
    kappa = encoder.set_kappa_range(torch.ones(5, 4), (16.0, 32.0))(torch.ones(5, 4)).kappa
    torch.testing.assert_close(kappa, torch.full((5,), math.sqrt(16 * 32)), rtol=0.05, atol=0)


@pytest.mark.parametrize("factor", [0.01, 1.0, 3.7, 50.0])
@pytest.mark.parametrize("build", ENCODERS)
def test_scaling_kappa_multiplies_every_kappa_and_leaves_mu(build, factor):
    encoder, x = build().double(), torch.randn(200, 4, dtype=torch.float64)
    encoder.set_kappa_range(x, (30.0, 300.0))
    before = encoder(x)
    assert encoder.scale_kappa(factor) is encoder
    after = encoder(x)
    # A norm is the kappa up to the relative errors l / n and n / h of its bounds; a head is exact.
    rtol = 1e-12 if encoder.separable else 0.1
    torch.testing.assert_close(after.kappa, factor * before.kappa, rtol=rtol, atol=0)
    torch.testing.assert_close(after.mu, before.mu)
    if encoder.separable:
        assert torch.equal(after.mu, before.mu)


def test_scaling_the_kappa_of_a_norm_scales_its_last_layer():
    encoder = norm_encoder()
    expected = encoder.mu_head.weight * 1.7389
    assert torch.equal(encoder.scale_kappa(1.7389).mu_head.weight, expected)
    assert encoder.kappa_bounds == BOUNDS


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_only_positive_factors_scale_kappa(factor):
    with pytest.raises(ValueError, match=r"factor = .*not a positive number"):
        shared_encoder().scale_kappa(factor)


@pytest.mark.parametrize("build", [norm_encoder, shared_encoder, directional_encoder])
def test_another_backbone_with_the_same_output_layers(build):
    encoder, x = build().eval(), torch.randn(9, 4)
    encoder.scale_kappa(2.0)
    state = torch.get_rng_state()
    head = encoder.with_backbone(Features(16))
    assert torch.equal(torch.get_rng_state(), state)
    assert not head.training
    assert torch.equal(head(encoder.backbone(x)).mu, encoder(x).mu)
    assert torch.equal(head(encoder.backbone(x)).kappa, encoder(x).kappa)
    assert head.mu_head is encoder.mu_head
    assert head.kappa_head is encoder.kappa_head
    with pytest.raises(ValueError, match="have no size yet"):
        Encoder(Pooled(), 4).with_backbone(Features(5))


@pytest.mark.parametrize("options", [each for each in SEVERAL_MODES if "kappa_of" not in each])
def test_modes_that_no_input_uses_are_pruned(options, tmp_path):
    encoder, x = several_modes(**options).eval(), torch.randn(20, 4)
    with torch.no_grad():
        encoder.weight_head.weight.normal_(0, 0.1)
        encoder.weight_head.bias.copy_(torch.tensor([0.3, -20.0, 0.0]))
    state = torch.get_rng_state()
    pruned = encoder.prune(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert (pruned.modes, pruned.training) == (2, False)
    before, after = encoder(x), pruned(x)
    kept = torch.tensor([0, 2])
    torch.testing.assert_close(after.components.mu, before.components.mu[:, kept])
    torch.testing.assert_close(after.components.kappa, before.components.kappa[:, kept])
    torch.testing.assert_close(after.weights, before.weights[:, kept], atol=1e-6, rtol=0)
    pruned.save(tmp_path / "pruned")
    assert torch.equal(load_encoder(tmp_path / "pruned")(x).components.mu, after.components.mu)
    assert encoder.modes == 3  # unchanged
    assert pruned.prune(x) is pruned
    with torch.no_grad():
        pruned.weight_head.bias.add_(torch.tensor([0.0, 30.0]))
    single = pruned.prune(x)
    assert isinstance(single(x), VonMisesFisher)
    torch.testing.assert_close(single(x).mu, after.components.mu[:, 1])
    assert single.prune(x) is single


def test_what_cannot_be_pruned_is_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"least = 0.5: not in \[0, 1/3\)"):
        several_modes().prune(x, 0.5)
    with pytest.raises(ValueError, match="directions of all modes"):
        several_modes(kappa="head", kappa_of="mu").prune(x)


@pytest.mark.parametrize("build", ENCODERS)
def test_parameters_of_mu_and_kappa(build):
    encoder = build()
    mu, kappa = set(encoder.mu_parameters()), set(encoder.kappa_parameters())
    assert mu | kappa == set(encoder.parameters())
    assert (mu & kappa == set()) == encoder.separable
    q = encoder(torch.randn(5, 4))
    torch.autograd.grad(q.mu.sum(), list(mu), retain_graph=True)  # every one of them is used
    torch.autograd.grad(q.kappa.sum(), list(kappa), retain_graph=True)
    if build is independent_encoder:
        unused = torch.autograd.grad(q.kappa.sum(), list(mu), allow_unused=True)
        assert unused == (None,) * len(mu)


@pytest.mark.parametrize("build", ENCODERS)
def test_autocast_leaves_the_output_layers_in_float32(build):
    encoder = build()
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


class TestModes:
    """Encoders whose posteriors are mixtures."""

    @pytest.mark.parametrize("options", SEVERAL_MODES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_shapes_and_dtype(self, options, dtype):
        q = several_modes(**options).to(dtype)(torch.randn(7, 4, dtype=dtype))
        assert isinstance(q, VMFMixture)
        assert q.batch_shape == (7,)
        assert q.components.mu.shape == (7, 3, 5)
        assert q.components.kappa.shape == q.log_weights.shape == (7, 3)
        assert q.dtype == dtype
        torch.testing.assert_close(q.components.mu.norm(dim=-1), torch.ones(7, 3, dtype=dtype))
        assert (q.components.kappa > 0).all()

    @pytest.mark.parametrize("options", SEVERAL_MODES, ids=str)
    def test_training_starts_with_even_weights_and_components_apart(self, options):
        q = several_modes(**options)(torch.randn(50, 4))
        torch.testing.assert_close(q.weights, torch.full((50, 3), 1 / 3))
        cosine = q.components.mu @ q.components.mu.mT
        assert cosine[:, *torch.triu_indices(3, 3, 1)].mean() < 0.8

    def test_a_main_component(self):
        q = Encoder(MLP(4, (16,)), 5, modes=3, main_weight=0.9)(torch.randn(7, 4))
        torch.testing.assert_close(q.weights, torch.tensor([0.9, 0.05, 0.05]).expand(7, 3))
        lazy = Encoder(Pooled(), 3, modes=2, main_weight=0.7)(torch.randn(4, 3, 8, 8))
        torch.testing.assert_close(lazy.weights, torch.tensor([0.7, 0.3]).expand(4, 2))
        with pytest.raises(ValueError, match=r"main_weight = 1\.0"):
            Encoder(MLP(4, (16,)), 5, modes=2, main_weight=1.0)

    @pytest.mark.parametrize("options", SEVERAL_MODES, ids=str)
    def test_everything_gets_a_gradient(self, options):
        encoder = several_modes(**options)
        q = encoder(torch.randn(7, 4))
        q.log_prob(nn.functional.normalize(torch.randn(7, 5), dim=-1)).sum().backward()
        assert all(parameter.grad is not None for parameter in encoder.parameters())
        assert encoder.weight_head.weight.grad.abs().max() > 0
        owned = encoder.mu_parameters() + (encoder.kappa_parameters() if encoder.separable else [])
        assert {id(p) for p in owned} == {id(p) for p in encoder.parameters()}

    def test_one_mode_has_no_further_layer(self):
        encoder = Encoder(MLP(4, (16,)), 3, modes=1)
        assert encoder.weight_head is None
        assert set(encoder.state_dict()) == set(norm_encoder().state_dict())
        assert type(encoder(torch.randn(2, 4))) is VonMisesFisher

    @pytest.mark.parametrize("options", SEVERAL_MODES, ids=str)
    def test_kappa_can_be_set_and_scaled(self, options):
        encoder, x = several_modes(**options), torch.randn(50, 4)
        encoder.set_kappa_range(x, (10.0, 40.0))
        kappa = encoder(x).components.kappa
        assert kappa.log().mean().exp().item() == pytest.approx(20, rel=0.3)
        encoder.scale_kappa(2.0)
        torch.testing.assert_close(encoder(x).components.kappa, 2 * kappa, rtol=1e-3, atol=0)

    def test_a_backbone_that_does_not_tell_its_features(self):
        encoder = Encoder(Pooled(), 3, modes=2)
        assert is_lazy(encoder)
        q = encoder(torch.randn(4, 3, 8, 8))
        torch.testing.assert_close(q.weights, torch.full((4, 2), 0.5))
        assert not is_lazy(encoder)

    def test_another_backbone_shares_the_output_layers(self):
        encoder = several_modes(kappa="head")
        other = encoder.with_backbone(MLP(6, (16,)))
        assert other.weight_head is encoder.weight_head
        assert other(torch.randn(2, 6)).modes == 3

    def test_a_number_of_modes_that_makes_no_sense(self):
        with pytest.raises(ValueError, match="modes = 0"):
            Encoder(MLP(4, (16,)), 3, modes=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_for_the_backbone(dtype):
    encoder = Encoder(MLP(4, (8,)), 3)
    encoder.backbone.to(dtype)
    assert encoder(torch.randn(5, 4, dtype=dtype)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"encoder = torch\.b?float16: posteriors need .* convert encoder\.backbone"):
        encoder.to(dtype)(torch.randn(5, 4, dtype=dtype))


def test_one_input_is_not_a_batch():
    with pytest.raises(ValueError, match=r"not shape \(8,\); pass a batch of inputs"):
        Encoder(MLP(4, (8,)), 3)(torch.randn(4))


def test_a_kappa_range_that_is_refused_changes_nothing():
    encoder = Encoder(MLP(4, (8,)), 3, kappa="head")
    with pytest.raises(ValueError, match="kappa_range"):
        encoder.set_kappa_range(torch.randn(5, 4), (16.0, 1e9))
    assert encoder.kappa_range == (16.0, 32.0)


def test_sizes_of_numpy_are_taken_and_saved(tmp_path):
    three, four = np.int64(3), np.int64(4)
    encoder = Encoder(MLP(four, (four,)), dim=three, kappa="head", modes=np.int64(2), kappa_hidden=(four,))
    encoder.save(tmp_path / "mlp")
    Encoder(Features(four), dim=3).save(tmp_path / "features")
    x = torch.randn(5, 4)
    assert torch.equal(load_encoder(tmp_path / "mlp")(x).mode, encoder(x).mode)
