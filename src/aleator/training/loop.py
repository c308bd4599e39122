"""`fit`: one loop that follows a `Recipe`, on a CPU, a GPU, or many of them through torchrun."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aleator.data import Batches, CalledSource, Source, open_source
from aleator.encoders import Encoder, is_lazy
from aleator.foundation import (
    derived_seed,
    launched_process,
    matmul_precision,
    preserved_randomness,
    random_state,
    require,
    resolve_device,
    seed_generators,
    set_random_state,
)
from aleator.training.checkpoints import Checkpoints, brief, claim_run_folder, describe_module
from aleator.training.cuda_graph import CapturedStep
from aleator.training.logbook import Logbook, ProgressBar
from aleator.training.objective import Objective, named_parts
from aleator.training.optimisers import make_optimiser, place_learning_rate, set_learning_rate, turn_bases
from aleator.training.recipe import PRECISIONS, Phase, Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# What may change between two sittings of one run, because it does not change what is learned or logged.
_FREE_TO_CHANGE = ("checkpoint_every", "keep_checkpoints")


@dataclass
class FitResult:
    """What `fit` did. The encoder is the one passed in, trained in place and in evaluation mode."""

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


@dataclass
class Run:
    """How far a run has come: its checkpoint, less weights, optimiser, randomness and data position."""

    window: Tensor  # (log_every,) losses by step modulo log_every, on the device
    done: int = 0  # updates made
    part: str = ""  # of the phase that the last update belonged to
    best: dict[str, Any] | None = None  # step, value and weights of the best validation so far
    stale: int = 0  # validations since then
    stopped: bool = False
    seconds: float = 0.0  # in earlier sittings

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, window=state["window"].to(self.window.device))

    def recent_loss(self, fabric: "Fabric") -> float:
        """The mean loss since the last row of the log, over all processes. Not finite: an error."""
        count = (self.done - 1) % len(self.window) + 1
        losses = fabric.all_reduce(self.window[:count].clone(), reduce_op="mean").tolist()  # type: ignore[union-attr]
        for i, value in enumerate(losses):
            require(
                math.isfinite(value),
                "loss",
                value,
                f"not finite at step {self.done - count + i + 1}, in the phase {self.part!r}",
                "check the inputs, lower learning_rate or set clip_norm; checkpoints so far are not affected",
            )
        return math.fsum(losses) / count


def training_step(
    fabric: "Fabric", objective: nn.Module, optimiser: Any, batch: Any, clip_norm: float | None
) -> Tensor:
    """One update. Returns the loss, a scalar on the device that nothing has waited for."""
    loss = objective(batch)
    fabric.backward(loss)
    if clip_norm is not None:
        fabric.clip_gradients(objective, optimiser, max_norm=clip_norm, error_if_nonfinite=False)
    optimiser.step()
    optimiser.zero_grad()
    return loss.detach()


def fit(
    encoder: Encoder,
    loss: nn.Module,
    batches: Batches | Mapping[str, Batches],
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    validate: Callable[[Encoder], Mapping[str, float]] | None = None,
    device: str = "auto",
    fabric: "Fabric | None" = None,
    loggers: Sequence[str] | None = None,
    progress: bool | None = None,
    config: Mapping[str, Any] | None = None,
) -> FitResult:
    """Train the encoder, in place, and the loss's own parameters with it.

    Args:
        encoder: what to train. Parameters that do not require gradients stay as they are.
        loss: a module, called as loss(anchor, positive, negative) with posteriors of shapes (B,), (B,) and
            (B, M) or None; gives a scalar.
        batches: see `aleator.batches`; or one source per phase, {"mu": ..., "kappa": ...}.
        recipe: how.
        folder: the run's folder. The same call with the same folder goes on from the last whole checkpoint;
            on a CPU the result is, bit for bit, that of a run that was never stopped.
        validate: encoder -> metrics, called in evaluation mode without gradients, on the first process only.
        device: "cpu", "cuda", "cuda:1", or "auto". Under torchrun each process trains on its own device,
            with DDP.
        fabric: in place of `device`, a Fabric of your own; the recipe's precision is then not used.
        loggers: of "csv", "tensorboard" and "wandb"; None means CSV, and TensorBoard where it is installed.
        progress: whether to show a bar; None means on a terminal.
        config: anything else, as JSON, that makes this run what it is (data, setting); a folder remembers it.
    """
    _check_arguments(encoder, loss, recipe, validate)
    fabric = fabric or _make_fabric(recipe, device)
    fabric.launch()
    encoder.to(fabric.device)
    loss.to(fabric.device)
    training = _Training(encoder, loss, recipe, fabric, validate, folder)
    with (
        preserved_randomness(fabric.device),
        matmul_precision("high" if recipe.precision == "tf32" else None),
        _kept_trainability(encoder, loss) as training.trainable,
    ):
        training.open(batches, loggers, config)
        with (
            contextlib.closing(training.logbook),
            ProgressBar(recipe.steps, training.run.done, progress, fabric.is_global_zero) as training.bar,
        ):
            for phase in training.plan:
                if not training.run.stopped and training.run.done < phase.end:
                    training.follow(phase)
    return training.result()


class _Training:
    """One call of `fit`: what it works with, and how far it has come."""

    sources: dict[str, Source]
    logbook: Logbook
    bar: ProgressBar
    trainable: set[nn.Parameter]

    def __init__(
        self,
        encoder: Encoder,
        loss: nn.Module,
        recipe: Recipe,
        fabric: "Fabric",
        validate: Callable[[Encoder], Mapping[str, float]] | None,
        folder: str | Path | None,
    ):
        self.began = time.perf_counter()
        self.encoder, self.loss, self.recipe, self.fabric, self.validate = encoder, loss, recipe, fabric, validate
        self.device, self.rank, self.writing = fabric.device, fabric.global_rank, fabric.is_global_zero
        self.plan = recipe.plan()
        self.run = Run(window=torch.zeros(recipe.log_every, device=self.device))
        self.folder = None if folder is None else Path(folder).expanduser()
        self.checkpoints = None if self.folder is None else Checkpoints(self.folder, recipe.keep_checkpoints)
        self.saved: Any = None  # the checkpoint to go on from, until its phase has taken the rest of it up
        self.resumed_from: int | None = None

    @property
    def seconds(self) -> float:
        return self.run.seconds + time.perf_counter() - self.began

    def open(self, batches: Any, loggers: Sequence[str] | None, config: Mapping[str, Any] | None) -> None:
        """The data, the run's folder, and what an earlier sitting left there."""
        encoder, loss, recipe, fabric = self.encoder, self.loss, self.recipe, self.fabric
        seed_generators(derived_seed(recipe.seed, self.rank))
        self.sources = _open_sources(batches, self.plan, recipe.seed, self.rank, self.device)
        if is_lazy(encoder):
            with torch.no_grad():
                encoder(fabric.to_device(named_parts(self.sources[self.plan[0].part].peek())[0]))
        identity = _identity(encoder, loss, recipe, fabric.world_size, config)
        self.logbook = Logbook(self.folder, loggers, self.writing, identity)
        if self.checkpoints is not None:
            assert self.folder is not None
            if self.writing:
                claim_run_folder(self.folder, identity)
                self.saved = self.checkpoints.latest()
            self.saved = fabric.broadcast(self.saved)
        if self.saved is not None:
            encoder.load_state_dict(self.saved["encoder"])
            loss.load_state_dict(self.saved["loss"])
            self.run.restore(self.saved["run"])
            self.sources[self.run.part].restore(self.saved["ranks"][self.rank]["source"])
            self.resumed_from = self.run.done
        self.logbook.open({} if self.saved is None else self.saved["rows"], self.run.done)

    def follow(self, phase: Phase) -> None:
        """One phase of the recipe, to its end or to where it stops early."""
        recipe, fabric, run, source = self.recipe, self.fabric, self.run, self.sources[phase.part]
        captured = _can_capture(recipe, fabric, source, self.loss)
        optimiser = make_optimiser(recipe, *self.start(phase), self.device, captured)
        objective, stepper = fabric.setup(
            Objective(self.encoder, self.loss, phase.part, recipe.mu_negatives), optimiser, move_to_device=False
        )
        if self.saved is not None:
            if run.done > phase.start:
                optimiser.load_state_dict(self.saved["optimiser"])
                place_learning_rate(optimiser, self.device if captured else None)
            fabric.strategy.precision.load_state_dict(self.saved["precision"])
            set_random_state(self.saved["ranks"][self.rank]["random"], self.device)
            self.saved = None
        run.part = phase.part
        graph = _captured(fabric, objective, stepper, source, recipe.clip_norm) if captured else None
        for step in range(run.done, phase.end):
            learning_rate = recipe.learning_rate_at(step, phase)
            set_learning_rate(optimiser, learning_rate)
            if graph is not None:
                source.seed_for(step)  # type: ignore[union-attr]
                value = graph()
                turn_bases(optimiser, step - phase.start)
            else:
                batch = fabric.to_device(source.next(step))
                value = training_step(fabric, objective, stepper, batch, recipe.clip_norm)
            run.window[step % recipe.log_every] = value
            run.done = step + 1
            self.bar.advance(run.done, phase.part)
            self.attend(phase, learning_rate, optimiser)
            if run.stopped:
                break

    def start(self, phase: Phase) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        return _start_phase(self.encoder, self.loss, phase, self.trainable)

    def attend(self, phase: Phase, learning_rate: float, optimiser: torch.optim.Optimizer) -> None:
        """What is due after a step. The device is waited for only where something is."""
        recipe, run = self.recipe, self.run
        last = run.done == recipe.steps
        log_due = last or run.done % recipe.log_every == 0
        validation_due = self.validate is not None and (last or _due(run.done, recipe.validate_every))
        save_due = self.checkpoints is not None and (last or _due(run.done, recipe.checkpoint_every))
        if not (log_due or validation_due or save_due):
            return
        place = {"step": run.done, "phase": phase.part}
        mean = run.recent_loss(self.fabric)
        if log_due:
            now = {"loss": mean, "learning_rate": learning_rate, "seconds": round(self.seconds, 3)}
            self.logbook.log("training", place | now)
            self.bar.advance(run.done, phase.part, mean)
        if validation_due:
            metrics = _validate(self.fabric, self.validate, self.encoder)
            self.logbook.log("validation", place | metrics)
            if recipe.select is not None and (phase is self.plan[-1] or recipe.select_in == "all"):
                _select(run, recipe, metrics, self.encoder, self.loss)
            self.start(phase)  # validating left training mode
        if self.checkpoints is not None and (save_due or run.stopped):
            self.save(phase, optimiser)

    def save(self, phase: Phase, optimiser: torch.optim.Optimizer) -> None:
        assert self.checkpoints is not None
        here = {"random": random_state(self.device), "source": self.sources[phase.part].state()}
        state = {
            "encoder": self.encoder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": optimiser.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "run": self.run.state() | {"seconds": self.seconds},
            "rows": self.logbook.rows,
            "ranks": _gathered(self.fabric, here),
        }
        if self.writing:
            self.checkpoints.save(self.run.done, state)
        self.fabric.barrier()

    def result(self) -> FitResult:
        """The best weights, if some were chosen, kept in the folder, and what was done."""
        run, best = self.run, self.run.best
        if best is not None:
            self.encoder.load_state_dict(best["encoder"])
            self.loss.load_state_dict(best["loss"])
        self.encoder.eval()
        if self.folder is not None and self.writing:
            self.encoder.save(self.folder / "encoder", overwrite=True)
        return FitResult(
            encoder=self.encoder,
            steps=run.done,
            history=self.logbook.rows["training"],
            validations=self.logbook.rows["validation"],
            best_step=best["step"] if best else None,
            best_value=best["value"] if best else None,
            stopped_early=run.stopped,
            resumed_from=self.resumed_from,
            folder=self.folder,
            seconds=self.seconds,
        )


