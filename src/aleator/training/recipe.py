"""How to train, as data: optimiser, schedule, phases, selection. `training.fit` follows it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from aleator.foundation import require, require_one_of
from aleator.training.soap import SOAP

OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "soap": SOAP}
SCHEDULES = ("constant", "step", "cosine", "one-cycle")
PHASES = {"joint": ("joint",), "mu-then-kappa": ("mu", "kappa"), "mu": ("mu",), "kappa": ("kappa",)}
PRECISIONS = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


class Phase(NamedTuple):
    """A stretch of the run, steps start <= step < end, that trains "mu", "kappa" or both ("joint")."""

    part: str
    start: int
    end: int


@dataclass(frozen=True)
class Recipe:
    """How to train; a preset states only what differs from the defaults.

    Args:
        steps: updates in all, over all phases.
        optimiser: "adam", "adamw", "sgd" or "soap" (`SOAP`: for small networks of dense layers that are to be fitted
            closely); `optimiser_options` go to it as they are (betas, momentum, ...).
        learning_rate: its highest value. The schedule multiplies it by a factor and starts anew in each
            phase.
        kappa_learning_rate: the same for a kappa phase, where it differs. A calibrated kappa head answers to small
            changes: a deep one that starts from a narrow output may need a tenth of mu's rate.
        weight_decay: for the encoder; a loss's own parameters are not decayed.
        schedule: "constant"; "step" (times `step_factor` after each `step_every`, a share of the phase); "cosine" (to
            zero); "one-cycle" (Smith and Topin 2018: up from 1/25 over 30 %, then down to 1/250000, along cosines).
        warmup_steps: the learning rate rises linearly over so many steps first, in each phase.
        phases: "joint"; "mu-then-kappa" (the paper's appendix: mu with kappa frozen, then kappa with mu
            frozen); "mu" or "kappa" alone. A norm encoder cannot freeze mu: its mu phase stops kappa's
            gradient, and its kappa phase is joint.
        mu_fraction: the share of the steps that the mu phase of "mu-then-kappa" gets.
        mu_negatives: in a mu phase, "rolled" is the paper's M = 0, the positive of the batch's previous
            pair as the one negative; "given" leaves the choice to the batches, as in the other phases.
        clip_norm: gradients are scaled down to this norm.
        precision: "32"; "tf32" (on a GPU, products of float32 matrices rounded to ten bits, many times faster);
            "bf16" or "16" (mixed; the output layers and our losses stay in float32).
        capture: run the step as one CUDA graph, which takes kernel launches off the clock. None means where that is
            possible: one process on a GPU, precision "32" or "tf32", batches that say `capturable = True`,
            no loss that says it is not.
        validate_every: steps between validations; the last step of all is validated too.
        select: the validation metric that chooses the weights to keep, the best by `select_mode` ("max" or
            "min") in the last phase, or in all of them with `select_in` = "all". None keeps the last weights.
        patience: so many validations in which weights could be chosen, and none was better, stop the run.
        checkpoint_every: steps between checkpoints; the end of the run has one too.
        keep_checkpoints: how many stay on disk, at least 2.
        log_every: steps between rows of the training log. The loss is read from the device no more often.
        seed: of all random numbers in `fit`.
    """

    steps: int
    optimiser: str = "adam"
    learning_rate: float = 1e-4
    kappa_learning_rate: float | None = None
    weight_decay: float = 0.0
    optimiser_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    step_factor: float = 0.1
    step_every: float = 0.25
    warmup_steps: int = 0
    phases: str = "joint"
    mu_fraction: float = 0.5
    mu_negatives: str = "rolled"
    clip_norm: float | None = None
    precision: str = "32"
    capture: bool | None = None
    validate_every: int | None = None
    select: str | None = None
    select_mode: str = "max"
    select_in: str = "last"
    patience: int | None = None
    checkpoint_every: int | None = 1000
    keep_checkpoints: int = 2
    log_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "validate_every", "checkpoint_every", "patience"):
            value = getattr(self, name)
            optional = name not in ("steps", "log_every")
            require(
                (value is None and optional) or (isinstance(value, int) and value >= 1),
                name,
                value,
                "not a positive whole number",
                f"pass {name} >= 1" + (", or None for never" if optional else ""),
            )
        require_one_of("optimiser", self.optimiser, OPTIMISERS)
        require_one_of("schedule", self.schedule, SCHEDULES)
        require_one_of("phases", self.phases, PHASES)
        require_one_of("mu_negatives", self.mu_negatives, ("rolled", "given"))
        require_one_of("precision", self.precision, PRECISIONS)
        require_one_of("select_mode", self.select_mode, ("max", "min"))
        require_one_of("select_in", self.select_in, ("last", "all"))
        for name in ("learning_rate", "kappa_learning_rate"):
            value = getattr(self, name)
            optional = name == "kappa_learning_rate" and value is None
            require(optional or 0 < value < math.inf, name, value, "not a positive number", "try 1e-4")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "negative", "pass 0 or more")
        require(self.step_factor > 0, "step_factor", self.step_factor, "not positive", "the paper's is 0.1")
        require(
            0 < self.step_every <= 1, "step_every", self.step_every, "not a share of a phase", "pass for example 0.25"
        )
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "negative", "pass 0 or more")
        require(
            self.clip_norm is None or self.clip_norm > 0,
            "clip_norm",
            self.clip_norm,
            "not positive",
            "pass None",
        )
        require(self.keep_checkpoints >= 2, "keep_checkpoints", self.keep_checkpoints, "too few", "pass 2 or more")
        require(0 < self.mu_fraction < 1, "mu_fraction", self.mu_fraction, "not inside (0, 1)", "try 0.5")
        require(
            self.phases != "mu-then-kappa" or self.steps >= 2,
            "steps",
            self.steps,
            "two phases need at least two",
            "pass steps >= 2",
        )
        require(
            self.patience is None or self.select is not None,
            "patience",
            self.patience,
            "early stopping needs a metric to watch",
            'pass select="name of a validation metric"',
        )

    def plan(self) -> list[Phase]:
        """The phases with their first and last steps."""
        parts = PHASES[self.phases]
        if len(parts) == 1:
            return [Phase(parts[0], 0, self.steps)]
        turn = min(max(round(self.steps * self.mu_fraction), 1), self.steps - 1)
        return [Phase(parts[0], 0, turn), Phase(parts[1], turn, self.steps)]

    def learning_rate_at(self, step: int, phase: Phase) -> float:
        """A closed form of the update's place in the phase, so that a schedule has no state to save."""
        done, total = step - phase.start, phase.end - phase.start
        factor = 1.0
        if self.schedule == "step":
            factor = self.step_factor ** math.floor(done / (total * self.step_every) + 1e-9)
        elif self.schedule == "cosine":
            factor = _cosine(1.0, 0.0, done / total)
        elif self.schedule == "one-cycle":
            peak, last = 0.3 * total - 1, total - 1
            if done <= peak:
                factor = _cosine(1 / 25, 1.0, done / peak if peak > 0 else 1.0)
            else:
                factor = _cosine(1.0, 1 / 25e4, (done - peak) / (last - peak))
        if self.warmup_steps:
            factor *= min(1.0, (done + 1) / self.warmup_steps)
        peak_rate = self.learning_rate
        if phase.part == "kappa" and self.kappa_learning_rate is not None:
            peak_rate = self.kappa_learning_rate
        return peak_rate * factor


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))
