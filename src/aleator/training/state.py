"""`TrainingState`: how far a run has come, by its steps or by the clock, and its best weights so far."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aleator.encoders import Encoder
from aleator.foundation import require
from aleator.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class TrainingState:
    """Progress of a run. The names of the fields are keys of a checkpoint.

    Weights, optimiser, random states and the position in the data are saved beside it, not in it.

    Args:
        window: Losses since the last row of the log, shape (log_every,), on the device. The loss of a step is at
            index step modulo log_every.
        done: Number of updates so far.
        part: What the phase of the last update trains.
        best: Best validation so far: its "step", its "value", and the weights of "encoder" and "loss".
        stale: Number of validations since the best one.
        stopped: Whether the run has stopped early.
        seconds: Duration of all earlier starts of the run.
        places: Place in the schedule after each update, in steps, if the recipe limits the minutes. What the clock has
            decided is kept, so that a run can be resumed and repeated. More of them than `done` are decisions of a run
            that is repeated.
    """

    window: Tensor
    done: int = 0
    part: str = ""
    best: dict[str, Any] | None = None
    stale: int = 0
    stopped: bool = False
    seconds: float = 0.0
    places: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Fields by name, for a checkpoint."""
        return vars(self) | {"places": torch.tensor(self.places[: self.done], dtype=torch.float64)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over the fields of a checkpoint."""
        own = saved["window"].to(self.window.device), saved["places"].tolist() + self.places[saved["done"] :]
        vars(self).update(saved, window=own[0], places=own[1])

    @property
    def place(self) -> float:
        """Place in the schedule, in steps: the number of updates, or where the clock has moved it."""
        return self.places[self.done - 1] if self.places and self.done else self.done

    def count_step(self, recipe: Recipe, seconds: float, afterwards: float, fabric: "Fabric") -> None:
        """Count an update and, if the recipe limits the minutes, decide the place in the schedule.

        Args:
            recipe: How the run is trained.
            seconds: Duration of the run so far, including earlier starts.
            afterwards: Seconds of the recipe's minutes to keep for what comes after learning.
            fabric: The clock of the first process decides for all.
        """
        before, self.done = self.place, self.done + 1
        if recipe.minutes is not None and len(self.places) < self.done:
            share = min(1.0, seconds / max(60 * recipe.minutes - afterwards, 1e-9))
            self.places.append(fabric.broadcast(max(before, self.done, share * recipe.steps)))

    def mean_recent_loss(self, fabric: "Fabric") -> float:
        """Mean loss since the last row of the log, over all processes.

        Raises:
            ValueError: If a loss is not finite.
        """
        count = (self.done - 1) % len(self.window) + 1
        losses = fabric.all_reduce(self.window[:count].clone(), reduce_op="mean").tolist()  # type: ignore[union-attr]
        for i, value in enumerate(losses):
            require(
                math.isfinite(value),
                "loss",
                value,
                f"not finite at step {self.done - count + i + 1}, in the phase {self.part!r}",
                "check the inputs, lower learning_rate or set clip_norm; earlier checkpoints are still good",
            )
        return math.fsum(losses) / count

    def keep_best(self, recipe: Recipe, metrics: Mapping[str, float], encoder: Encoder, loss: nn.Module) -> None:
        """Copy the weights if the metric `recipe.select` has its best value so far; otherwise count, and maybe stop."""
        assert recipe.select is not None
        require(
            recipe.select in metrics,
            "select",
            recipe.select,
            "validate does not report it",
            f"choose one of {', '.join(metrics) or 'the metrics that it reports (none)'}",
        )
        value = metrics[recipe.select]
        if math.isnan(value):
            problem = f"validate reports NaN for {recipe.select!r} at step {self.done}, which counts as no better"
            warnings.warn(problem, stacklevel=2)
        sign = 1 if recipe.select_mode == "max" else -1
        best_so_far = -math.inf if self.best is None else sign * self.best["value"]
        if sign * value > best_so_far:  # False for NaN
            self.best = {
                "step": self.done,
                "value": value,
                "encoder": {name: tensor.clone() for name, tensor in encoder.state_dict().items()},
                "loss": {name: tensor.clone() for name, tensor in loss.state_dict().items()},
            }
            self.stale = 0
            return
        self.stale += 1
        self.stopped = recipe.patience is not None and self.stale >= recipe.patience