def _due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0


def _check_arguments(encoder: Any, loss: Any, recipe: Recipe, validate: Any) -> None:
    require(
        isinstance(encoder, Encoder),
        "encoder",
        type(encoder).__name__,
        "not an Encoder",
        "wrap it in Encoder()",
    )
    require(
        isinstance(loss, nn.Module),
        "loss",
        loss,
        "not a torch module",
        "pass an instance, as in InfoNCE(20.0)",
    )
    require(isinstance(recipe, Recipe), "recipe", recipe, "not a Recipe", "pass Recipe(steps=...)")
    for name in ("validate_every", "select"):
        value = getattr(recipe, name)
        require(
            value is None or validate is not None,
            name,
            value,
            "there is nothing to validate with",
            "pass validate=, a function from the encoder to a dict of metrics",
        )
    require(
        recipe.phases != "kappa" or encoder.separable,
        "phases",
        recipe.phases,
        "this encoder's kappa is the norm of its embedding and cannot be trained alone",
        'pass phases="joint", or build the encoder with kappa="head"',
    )


def _make_fabric(recipe: Recipe, device: str) -> "Fabric":
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it greets every run with advice
    here = resolve_device(device)
    precision: Any = PRECISIONS[recipe.precision]
    launched = launched_process()
    if launched.count == 1:
        return Fabric(accelerator=here.type, devices=1 if here.index is None else [here.index], precision=precision)
    return Fabric(
        accelerator=here.type,
        strategy="ddp",
        devices=launched.local_count,
        num_nodes=launched.count // launched.local_count,
        precision=precision,
    )


