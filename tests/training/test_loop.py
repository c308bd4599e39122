"""`fit`: it learns, it does what the recipe says, and it says clearly what is wrong."""

import csv

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from aleator.encoders import Encoder, load_encoder
from aleator.encoders.backbones import MLP
from aleator.losses import ExactInfoNCE, InfoNCE, MCInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.posteriors.vmf import VonMisesFisher
from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import SmallLoss, build, mean_kappa, pairs


def test_fit_learns_and_reports(tmp_path):
    encoder = Encoder(MLP(4, (32,)), 3)
    result = fit(
        encoder,
        SmallLoss(),
        pairs,
        Recipe(steps=150, learning_rate=1e-2, log_every=50),
        folder=tmp_path / "run",
        device="cpu",
    )
    assert result.encoder is encoder
    assert not encoder.training
    assert [row["step"] for row in result.history] == [50, 100, 150]
    assert result.history[-1]["loss"] < 0.7 * result.history[0]["loss"]
    with open(tmp_path / "run" / "training.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in result.history]
    x = torch.rand(3, 4)
    assert torch.equal(load_encoder(tmp_path / "run" / "encoder")(x).mu, encoder(x).mu)


@pytest.mark.parametrize("loss", [InfoNCE(20.0), MCInfoNCE(VMFKernel(20.0), 8), ExactInfoNCE(VMFKernel(20.0))])
def test_our_losses_train(loss):
    torch.manual_seed(2)
    encoder = Encoder(MLP(4, (32,)), 3, kappa="head", kappa_hidden=(8,))
    phases = "mu" if isinstance(loss, InfoNCE) else "mu-then-kappa"
    # Eight pairs a step are few: without a falling rate the end is a matter of chance.
    settings = Recipe(
        steps=300, learning_rate=3e-3, schedule="cosine", phases=phases, mu_negatives="given", precision="bf16"
    )
    generator = torch.Generator().manual_seed(1)
    x, near, far = (torch.cat(parts) for parts in zip(*(pairs(0, generator) for _ in range(250)), strict=True))

    @torch.no_grad()
    def held_out() -> float:
        q_far = encoder(far.flatten(0, 1))
        negative = VonMisesFisher(q_far.mu.view(-1, 3, 3), q_far.kappa.view(-1, 3))
        return loss(encoder(x), encoder(near), negative).item()

    before = held_out()
    fit(encoder, loss, pairs, settings, device="cpu")
    assert held_out() < before - 0.1
    assert all(torch.isfinite(parameter).all() for parameter in encoder.parameters())


def test_fit_leaves_the_callers_randomness_alone():
    state = torch.get_rng_state()
    encoder, loss = build()
    torch.set_rng_state(state)
    fit(encoder, loss, pairs, Recipe(steps=2), device="cpu")
    assert torch.equal(torch.get_rng_state(), state)


def test_the_seed_decides_and_validation_does_not_disturb():
    weights = []
    for seed, options in [(0, {}), (0, {"validate": mean_kappa}), (1, {})]:
        encoder, loss = build()
        every = 2 if options else None
        fit(encoder, loss, pairs, Recipe(steps=6, seed=seed, validate_every=every), device="cpu", **options)
        weights.append(encoder.mu_head.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("form", ["tuple", "dict", "pair", "loader", "dict of tensors"])
def test_forms_of_batches(form):
    x, near, far = pairs(0, torch.Generator().manual_seed(0))
    backbone = MLP(4, (8,))
    if form == "dict of tensors":

        class Keyed(nn.Module):
            out_features = 8

            def __init__(self):
                super().__init__()
                self.network = backbone

            def forward(self, inputs):
                return self.network(inputs["x"])

        batches = [({"x": x}, {"x": near}, {"x": far})]
        encoder = Encoder(Keyed(), 3)
    else:
        batches = {
            "tuple": [(x, near, far)],
            "dict": [{"anchor": x, "positive": near, "negative": far}],
            "pair": [(x, near)],
            "loader": DataLoader(TensorDataset(x, near, far), batch_size=4, shuffle=True),
        }[form]
        encoder = Encoder(backbone, 3)
    assert fit(encoder, SmallLoss(), batches, Recipe(steps=5), device="cpu").steps == 5


def test_a_backbone_of_unknown_size_is_fine():
    class Unsaid(nn.Module):
        def forward(self, x):
            return x * 2

    encoder = Encoder(Unsaid(), 3, kappa="head")
    fit(encoder, SmallLoss(), pairs, Recipe(steps=2), device="cpu")
    assert encoder.mu_head.in_features == 4


def test_low_precision_trains_with_float32_posteriors():
    seen = []

    class Watching(SmallLoss):
        def forward(self, anchor, positive, negative=None):
            seen.append((anchor.mu.dtype, anchor.kappa.dtype))
            return super().forward(anchor, positive, negative)

    encoder = Encoder(MLP(4, (8,)), 3)
    fit(encoder, Watching(), pairs, Recipe(steps=2, precision="bf16"), device="cpu")
    assert set(seen) == {(torch.float32, torch.float32)}
    assert encoder.mu_head.weight.dtype == torch.float32


def test_gradient_clipping_bounds_the_update():
    encoder, loss = build()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    settings = Recipe(steps=1, optimiser="sgd", learning_rate=1.0, clip_norm=1e-3)
    fit(encoder, loss, pairs, settings, device="cpu")
    moved = sum((value - before[name]).square().sum() for name, value in encoder.state_dict().items()).sqrt()
    assert 0 < moved.item() <= 1.001e-3


@pytest.mark.gpu
def test_fit_on_a_gpu(tmp_path):
    encoder, loss = build()
    seen = []

    def batches(step, generator):
        seen.append(generator.device.type)
        return tuple(part.to("cpu") for part in pairs(step, torch.Generator().manual_seed(step)))

    settings = Recipe(steps=20, phases="mu-then-kappa", precision="bf16", clip_norm=1.0, checkpoint_every=5)
    result = fit(encoder, loss, batches, settings, folder=tmp_path / "run", device="cuda", loggers=("csv",))
    assert set(seen) == {"cuda"}
    assert result.steps == 20
    assert next(encoder.parameters()).is_cuda


def test_one_source_per_phase():
    calls = []

    def source(name):
        return lambda step, generator: calls.append((name, step)) or pairs(step, generator)

    encoder, loss = build()
    sources = {"mu": source("mu"), "kappa": source("kappa")}
    fit(encoder, loss, sources, Recipe(steps=4, phases="mu-then-kappa", mu_fraction=0.25), device="cpu")
    assert calls == [("mu", 0), ("kappa", 1), ("kappa", 2), ("kappa", 3)]
    with pytest.raises(ValueError, match="no source for the phase 'kappa'"):
        fit(encoder, loss, {"mu": pairs}, Recipe(steps=4, phases="mu-then-kappa"), device="cpu")


def test_the_schedule_starts_anew_in_each_phase_and_reaches_the_optimiser():
    encoder, loss = build()
    settings = Recipe(
        steps=16, phases="mu-then-kappa", schedule="step", learning_rate=1.0, optimiser="sgd", log_every=2
    )
    encoder.requires_grad_(True)
    result = fit(encoder, loss, pairs, settings, device="cpu")
    assert [row["learning_rate"] for row in result.history] == pytest.approx([1, 0.1, 0.01, 0.001] * 2)
    assert [row["phase"] for row in result.history] == ["mu"] * 4 + ["kappa"] * 4


def test_other_bad_arguments():
    encoder, loss = build()
    five = Recipe(steps=5)
    with pytest.raises(ValueError, match="not an Encoder"):
        fit(MLP(4, (3,)), loss, pairs, five)
    with pytest.raises(ValueError, match="not a torch module"):
        fit(encoder, SmallLoss, pairs, five)
    with pytest.raises(ValueError, match="pass validate="):
        fit(encoder, loss, pairs, Recipe(steps=5, select="score"))
    with pytest.raises(ValueError, match="device = 'tpu'"):
        fit(encoder, loss, pairs, five, device="tpu")
    with pytest.raises(ValueError, match=r"select = 'score': validate does not report it; choose one of kappa"):
        fit(encoder, loss, pairs, Recipe(steps=5, select="score"), validate=mean_kappa, device="cpu")
    with pytest.raises(ValueError, match="validate = 'float': not a Mapping; return a dict of metrics"):
        fit(encoder, loss, pairs, five, validate=lambda encoder: 0.5, device="cpu")
    with pytest.raises(ValueError, match="validate = 'phase, step': the log has columns of this name"):
        fit(encoder, loss, pairs, five, validate=lambda encoder: {"step": 9, "phase": 1, "m": 2}, device="cpu")
    with pytest.raises(ValueError, match="optimiser_options"):
        fit(encoder, loss, pairs, Recipe(steps=5, optimiser_options={"speed": 9}), device="cpu")
    with pytest.raises(ValueError, match="nothing to train"):
        fit(encoder.requires_grad_(False), loss, pairs, five, device="cpu")
