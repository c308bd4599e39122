"""Phases: what they train, and what stays as it was."""

import pytest
import torch

from aleator.encoders.backbones import MLP, ResNet18
from aleator.encoders.encoder import Encoder
from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import SmallLoss, build, pairs


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


def test_the_loss_learns_too_and_user_frozen_parameters_do_not():
    encoder, loss = build()
    encoder.mu_head.requires_grad_(False)
    frozen, temperature = encoder.mu_head.weight.clone(), loss.temperature.item()
    fit(encoder, loss, pairs, Recipe(steps=3, learning_rate=0.1, weight_decay=0.1), device="cpu")
    assert torch.equal(encoder.mu_head.weight, frozen)
    assert not encoder.mu_head.weight.requires_grad
    assert loss.temperature.item() != temperature


def test_a_norm_encoder_trains_in_two_phases():
    encoder = Encoder(MLP(4, (8,)), 3)
    result = fit(encoder, SmallLoss(), pairs, Recipe(steps=4, phases="mu-then-kappa"), device="cpu")
    assert result.steps == 4
    with pytest.raises(ValueError, match="cannot be trained alone"):
        fit(encoder, SmallLoss(), pairs, Recipe(steps=4, phases="kappa"), device="cpu")
