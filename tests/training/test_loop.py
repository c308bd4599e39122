"""`fit`: it learns, it does what the recipe says, and it says clearly what is wrong."""

import csv
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from aleator.encoders import Encoder, load_encoder
from aleator.encoders.backbones import MLP, ResNet18
from aleator.losses import ExactInfoNCE, InfoNCE, MCInfoNCE
from aleator.matching.kernels import AcceptanceKernel, VMFKernel
from aleator.posteriors.vmf import VonMisesFisher
from aleator.training.loop import fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe
from tests.training.training_cases import SmallLoss, build, mean_kappa, pairs, run, scores


@pytest.fixture(autouse=True)
def one_thread():
    """For sums this small, threads cost more than they give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def test_the_loss_learns_too_and_user_frozen_parameters_do_not():
    encoder, loss = build()
    encoder.mu_head.requires_grad_(False)
    frozen, temperature = encoder.mu_head.weight.clone(), loss.temperature.item()
    fit(encoder, loss, pairs, Recipe(steps=3, learning_rate=0.1, weight_decay=0.1), device="cpu")
    assert torch.equal(encoder.mu_head.weight, frozen)
    assert not encoder.mu_head.weight.requires_grad
    assert loss.temperature.item() != temperature


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


# --- phases --------------------------------------------------------------------------------


def test_phases_freeze_what_they_should():
    encoder, loss = build()
    snapshots = []

    def batches(step, generator):
        snapshots.append(
            ([p.clone() for p in encoder.mu_parameters()], [p.clone() for p in encoder.kappa_parameters()])
        )
        return pairs(step, generator)

    fit(encoder, loss, batches, Recipe(steps=6, phases="mu-then-kappa", learning_rate=0.01), device="cpu")
    snapshots.append((encoder.mu_parameters(), encoder.kappa_parameters()))

    def moved(part, start, end):
        return any(not torch.equal(a, b) for a, b in zip(snapshots[start][part], snapshots[end][part], strict=True))

    assert moved(0, 0, 3)
    assert not moved(1, 0, 3)
    assert not moved(0, 3, 6)
    assert moved(1, 3, 6)
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_the_kappa_phase_keeps_running_statistics():
    encoder = Encoder(ResNet18(width=2), 3, kappa="head", kappa_hidden=(4,))
    images = torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in encoder.backbone.state_dict().items()}
    validate = {"validate": lambda e: {"x": 1.0}}  # evaluation in between must not thaw them
    settings = Recipe(steps=3, phases="kappa", validate_every=1)
    fit(encoder, SmallLoss(), [(images, images)], settings, device="cpu", **validate)
    assert all(torch.equal(before[name], value) for name, value in encoder.backbone.state_dict().items())


def test_the_mu_phase_sees_one_rolled_negative():
    encoder, _ = build()
    encoder.eval()
    seen = {}

    def watching(anchor, positive, negative):
        seen.update(anchor=anchor, positive=positive, negative=negative)
        return (anchor.mu * positive.mu).sum(-1).mean()

    loss = SmallLoss()
    loss.forward = watching
    x, near, far = pairs(0, torch.Generator().manual_seed(0))
    Objective(encoder, loss, "mu", "rolled")((x, near, far))
    assert seen["negative"].mu.shape == (8, 1, 3)
    for i in range(8):
        torch.testing.assert_close(seen["negative"].mu[i, 0], encoder(near).mu[i - 1])
    assert not seen["anchor"].kappa.requires_grad
    Objective(encoder, loss, "mu", "given")((x, near, far))
    torch.testing.assert_close(seen["negative"].mu, encoder(far.flatten(0, 1)).mu.view(8, 3, 3))
    Objective(encoder, loss, "joint", "rolled")((x, near, far))
    torch.testing.assert_close(seen["negative"].kappa, encoder(far.flatten(0, 1)).kappa.view(8, 3))
    Objective(encoder, loss, "joint", "rolled")((x, near))
    assert seen["negative"] is None


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


def test_a_norm_encoder_trains_in_two_phases():
    encoder = Encoder(MLP(4, (8,)), 3)
    result = fit(encoder, SmallLoss(), pairs, Recipe(steps=4, phases="mu-then-kappa"), device="cpu")
    assert result.steps == 4
    with pytest.raises(ValueError, match="cannot be trained alone"):
        fit(encoder, SmallLoss(), pairs, Recipe(steps=4, phases="kappa"), device="cpu")


def test_the_schedule_starts_anew_in_each_phase_and_reaches_the_optimiser():
    encoder, loss = build()
    settings = Recipe(
        steps=16, phases="mu-then-kappa", schedule="step", learning_rate=1.0, optimiser="sgd", log_every=2
    )
    encoder.requires_grad_(True)
    result = fit(encoder, loss, pairs, settings, device="cpu")
    assert [row["learning_rate"] for row in result.history] == pytest.approx([1, 0.1, 0.01, 0.001] * 2)
    assert [row["phase"] for row in result.history] == ["mu"] * 4 + ["kappa"] * 4


# --- selection and early stopping ------------------------------------------------------------


def test_the_best_weights_are_kept():
    encoder, loss = build()
    weights = {}

    def validate(encoder):
        weights[len(weights) + 1] = encoder.mu_head.weight.clone()
        return {"score": {1: 0.1, 2: 0.9, 3: float("nan"), 4: 0.5}[len(weights)]}

    settings = Recipe(steps=4, validate_every=1, select="score", learning_rate=0.1)
    result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert (result.best_step, result.best_value, result.stopped_early) == (2, 0.9, False)
    assert torch.equal(encoder.mu_head.weight, weights[2])


def test_patience_stops_the_run():
    encoder, loss = build()
    settings = Recipe(steps=100, validate_every=2, select="score", select_mode="min", patience=3)
    validate = scores(5.0, 4.0, 4.0, 4.5, 6.0)
    result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert result.stopped_early
    assert (result.steps, result.best_step, result.best_value) == (10, 4, 4.0)


def test_selection_looks_at_the_last_phase_only():
    encoder, loss = build()
    settings = Recipe(steps=8, phases="mu-then-kappa", validate_every=2, select="score", patience=1)
    validate = scores(9.0, 8.0, 1.0, 2.0)
    result = fit(encoder, loss, pairs, settings, validate=validate, device="cpu")
    assert (result.steps, result.best_step, result.stopped_early) == (8, 8, False)


def test_selection_in_all_phases():
    """The best validation of all may be one of the first phase; its weights are the ones kept."""
    encoder, loss = build()
    settings = Recipe(
        steps=8, phases="mu-then-kappa", validate_every=2, select="score", select_in="all", learning_rate=0.1
    )
    given, seen = iter([0.0, 5.0, 1.0, 2.0]), []

    def score(encoder):
        seen.append({name: value.clone() for name, value in encoder.state_dict().items()})
        return {"score": next(given)}

    result = fit(encoder, loss, pairs, settings, validate=score, device="cpu")
    assert result.best_step == 4
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, seen[1][name])


# --- logs --------------------------------------------------------------------------------


def test_tensorboard_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard")
    run(tmp_path / "run", loggers=("csv", "tensorboard"))
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_missing_loggers_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        run(tmp_path / "run", loggers=("wandb",))
    with pytest.raises(ValueError, match="loggers = 'excel'"):
        run(tmp_path / "run", loggers=("excel",))


def test_the_progress_bar_shows_the_loss(capsys):
    run(None, progress=True)
    assert "loss" in capsys.readouterr().err
    run(None)  # not a terminal
    assert capsys.readouterr().err == ""


# --- bad input --------------------------------------------------------------------------------


X = torch.rand(4, 4)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches = 'list': is empty"),
        (iter([(X, X)]), "ended before step 1 and cannot start again"),
        (7, "neither callable nor iterable"),
        ([X], "two or three parts"),
        ([{"anchor": X}], "names of its parts"),
        ([(X, X[:2])], "positive = 2: there are 4 anchors"),
        ([(X, X, X[:3, None])], "negative.*there are 4 anchors"),
        ([(X[:0], X[:0])], "empty batch"),
        ([(X, torch.rand(4, 5))], r"positive = \(5,\): one anchor has shape \(4,\)"),
    ],
)
def test_bad_batches(batches, message):
    encoder, loss = build()
    with pytest.raises(ValueError, match=message):
        fit(encoder, loss, batches, Recipe(steps=3), device="cpu")


def test_one_pair_cannot_be_its_own_negative():
    encoder, loss = build()
    with pytest.raises(ValueError, match="rolled negative"):
        fit(encoder, loss, [(X[:1], X[:1])], Recipe(steps=2, phases="mu"), device="cpu")


def test_a_loss_that_is_not_finite_names_its_step(tmp_path):
    def batches(step, generator):
        x, near, far = pairs(step, generator)
        return (x * float("nan") if step == 16 else x), near, far

    with pytest.raises(ValueError, match=r"loss = nan: not finite at step 17, in the phase 'kappa'; .*learning_rate"):
        run(tmp_path / "run", batches)
    assert run(tmp_path / "run").resumed_from == 15


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
    with pytest.raises(ValueError, match="optimiser_options"):
        fit(encoder, loss, pairs, Recipe(steps=5, optimiser_options={"speed": 9}), device="cpu")
    with pytest.raises(ValueError, match="nothing to train"):
        fit(encoder.requires_grad_(False), loss, pairs, five, device="cpu")


def test_a_loss_blind_to_kappa_cannot_train_it():
    class Blind(nn.Module):
        def forward(self, anchor, positive, negative=None):
            return -(anchor.mu * positive.mu).sum(-1).mean()

    encoder, _ = build()
    with pytest.raises(ValueError, match="does not depend on anything that the phase 'kappa' trains"):
        fit(encoder, Blind(), pairs, Recipe(steps=2, phases="kappa"), device="cpu")


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (lambda: ExactInfoNCE(VMFKernel(10.0, True)), True),
        (lambda: ExactInfoNCE(AcceptanceKernel(10.0, True), terms=16), True),
        (lambda: ExactInfoNCE(VMFKernel(10.0, True), terms=16), False),
        (lambda: ExactInfoNCE(VMFKernel(10.0)), False),
    ],
)
def test_a_graph_that_cannot_be_captured_says_why(loss, refused):
    encoder = Encoder(MLP(4, (8,)), 3)
    with pytest.raises(ValueError, match="not a GPU") as error:
        fit(encoder, loss(), pairs, Recipe(steps=2, capture=True), device="cpu")
    assert ("pass terms" in str(error.value)) == refused
