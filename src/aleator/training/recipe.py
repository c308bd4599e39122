"""`Recipe`: how to train, as data. `fit` follows it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from aleator.foundation import is_whole, make_numbers_plain, require, require_at_least, require_count, require_one_of

Optimiser = Literal["adam", "adamw", "sgd", "soap"]
Schedule = Literal["constant", "step", "cosine", "one-cycle"]
Phases = Literal["joint", "mu-then-kappa", "mu", "kappa"]
Precision = Literal["32", "tf32", "bf16", "16"]
MuNegatives = Literal["rolled", "given"]
SelectMode = Literal["max", "min"]
SelectIn = Literal["last", "all"]
_PRECISIONS: dict[str, Precision] = {
    **dict.fromkeys(("32", "fp32", "float32", "32-true"), "32"),
    "tf32": "tf32",
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("16", "fp16", "float16", "16-mixed"), "16"),
}
# What a phase trains: mu, kappa, or both.
Part = Literal["joint", "mu", "kappa"]

_PARTS: dict[Phases, tuple[Part, ...]] = {
    "joint": ("joint",),
    "mu-then-kappa": ("mu", "kappa"),
    "mu": ("mu",),
    "kappa": ("kappa",),
}
# Fields that take one of a few words.
_WORDS: dict[str, Any] = {
    "optimiser": Optimiser,
    "schedule": Schedule,
    "phases": Phases,
    "mu_negatives": MuNegatives,
    "select_mode": SelectMode,
    "select_in": SelectIn,
}


class Phase(NamedTuple):
    """A range of steps, start <= step < end, and what they train: "mu", "kappa", or both ("joint")."""

    part: Part
    start: int
    end: int


@dataclass(frozen=True)
class Recipe:
    """How to train.

    All fields but `steps` have defaults, so a recipe states only what differs from them.

    Args:
        steps: Number of updates, over all phases.
        minutes: Most minutes, over all starts of the run. The schedule then follows the steps or the clock,
            whichever is further, so that it ends in time however fast the machine is. Needs a single phase. Default: no
            limit.
        optimiser: "adam", "adamw", "sgd", or "soap" (`aleator.training.SOAP`: converges in fewer steps where a small
            network of dense layers is to be fitted closely).
        learning_rate: Highest learning rate. The schedule multiplies it by a factor, and starts again in each phase.
        kappa_learning_rate: Highest learning rate of a kappa phase. Default: `learning_rate`. A kappa head whose
            range was set before training is sensitive: a deep one may need a tenth of mu's rate.
        weight_decay: Weight decay of the encoder's parameters. Parameters of the loss are not decayed.
        optimiser_options: Further arguments of the optimiser, such as `betas` or `momentum`. `lr` and `weight_decay`
            are arguments of the recipe.
        schedule: "constant"; "step" (times `step_factor` after every `step_every`); "cosine" (down to zero);
            "one-cycle" (Smith and Topin 2018: up from 1/25 over the first 30 % of the phase, then down to 1/250000,
            both along cosines).
        step_factor: Factor of the schedule "step".
        step_every: Interval of the schedule "step", as a fraction of the phase.
        warmup_steps: Number of steps at the start of each phase in which the learning rate rises linearly.
        phases: "joint" trains mu and kappa together. "mu-then-kappa" is the procedure of the paper's appendix: mu
            while kappa is frozen, then kappa while mu is frozen. "mu" and "kappa" are one of these phases alone.
            An encoder with kappa="norm" cannot freeze mu. Its mu phase stops the gradient of kappa, and its second
            phase trains both.
        mu_fraction: Fraction of the steps that the mu phase of "mu-then-kappa" gets.
        mu_negatives: Negatives of a mu phase. "rolled" uses one negative per anchor, the positive of the pair before
            it in the batch (M = 0 in the paper). "given" uses the negatives of the batches, as the other phases do.
        clip_norm: Largest norm of the gradient. A longer gradient is scaled down. Default: no limit.
        precision: "32" for float32; "tf32" for float32 with matrix products in TF32 on a GPU (ten bits of mantissa,
            many times faster); "bf16" or "16" for mixed precision. Other spellings are taken too, such as "fp32",
            "bf16-mixed" and torch.float16. Output layers and this library's losses always compute in float32.
        capture: Whether to run each update as one CUDA graph, which saves the time of launching kernels one by one.
            None uses a graph where it is possible: one process, a GPU, precision "32" or "tf32", batches with
            `capturable = True`, and a loss whose `capturable` is not False. True raises an error where it is not.
        validate_every: Number of steps between validations. The last step is always validated. Default: only there.
        select: Validation metric that chooses the weights to keep. Default: keep the last weights.
        select_mode: Whether the best value of the metric is its largest ("max") or smallest ("min").
        select_in: Phases in which weights can be chosen: the "last" one, or "all".
        patience: Number of validations without a better value of `select` after which training stops. Validations
            count from the first phase in which weights can be chosen. Default: never stop early.
        checkpoint_every: Number of steps between checkpoints. The last step always has one. None: only there.
        keep_checkpoints: Number of checkpoints to keep on disk, at least 2.
        log_every: Number of steps between rows of the training log. The loss is read from the device only then,
            because reading it makes the CPU wait for the device.
        seed: Seed of all random numbers in `fit`.

    Examples:
        >>> import aleator as al
        >>> recipe = al.Recipe(steps=1000, learning_rate=1e-3, schedule="cosine", phases="mu-then-kappa")
        >>> recipe.plan()
        [Phase(part='mu', start=0, end=500), Phase(part='kappa', start=500, end=1000)]
        >>> al.Recipe(steps=0)
        Traceback (most recent call last):
        aleator.foundation.checks.BadArgumentError: steps = 0: not a positive whole number; pass steps >= 1
    """

    steps: int
    minutes: float | None = None
    optimiser: Optimiser = "adam"
    learning_rate: float = 1e-4
    kappa_learning_rate: float | None = None
    weight_decay: float = 0.0
    optimiser_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = "constant"
    step_factor: float = 0.1
    step_every: float = 0.25
    warmup_steps: int = 0
    phases: Phases = "joint"
    mu_fraction: float = 0.5
    mu_negatives: MuNegatives = "rolled"
    clip_norm: float | None = None
    precision: Any = "32"
    capture: bool | None = None
    validate_every: int | None = None
    select: str | None = None
    select_mode: SelectMode = "max"
    select_in: SelectIn = "last"
    patience: int | None = None
    checkpoint_every: int | None = 1000
    keep_checkpoints: int = 2
    log_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        make_numbers_plain(self)
        for name, words in _WORDS.items():
            require_one_of(name, getattr(self, name), get_args(words))
        spelling = str(self.precision).removeprefix("torch.")
        require_one_of("precision", spelling, _PRECISIONS)
        object.__setattr__(self, "precision", _PRECISIONS[spelling])
        for name in ("steps", "log_every"):
            require_count(name, getattr(self, name), f"pass {name} >= 1")
        for name in ("validate_every", "checkpoint_every", "patience"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), f"pass {name} >= 1, or None for never")
        require(is_whole(self.seed, 0), "seed", self.seed, "not a whole number from 0 on", "pass seed=0")
        _require_positive("learning_rate", self.learning_rate, "try 1e-4")
        if self.minutes is not None:
            _require_positive("minutes", self.minutes, "pass None for no limit")
            single = len(_PARTS[self.phases]) == 1
            require(single, "minutes", self.minutes, f"phases = {self.phases!r} have no limit", "train one phase")
        if self.kappa_learning_rate is not None:
            _require_positive("kappa_learning_rate", self.kappa_learning_rate, "try 1e-4")
        if self.clip_norm is not None:
            require(self.clip_norm > 0, "clip_norm", self.clip_norm, "not positive", "pass None for no limit")
        require(self.step_factor > 0, "step_factor", self.step_factor, "not positive", "the paper's is 0.1")
        require(0 < self.step_every <= 1, "step_every", self.step_every, "not a fraction of a phase", "try 0.25")
        require(0 < self.mu_fraction < 1, "mu_fraction", self.mu_fraction, "not inside (0, 1)", "try 0.5")
        require_at_least("weight_decay", self.weight_decay, 0)
        for option, own in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            way_out = f"pass Recipe({own}={self.optimiser_options.get(option)})"
            problem = f"the recipe has {own} for it"
            require(option not in self.optimiser_options, "optimiser_options", option, problem, way_out)
        require_at_least("warmup_steps", self.warmup_steps, 0)
        require_at_least("keep_checkpoints", self.keep_checkpoints, 2)
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
        """Phases in order, with their first and last steps.

        Returns:
            One or two phases. Together they cover the steps 0 <= step < `steps`.
        """
        parts = _PARTS[self.phases]
        if len(parts) == 1:
            return [Phase(parts[0], 0, self.steps)]
        middle = min(max(round(self.steps * self.mu_fraction), 1), self.steps - 1)
        return [Phase(parts[0], 0, middle), Phase(parts[1], middle, self.steps)]

    def learning_rate_at(self, step: float, phase: Phase) -> float:
        """Learning rate of one update.

        Args:
            step: Number of the update, from 0 over all phases; within `minutes`, the place in the schedule, which the
                clock may have moved on.
            phase: The phase that the update belongs to.

        Returns:
            The learning rate.
        """
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
                factor = _cosine(1.0, 1 / 25e4, min(1.0, (done - peak) / (last - peak)))
        if self.warmup_steps:
            factor *= min(1.0, (done + 1) / self.warmup_steps)
        highest = self.learning_rate
        if phase.part == "kappa" and self.kappa_learning_rate is not None:
            highest = self.kappa_learning_rate
        return highest * factor


def _cosine(start: float, end: float, fraction: float) -> float:
    """Half a cosine from `start` (fraction 0) to `end` (fraction 1)."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))


def _require_positive(name: str, value: float, way_out: str) -> None:
    require(0 < value < math.inf, name, value, "not a positive number", way_out)