def _open_sources(batches: Any, plan: Sequence[Phase], seed: int, rank: int, device: torch.device) -> dict[str, Source]:
    """One source per phase; batches not given by phase are one source that goes on through all of them."""
    if not isinstance(batches, Mapping):
        source = open_source(batches, seed, rank, device)
        return {phase.part: source for phase in plan}
    for phase in plan:
        require(
            phase.part in batches,
            "batches",
            sorted(batches),
            f"no source for the phase {phase.part!r}",
            "add it",
        )
    return {phase.part: open_source(batches[phase.part], seed, rank, device) for phase in plan}


def _start_phase(
    encoder: Encoder, loss: nn.Module, phase: Phase, trainable: set[nn.Parameter]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Freeze what the phase does not train, running statistics too; returns the parameters that learn."""
    encoder.train()
    loss.train()
    frozen: list[nn.Module] = []
    if encoder.separable and phase.part != "joint":
        frozen = encoder.kappa_modules() if phase.part == "mu" else encoder.mu_modules()
    held = {parameter for module in frozen for parameter in module.eval().parameters()}
    for parameter in trainable:
        parameter.requires_grad_(parameter not in held)
    return (
        [parameter for parameter in encoder.parameters() if parameter.requires_grad],
        [parameter for parameter in loss.parameters() if parameter.requires_grad],
    )


def _can_capture(recipe: Recipe, fabric: "Fabric", source: Source, loss: nn.Module) -> bool:
    obstacles = {
        "the device is not a GPU": fabric.device.type != "cuda",
        "there are several processes": fabric.world_size > 1,
        f"the precision is {recipe.precision}": recipe.precision not in ("32", "tf32"),
        "the batches are not drawn on the device": not (isinstance(source, CalledSource) and source.capturable),
        "the loss has a kernel that is learned (pass terms, and VMFKernel)": not getattr(loss, "capturable", True),
    }
    standing = [obstacle for obstacle, there in obstacles.items() if there]
    require(
        not (recipe.capture and standing),
        "capture",
        recipe.capture,
        "a CUDA graph is not possible here: " + ", ".join(standing),
        "leave it out, to capture where that is possible",
    )
    return not standing and recipe.capture is not False


def _captured(
    fabric: "Fabric", objective: nn.Module, stepper: Any, source: Source, clip_norm: float | None
) -> CapturedStep:
    """Drawing the batch and `training_step`, as one CUDA graph; the batch's seed is set before each call."""
    assert isinstance(source, CalledSource)
    return CapturedStep(
        lambda: training_step(fabric, objective, stepper, source.draw(0), clip_norm), [source.generator]
    )


def _validate(
    fabric: "Fabric", validate: Callable[[Encoder], Mapping[str, float]] | None, encoder: Encoder
) -> dict[str, float]:
    """The metrics, the same on all processes; training's randomness does not notice."""
    metrics: dict[str, float] = {}
    if fabric.is_global_zero and validate is not None:
        encoder.eval()
        with torch.no_grad(), preserved_randomness(fabric.device):
            metrics = {name: float(value) for name, value in validate(encoder).items()}
    return fabric.broadcast(metrics)


def _select(run: Run, recipe: Recipe, metrics: Mapping[str, float], encoder: Encoder, loss: nn.Module) -> None:
    """Keep the best weights so far, and stop after too many validations that are no better."""
    require(
        recipe.select in metrics,
        "select",
        recipe.select,
        "validate does not report it",
        f"choose one of {', '.join(metrics) or 'the metrics that it reports (none)'}",
    )
    value = metrics[recipe.select]  # type: ignore[index]
    sign = 1 if recipe.select_mode == "max" else -1
    best_so_far = -math.inf if run.best is None else sign * run.best["value"]
    if sign * value > best_so_far:  # false for NaN
        run.best = {
            "step": run.done,
            "value": value,
            "encoder": {name: tensor.clone() for name, tensor in encoder.state_dict().items()},
            "loss": {name: tensor.clone() for name, tensor in loss.state_dict().items()},
        }
        run.stale = 0
        return
    run.stale += 1
    run.stopped = recipe.patience is not None and run.stale >= recipe.patience


def _gathered(fabric: "Fabric", value: Any) -> list[Any]:
    """The value of every process, in order."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def _identity(
    encoder: Encoder, loss: nn.Module, recipe: Recipe, processes: int, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a run folder belongs to. Weights are no part of it: those that a run starts from may be gone."""
    settings = dataclasses.asdict(recipe)
    return {
        "recipe": {name: value for name, value in settings.items() if name not in _FREE_TO_CHANGE},
        "encoder": brief(encoder.spec()) | {"parameters": sum(p.numel() for p in encoder.parameters())},
        "loss": {name or "loss": describe_module(module) for name, module in loss.named_modules()},
        "processes": processes,
        "config": dict(config or {}),
    }


@contextlib.contextmanager
def _kept_trainability(*modules: nn.Module) -> Iterator[set[nn.Parameter]]:
    """The parameters that require gradients; whatever the phases freeze, they do so again afterwards."""
    parameters = {parameter for module in modules for parameter in module.parameters() if parameter.requires_grad}
    try:
        yield parameters
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
