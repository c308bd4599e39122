"""Recipes: schedules against their closed forms, and settings that make no sense."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from aleator.training.recipe import Phase, Recipe


def learning_rates(steps, **settings):
    settings = Recipe(steps=steps, learning_rate=0.1, **settings)
    return [settings.learning_rate_at(step, Phase("joint", 0, steps)) for step in range(steps)]


def torch_rates(steps, make):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make(optimiser)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def test_schedules_have_their_closed_forms():
    schedulers = torch.optim.lr_scheduler
    assert learning_rates(5) == [0.1] * 5
    assert learning_rates(8, schedule="step") == pytest.approx([0.1, 0.1, 1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4])
    assert learning_rates(4, schedule="step", step_factor=0.5) == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    assert learning_rates(6, schedule="step", step_factor=0.5, step_every=0.5) == pytest.approx([0.1] * 3 + [0.05] * 3)
    third = learning_rates(9, schedule="step", step_factor=0.1, step_every=1 / 3)
    assert third == pytest.approx([0.1] * 3 + [1e-2] * 3 + [1e-3] * 3)
    assert learning_rates(6, schedule="constant", warmup_steps=4) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
    cosine = torch_rates(20, lambda o: schedulers.CosineAnnealingLR(o, 20))
    assert learning_rates(20, schedule="cosine") == pytest.approx(cosine)


def test_kappa_can_have_a_rate_of_its_own():
    settings = Recipe(steps=8, phases="mu-then-kappa", learning_rate=0.1, kappa_learning_rate=0.02, schedule="step")
    rates = [settings.learning_rate_at(step, phase) for phase in settings.plan() for step in range(*phase[1:])]
    assert rates == pytest.approx([0.1, 1e-2, 1e-3, 1e-4, 0.02, 2e-3, 2e-4, 2e-5])


@pytest.mark.parametrize("steps", [10, 40, 101])
def test_one_cycle_is_torchs(steps):
    expected = []
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=steps, cycle_momentum=False)
    for step in range(steps):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if step < steps - 1:
            scheduler.step()
    assert learning_rates(steps, schedule="one-cycle") == pytest.approx(expected)


def test_every_schedule_survives_a_single_step():
    for schedule in ("constant", "step", "cosine", "one-cycle"):
        assert learning_rates(1, schedule=schedule)[0] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"steps": 1.5}, "steps = 1.5"),
        ({"steps": True}, "steps = True"),
        ({"seed": "a"}, "seed = 'a'"),
        ({"seed": -1}, "seed = -1"),
        ({"optimiser": "adamx"}, "optimiser = 'adamx': not known; choose one of 'adam', 'adamw', 'sgd', 'soap'"),
        ({"schedule": "linear"}, "schedule"),
        ({"phases": "kappa-then-mu"}, "phases"),
        ({"precision": "8"}, "precision = '8': not known; choose one of '32', 'fp32'"),
        ({"precision": "bf16-true"}, "precision = 'bf16-true'"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"kappa_learning_rate": -1.0}, "kappa_learning_rate = -1.0"),
        ({"mu_fraction": 1.0}, "mu_fraction"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"validate_every": 0}, "validate_every"),
        ({"patience": 2}, "needs a metric"),
        ({"optimiser_options": {"weight_decay": 5.0}}, r"pass Recipe\(weight_decay=5\.0\)"),
        ({"optimiser_options": {"lr": 5.0}}, r"pass Recipe\(learning_rate=5\.0\)"),
        ({"keep_checkpoints": 1}, "keep_checkpoints"),
        ({"steps": 1, "phases": "mu-then-kappa"}, "at least two"),
    ],
)
def test_bad_recipes(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**({"steps": 5} | settings))


@pytest.mark.parametrize(
    ("precision", "spellings"),
    [
        ("32", (32, "fp32", "float32", "32-true", torch.float32)),
        ("bf16", ("bfloat16", "bf16-mixed", torch.bfloat16)),
        ("16", (16, "fp16", "float16", "16-mixed", torch.float16)),
    ],
)
def test_common_spellings_of_a_precision(precision, spellings):
    assert all(Recipe(5, precision=spelling) == Recipe(5, precision=precision) for spelling in spellings)


def test_numbers_of_numpy_are_taken_and_stored_as_plain_ones():
    recipe = Recipe(steps=np.int64(5), learning_rate=np.float32(0.5), seed=np.int32(3), patience=None)
    assert recipe == Recipe(steps=5, learning_rate=0.5, seed=3)
    json.dumps(vars(recipe))
