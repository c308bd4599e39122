"""`fit`: one training loop that follows a `Recipe`, on a CPU, on a GPU, or on many of them through torchrun."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aleator.data import Batches, CalledSource, Source, open_source
from aleator.encoders import Encoder, is_lazy
from aleator.foundation import (
    derived_seed,
    matmul_precision,
    preserved_randomness,
    random_state,
    require,
    require_type,
    seed_generators,
    set_random_state,
)
from aleator.training.checkpoints import Checkpoints
from aleator.training.cuda_graph import CudaGraphStep, use_cuda_graph
from aleator.training.fabric import gather_objects, make_fabric, module_input
from aleator.training.freezing import restored_requires_grad, set_training_mode, unfrozen_parameters
from aleator.training.logbook import Logbook, LoggerName, ProgressBar
from aleator.training.objective import Objective, some_inputs
from aleator.training.optimisers import make_optimiser, place_learning_rate, set_learning_rate, turn_bases
from aleator.training.recipe import Phase, Recipe
from aleator.training.run_folder import claim_run_folder, run_identity
from aleator.training.state import TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Validate = Callable[[Encoder], Mapping[str, float]]


@dataclass
class FitResult:
    """Result of `fit`.

    Attributes:
        encoder: The encoder that was passed in. It was trained in place, and is in evaluation mode.
        steps: Number of updates, including those of earlier starts of the run.
        history: Rows of the training log: step, phase, loss (mean since the last row), learning_rate, seconds.
        validations: Rows of the validation log: step, phase, and the metrics.
        best_step: Number of updates after which the chosen weights were reached; None without `Recipe.select`.
        best_value: Value of the metric there.
        stopped_early: Whether `Recipe.patience` ended the run.
        resumed_from: Number of updates in the checkpoint from which the run was resumed; None if it was not.
        folder: Folder of the run, if there is one.
        seconds: Duration of the run, including earlier starts.
        places: Place in the schedule after each update, in steps, as the clock has decided; empty without
            `Recipe.minutes`. A call of `fit` with these `places` repeats the run.

    Examples:
        >>> import torch, aleator as al
        >>> encoder = al.Encoder(torch.nn.Linear(4, 8), dim=3, features=8)
        >>> x = torch.rand(16, 4)
        >>> result = al.fit(encoder, al.InfoNCE(), [(x, x + 0.01)], al.Recipe(steps=4, log_every=2), device="cpu")
        >>> [row["step"] for row in result.history], result.stopped_early
        ([2, 4], False)
    """

    encoder: Encoder
    steps: int
    history: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    best_step: int | None
    best_value: float | None
    stopped_early: bool
    resumed_from: int | None
    folder: Path | None
    seconds: float
    places: list[float]


def fit(
    encoder: Encoder,
    loss: nn.Module,
    batches: Batches | Mapping[str, Batches],
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    validate: Validate | None = None,
    device: str = "auto",
    fabric: "Fabric | None" = None,
    loggers: Sequence[LoggerName] | None = None,
    progress: bool | None = None,
    config: Mapping[str, Any] | None = None,
    afterwards: Callable[[], float] | None = None,
    places: Sequence[float] = (),
) -> FitResult:
    """Train an encoder in place, and with it the parameters of the loss.

    A batch is (anchor, positive), (anchor, positive, negative), or a dict with these names: B inputs, B inputs, and
    (B, M, ...) inputs. Without negatives, the loss takes them from the batch. A batch may also be a `SoftBatch`: items
    and the match weights of all pairs, as from `SoftLabelBatches`.

    Args:
        encoder: The encoder. Parameters that do not require gradients stay as they are.
        loss: A module, called as loss(anchor, positive, negative) with posteriors of shapes (B,), (B,), and (B, M) or
            None; for a `SoftBatch`, as loss.soft(anchor, targets, compared=compared). It returns a scalar. Any loss of
            this library, or your own.
        batches: A function batches(step, generator) -> batch; or an iterable of batches, such as a DataLoader, which
            is started again whenever it ends; or one of these for each phase, {"mu": ..., "kappa": ...}. A function
            must draw its random numbers from the generator, which is seeded for each step.
        recipe: How to train.
        folder: Folder of the run, for logs, checkpoints and the trained encoder. The same call with the same folder
            resumes from the last complete checkpoint. On a CPU the result is then bit for bit that of a run that was
            never stopped. Default: nothing is written.
        validate: Function from the encoder to metrics by name. It is called in evaluation mode, without gradients,
            in the first process. It may draw random numbers without any effect on training.
        device: "cpu", "cuda", "cuda:1", or "auto" (a GPU if there is one). Under torchrun, each process trains on its
            own device, and DDP averages the gradients.
        fabric: A Fabric of your own in place of `device`. The precision of the recipe is not used then.
        loggers: Some of "csv", "tensorboard" and "wandb". Default: CSV, and TensorBoard if it is installed. Without
            a folder, nothing is logged to files.
        progress: Whether to show a progress bar. Default: on a terminal.
        config: Anything else that identifies the run, as JSON: the name of the data, for example. A folder with
            another `config` is refused.
        afterwards: Tells how many seconds of `Recipe.minutes` to keep for what comes after learning. It is called after
            each step, so it may follow how busy the machine is. Default: none.
        places: `FitResult.places` of a run with `Recipe.minutes`, which is repeated: they decide in place of the clock.

    Returns:
        The trained encoder, the logs, and how the run ended.

    Raises:
        ValueError: If an argument does not fit; if the folder belongs to another configuration; if a loss is not
            finite.

    Examples:
        >>> import torch, aleator as al
        >>> def pairs(step, generator):
        ...     anchor = torch.rand(32, 4, generator=generator)
        ...     return anchor, anchor + 0.1 * torch.randn(32, 4, generator=generator)
        >>> _ = torch.manual_seed(0)
        >>> encoder = al.Encoder(torch.nn.Linear(4, 16), dim=3, features=16)
        >>> recipe = al.Recipe(steps=30, learning_rate=1e-2, log_every=10)
        >>> result = al.fit(encoder, al.ExactInfoNCE(), pairs, recipe, device="cpu")
        >>> result.history[-1]["loss"] < result.history[0]["loss"]
        True
        >>> encoder(torch.rand(5, 4)).kappa.shape
        torch.Size([5])
    """
    began = time.perf_counter()  # before lightning is imported, which takes seconds
    _check_arguments(encoder, loss, recipe, validate, places)
    fabric = fabric or make_fabric(recipe.precision, device)
    fabric.launch()
    encoder.to(fabric.device)
    loss.to(fabric.device)
    training = _Training(encoder, loss, recipe, fabric, validate, folder, began)
    training.afterwards, training.state.places = afterwards, list(places)
    with (
        preserved_randomness(fabric.device),
        matmul_precision("high" if recipe.precision == "tf32" else None),
        restored_requires_grad(encoder, loss) as training.trainable,
    ):
        training.start(batches, loggers, config)
        state = training.state
        with (
            contextlib.closing(training.logbook),
            ProgressBar(recipe.steps, int(state.place), progress, fabric.is_global_zero) as training.bar,
        ):
            for phase in training.plan:
                if not state.stopped and state.place < phase.end:
                    training.train_phase(phase)
    return training.finish()


class _Training:
    """One call of `fit`. The methods stand in the order in which they are called."""

    sources: dict[str, Source]  # the batches of each phase
    logbook: Logbook
    bar: ProgressBar
    afterwards: Callable[[], float] | None
    trainable: set[nn.Parameter]  # parameters that require gradients, apart from what a phase freezes

    def __init__(
        self,
        encoder: Encoder,
        loss: nn.Module,
        recipe: Recipe,
        fabric: "Fabric",
        validate: Validate | None,
        folder: str | Path | None,
        began: float,
    ):
        self.began = began
        self.encoder, self.loss, self.recipe, self.fabric, self.validate = encoder, loss, recipe, fabric, validate
        self.device, self.rank, self.writing = fabric.device, fabric.global_rank, fabric.is_global_zero
        self.plan = recipe.plan()
        self.state = TrainingState(window=torch.zeros(recipe.log_every, device=self.device))
        self.folder = None if folder is None else Path(folder).expanduser()
        self.checkpoints = None if self.folder is None else Checkpoints(self.folder, recipe.keep_checkpoints)
        self.checkpoint: Any = None  # to resume from; None once all of it is restored
        self.resumed_from: int | None = None

    def start(self, batches: Any, loggers: Sequence[LoggerName] | None, config: Mapping[str, Any] | None) -> None:
        """Seed, open batches, folder and logs, and restore what a checkpoint holds apart from the optimiser."""
        encoder, loss, recipe, fabric = self.encoder, self.loss, self.recipe, self.fabric
        seed_generators(derived_seed(recipe.seed, self.rank))
        self.sources = _open_sources(batches, self.plan, recipe.seed, self.rank, self.device)
        if is_lazy(encoder):  # its layers are created by the first batch
            with torch.no_grad():
                encoder(fabric.to_device(some_inputs(self.sources[self.plan[0].part].peek())))
        identity = run_identity(encoder, loss, recipe, fabric.world_size, config)
        self.logbook = Logbook(self.folder, loggers, self.writing, identity)
        if self.checkpoints is not None:
            assert self.folder is not None
            if self.writing:
                claim_run_folder(self.folder, identity)
                self.checkpoint = self.checkpoints.latest()
            self.checkpoint = fabric.broadcast(self.checkpoint)
        if self.checkpoint is not None:
            encoder.load_state_dict(self.checkpoint["encoder"])
            loss.load_state_dict(self.checkpoint["loss"])
            self.state.restore(self.checkpoint["run"])
            self.sources[self.state.part].restore(self.checkpoint["ranks"][self.rank]["source"])
            self.resumed_from = self.state.done
        self.logbook.open({} if self.checkpoint is None else self.checkpoint["rows"], self.state.done)

    def train_phase(self, phase: Phase) -> None:
        """Train to the end of a phase, or until the run stops early."""
        recipe, state = self.recipe, self.state
        cuda_graph = use_cuda_graph(recipe, self.fabric, self.sources[phase.part], self.loss)
        set_training_mode(self.encoder, self.loss, phase.part, self.trainable)
        optimiser = make_optimiser(
            recipe, unfrozen_parameters(self.encoder), unfrozen_parameters(self.loss), self.device, cuda_graph
        )
        update = self.make_update(phase, optimiser, cuda_graph)
        self.restore_phase(phase, optimiser, cuda_graph)
        state.part = phase.part
        while state.place < phase.end and not state.stopped:
            place = state.place
            learning_rate = recipe.learning_rate_at(place, phase)
            set_learning_rate(optimiser, learning_rate)
            state.window[state.done % recipe.log_every] = update(state.done)
            state.count_step(recipe, self.seconds, self.afterwards() if self.afterwards else 0.0, self.fabric)
            self.bar.advance(int(state.place), phase.part)
            self.after_step(phase, place, learning_rate, optimiser)

    def make_update(self, phase: Phase, optimiser: torch.optim.Optimizer, cuda_graph: bool) -> Callable[[int], Tensor]:
        """The function that makes one update: step -> loss, a scalar on the device."""
        fabric, source, clip_norm = self.fabric, self.sources[phase.part], self.recipe.clip_norm
        objective, fabric_optimiser = fabric.setup(
            Objective(self.encoder, self.loss, phase.part, self.recipe.mu_negatives), optimiser, move_to_device=False
        )

        def ordinary_update(step: int) -> Tensor:
            batch = fabric.to_device(source.next(step))
            return _training_step(fabric, objective, fabric_optimiser, batch, clip_norm)

        if not cuda_graph:
            return ordinary_update
        assert isinstance(source, CalledSource)
        # The graph draws the batch, too. Its random numbers follow the seed that is set before each replay.
        graph = CudaGraphStep(
            lambda: _training_step(fabric, objective, fabric_optimiser, source.draw(0), clip_norm), [source.generator]
        )

        def replayed_update(step: int) -> Tensor:
            source.seed_for(step)
            loss = graph()
            turn_bases(optimiser, step - phase.start)
            return loss

        return replayed_update

    def restore_phase(self, phase: Phase, optimiser: torch.optim.Optimizer, cuda_graph: bool) -> None:
        """Restore the rest of the checkpoint, in the first phase after resuming."""
        if self.checkpoint is None:
            return
        if self.state.done > phase.start:  # otherwise the saved optimiser is that of the phase before
            optimiser.load_state_dict(self.checkpoint["optimiser"])
            place_learning_rate(optimiser, self.device if cuda_graph else None)
        self.fabric.strategy.precision.load_state_dict(self.checkpoint["precision"])
        set_random_state(self.checkpoint["ranks"][self.rank]["random"], self.device)
        self.checkpoint = None

    def after_step(self, phase: Phase, place: float, learning_rate: float, optimiser: torch.optim.Optimizer) -> None:
        """Log, validate and save where it is due. Other steps return at once and do not wait for the device.

        Args:
            phase: The phase.
            place: Place in the schedule before the step.
            learning_rate: Learning rate of the step.
            optimiser: The optimiser of the phase.
        """
        recipe, state = self.recipe, self.state
        last = state.place >= recipe.steps

        def due(every: int | None) -> bool:
            return last or (every is not None and state.place // every > place // every)

        log_due = last or state.done % recipe.log_every == 0
        validation_due = self.validate is not None and due(recipe.validate_every)
        save_due = self.checkpoints is not None and due(recipe.checkpoint_every)
        if not (log_due or validation_due or save_due):
            return
        mean_loss = state.mean_recent_loss(self.fabric)
        if log_due:
            self.logbook.log(
                "training",
                {
                    "step": state.done,
                    "phase": phase.part,
                    "loss": mean_loss,
                    "learning_rate": learning_rate,
                    "seconds": round(self.seconds, 3),
                },
            )
            self.bar.advance(int(state.place), phase.part, mean_loss)
        if validation_due:
            metrics = self.metrics()
            self.logbook.log("validation", {"step": state.done, "phase": phase.part} | metrics)
            if recipe.select is not None and (phase is self.plan[-1] or recipe.select_in == "all"):
                state.keep_best(recipe, metrics, self.encoder, self.loss)
            set_training_mode(self.encoder, self.loss, phase.part, self.trainable)
        if self.checkpoints is not None and (save_due or state.stopped):
            self.save(phase, optimiser)

    def metrics(self) -> dict[str, float]:
        """The validation metrics, the same on all processes; the random state of training does not change."""
        metrics: dict[str, float] = {}
        if self.writing and self.validate is not None:
            self.encoder.eval()
            with torch.no_grad(), preserved_randomness(self.device):
                reported = self.validate(self.encoder)
            require_type("validate", reported, Mapping, 'return a dict of metrics, such as {"recall_at_1": 0.9}')
            taken = sorted({"step", "phase"} & set(reported))
            require(not taken, "validate", ", ".join(taken), "the log has columns of this name", "rename the metric")
            metrics = {name: float(value) for name, value in reported.items()}
        return self.fabric.broadcast(metrics)

    def save(self, phase: Phase, optimiser: torch.optim.Optimizer) -> None:
        """Write a checkpoint. Random state and position in the data differ between processes."""
        assert self.checkpoints is not None
        own = {"random": random_state(self.device), "source": self.sources[phase.part].state()}
        checkpoint = {
            "encoder": self.encoder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": optimiser.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "run": self.state.to_dict() | {"seconds": self.seconds},
            "rows": self.logbook.rows,
            "ranks": gather_objects(self.fabric, own),
        }
        if self.writing:
            self.checkpoints.save(self.state.done, checkpoint)
        self.fabric.barrier()

    def finish(self) -> FitResult:
        """Take the best weights if some were chosen, and save the encoder in the folder."""
        state, best = self.state, self.state.best
        if best is not None:
            self.encoder.load_state_dict(best["encoder"])
            self.loss.load_state_dict(best["loss"])
        self.encoder.eval()
        if self.folder is not None and self.writing:
            self.encoder.save(self.folder / "encoder", overwrite=True)
        return FitResult(
            encoder=self.encoder,
            steps=state.done,
            history=self.logbook.rows["training"],
            validations=self.logbook.rows["validation"],
            best_step=best["step"] if best else None,
            best_value=best["value"] if best else None,
            stopped_early=state.stopped,
            resumed_from=self.resumed_from,
            folder=self.folder,
            seconds=self.seconds,
            places=state.places[: state.done],
        )

    @property
    def seconds(self) -> float:
        """Duration of the run so far, including earlier starts."""
        return self.state.seconds + time.perf_counter() - self.began


def _training_step(
    fabric: "Fabric", objective: nn.Module, optimiser: Any, batch: Any, clip_norm: float | None
) -> Tensor:
    """Make one update. Returns the loss, a scalar on the device; nothing waits for its value."""
    loss = objective(module_input(fabric, batch))
    fabric.backward(loss)
    if clip_norm is not None:
        fabric.clip_gradients(objective, optimiser, max_norm=clip_norm, error_if_nonfinite=False)
    optimiser.step()
    optimiser.zero_grad()
    return loss.detach()


def _open_sources(batches: Any, plan: Sequence[Phase], seed: int, rank: int, device: torch.device) -> dict[str, Source]:
    """The source of each phase; batches that are not given by phase are one source for all phases."""
    if not isinstance(batches, Mapping):
        source = open_source(batches, seed, rank, device)
        return {phase.part: source for phase in plan}
    for phase in plan:
        require(phase.part in batches, "batches", sorted(batches), f"no source for the phase {phase.part!r}", "add it")
    return {phase.part: open_source(batches[phase.part], seed, rank, device) for phase in plan}


def _check_arguments(encoder: Any, loss: Any, recipe: Recipe, validate: Any, places: Sequence[float]) -> None:
    require_type("encoder", encoder, Encoder, "wrap it in Encoder()")
    require(isinstance(loss, nn.Module), "loss", loss, "not a torch module", "pass an instance, as in InfoNCE(20.0)")
    require_type("recipe", recipe, Recipe, "pass Recipe(steps=...)")
    for name in ("validate_every", "select"):
        value = getattr(recipe, name)
        require(
            value is None or validate is not None,
            name,
            value,
            "there is nothing to validate with",
            "pass validate=, a function from the encoder to a dict of metrics",
        )
    no_clock = recipe.minutes is None
    require(
        not (places and no_clock), "places", len(places), "the recipe has no minutes", "pass the recipe of that run"
    )
    require(
        recipe.phases != "kappa" or encoder.separable,
        "phases",
        recipe.phases,
        "this encoder's kappa is the norm of its embedding and cannot be trained alone",
        'pass phases="joint", or build the encoder with kappa="head"',
    )
