"""How the encoder of a run is trained: its batches, its loss, its steps.

Classes, hard or soft: items are compared with learned class posteriors and with each other (`PrototypeLoss`). The
weights with the best likelihood of held-out labels are kept. Groups and pairs: matching items are compared with the
other items of their batch (`ExactInfoNCE`).
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from aleator.data import ImageAugmentation, LabelledBatches, LabelRowBatches, PairBatches
from aleator.evaluation import LabelModel
from aleator.foundation import one_thread
from aleator.losses import ExactInfoNCE, PrototypeLoss
from aleator.matching import VMFKernel
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split, select_labels
from aleator.own_data.learning.defaults import CompleteSettings, compares_with_classes, usual_steps_of_head
from aleator.own_data.learning.plan import Plan
from aleator.own_data.learning.preparation import Job, PreparedTraining
from aleator.own_data.learning.time_limit import TimeLimit
from aleator.own_data.measuring.answers import label_rows
from aleator.training import Recipe, fit

# Weight of the comparison of items with each other. It costs some accuracy, most of all where there are many classes.
# Where people's votes differ, it makes kappa follow them.
_PAIRS, _PAIRS_OF_IMAGES, _PAIRS_OF_VOTES = 0.1, 0.3, 1.0
_MOST_PAIRED = 64  # items of a batch that are compared with each other, if no votes are to be followed
_AGREEMENT = 1.0  # weight of how often people agree about an item, if soft labels say it
_MOST_PASSES = 80  # over the training images; more would not help
_FEW_PASSES = 5  # with fewer, the log says that more time would help
_VALIDATIONS = 16  # a head on features can overfit within a few passes

Loss = PrototypeLoss | ExactInfoNCE


def train_encoder(
    training: PreparedTraining,
    plan: Plan,
    job: Job,
    begin: Callable[[PrototypeLoss, Labels], None] | None = None,
    limit: TimeLimit | None = None,
) -> tuple[int, Loss]:
    """Train the encoder; the log and checkpoints are in RUN/training/.

    Args:
        training: The items and the encoder.
        plan: The labels of all items, which of them are trained on, and the settings.
        job: Where it runs.
        begin: Called with the loss and the labels of the training items, to choose the first class posteriors. Default:
            they are random.
        limit: How long it may take. Default: no limit.

    Returns:
        The number of steps, and the loss, which holds the learned class posteriors, if there are classes.
    """
    labels, split, settings = plan.data.labels, plan.split, plan.settings
    own_labels = select_labels(labels, split.train)
    batches = training_batches(training, own_labels, split, settings, job.torch_device)
    torch.manual_seed(settings.seed)  # the first class posteriors are random
    pairs = _PAIRS_OF_IMAGES if training.learns_from_pixels else _PAIRS_OF_VOTES if labels.kind == "soft" else _PAIRS
    loss = _loss(own_labels, settings, pairs)
    if begin is not None and isinstance(loss, PrototypeLoss):
        begin(loss, own_labels)
    most = settings.steps
    if most is None and training.learns_from_pixels:
        most = steps_of_passes(_MOST_PASSES, batches, settings.batch_size)
    elif most is None:
        most = usual_steps_of_head(labels, len(split.train), settings.batch_size, settings.members or 1)
    validate = label_likelihood(training, loss, labels, split) if isinstance(loss, PrototypeLoss) else None
    if limit is not None and validate is not None:
        validate = limit.timed(validate, len(split.calibration))
    # On a small head, a second thread would only wait for the first.
    small = not training.learns_from_pixels and settings.batch_size * settings.width <= 2**15
    with one_thread() if small else nullcontext():
        result = fit(
            training.encoder,
            loss,
            batches,
            one_cycle(settings, most, settings.learning_rate, validate is not None, _VALIDATIONS, 10, limit=limit),
            afterwards=limit.afterwards if limit else None,
            folder=job.folder / "training",
            validate=validate,
            device=job.device,
            loggers=("csv",),
            progress=job.progress,
            config={"data": plan.identity},
        )
    if job.group.first:
        networks = settings.members or 1  # each of them learns from its part of a batch
        passes = result.steps * settings.batch_size / len(batches) / networks
        each = " of each network" if networks > 1 else ""
        job.log(f"trained {result.steps} steps, {passes:.2g} passes{each} over the items, in {result.seconds:.0f} s")
        if result.steps < most and passes < _FEW_PASSES:
            job.log("that is little: more --minutes would make the answers better")
    return result.steps, loss


def one_cycle(
    settings: CompleteSettings,
    steps: int,
    learning_rate: float,
    with_classes: bool,
    validations: int,
    checkpoints: int,
    capture: bool | None = None,
    limit: TimeLimit | None = None,
) -> Recipe:
    """The recipe of heads and networks: AdamW, one cycle; with classes, the likeliest weights on held-out labels.

    Args:
        settings: All settings.
        steps: Number of steps.
        learning_rate: Highest learning rate.
        with_classes: Whether items are compared with classes.
        validations: How often held-out labels are looked at.
        checkpoints: Number of checkpoints, at most one in 50 steps.
        capture: Whether each step is one CUDA graph. Default: where it can be.
        limit: How long it may take. Default: no limit.
    """
    return Recipe(
        steps,
        minutes=limit.minutes if limit else None,
        learning_rate=learning_rate,
        schedule="one-cycle",
        weight_decay=settings.weight_decay,
        optimiser="adamw",
        clip_norm=5.0,
        capture=capture,
        validate_every=max(1, steps // validations) if with_classes else None,
        select="label_log_likelihood" if with_classes else None,
        seed=settings.seed,
        checkpoint_every=max(50, steps // checkpoints),
        log_every=min(50, steps),
    )


def _loss(labels: Labels, settings: CompleteSettings, pairs: float = _PAIRS) -> Loss:
    """The loss for the labels of the training items."""
    kernel = VMFKernel(settings.kappa_pos)
    if not compares_with_classes(labels):
        return ExactInfoNCE(kernel)
    disputed = labels.kind == "soft" and bool((labels.values.max(1) < 1).any())
    agreement = _AGREEMENT if disputed else 0.0
    few = None if disputed else _MOST_PAIRED
    return PrototypeLoss(settings.dim, labels.counts(), kernel, pairs, agreement=agreement, most_paired=few)


@torch.no_grad()
def learned_labels(loss: Loss, labels: Labels, split: Split) -> LabelModel | None:
    """Label probabilities as the learned class posteriors have them, on the CPU; None if there are no classes."""
    if not isinstance(loss, PrototypeLoss):
        return None
    own_labels = select_labels(labels, split.train)
    column = [labels.names.index(name) for name in own_labels.names]
    weights = torch.zeros(len(column), len(labels.names), dtype=torch.float64)
    weights[torch.arange(len(column)), column] = loss.log_shares_of_classes.exp().double().cpu()
    kernel = loss.kernel
    assert isinstance(kernel, VMFKernel)
    return LabelModel(loss.prototypes.to("cpu"), weights, labels.names, kernel)


def training_batches(
    training: PreparedTraining, labels: Labels, split: Split, settings: CompleteSettings, device: torch.device
) -> LabelRowBatches | LabelledBatches | PairBatches:
    """Batches of training items; `labels` are those of the training items."""
    items, label_values = training.select(split.train), torch.as_tensor(labels.values)
    augment = _augmentation(training, settings.augment) if training.learns_from_pixels else None
    if labels.kind == "pairs":
        return PairBatches(items, label_values, settings.batch_size, augment=augment, device=device)
    if compares_with_classes(labels):
        return LabelRowBatches(items, label_values, settings.batch_size, augment=augment, device=device)
    # An item may be paired with itself if the two views can differ: in their pixels, or in the class that is drawn.
    with_itself = augment is not None or labels.kind == "soft"
    return LabelledBatches(
        items, label_values, settings.batch_size, with_itself=with_itself, augment=augment, device=device
    )


def _augmentation(training: PreparedTraining, augment: str | None) -> ImageAugmentation:
    inputs = training.inputs
    shift = 0 if augment == "none" else (inputs.size or 0) // 8
    return ImageAugmentation(augment == "flip", shift, mean=inputs.mean, std=inputs.std)


def label_likelihood(
    training: PreparedTraining, loss: PrototypeLoss, labels: Labels, split: Split
) -> Callable[[Any], dict[str, float]]:
    """Function for `fit`: mean log-likelihood of the labels of the items that are held out for calibration."""

    def validate(encoder: Any) -> dict[str, float]:
        return {"label_log_likelihood": item_log_likelihoods(training, loss, labels, split).mean().item()}

    return validate


def item_log_likelihoods(training: PreparedTraining, loss: PrototypeLoss, labels: Labels, split: Split) -> Tensor:
    """Log-likelihood of the label of each item that is held out for calibration, (n,), on the CPU."""
    q = training.posteriors(split.calibration).to(next(training.encoder.parameters()).device)
    return (_label_rows(labels, split) * loss.log_probabilities(q).cpu()).sum(1)


def _label_rows(labels: Labels, split: Split) -> Tensor:
    """Labels of the items held out for calibration, (n, C), over the classes that training items have."""
    rows = label_rows(labels)
    held_out = rows[split.calibration][:, rows[split.train].sum(0) > 0].float()
    return held_out / held_out.sum(1, keepdim=True).clamp_min(1e-9)


def steps_of_passes(passes: int, batches: Any, batch_size: int) -> int:
    """Number of steps that make some passes over the items.

    Args:
        passes: Number of passes.
        batches: The batches.
        batch_size: Number of items in a batch.

    Returns:
        The number of steps.
    """
    return -(-passes * len(batches) // batch_size)
