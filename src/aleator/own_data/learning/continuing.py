"""Continue a finished run with new items or new classes, in a new run folder: `aleator train --from runs/photos`.

The encoder starts with the weights of the first run. A network that was trained from scratch goes on with a lower rate;
a head on features is quickly trained again, and keeps its rate. Classes start where their items are.
Items that the first run was trained on are not held out: the figures would be too good.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from aleator.foundation import require
from aleator.losses import PrototypeLoss
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.used_items import TRAINING, used_as
from aleator.own_data.learning.defaults import FROM_SCRATCH, Settings
from aleator.own_data.learning.preparation import PreparedTraining
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.measuring.one_mode import one_mode
from aleator.own_data.runs.run import Run

_KEPT = ("backbone", "dim", "modes", "width", "members", "dropout", "size")  # they decide the shape of the encoder
_RATE = 0.3  # of the learning rate, for networks that were trained from scratch
_MOST_ITEMS = 2000  # of each class, for its first posterior


def continued_settings(settings: Settings, first: Run, collection: Collection) -> Settings:
    """Settings of a run that continues another one.

    Args:
        settings: What the user asks for.
        first: The run to continue.
        collection: The items.

    Returns:
        The settings, with those of the first run where they decide the shape of the encoder.

    Raises:
        ValueError: If the items are of another kind, or a setting would change the shape of the encoder.
    """
    name, kind = str(first.folder), first.inputs.kind
    problem = f"was trained on {kind}, and {collection.source} holds {collection.kind}"
    require(collection.kind == kind, "start", name, problem, f"pass {kind}, or start afresh")
    if kind == "features":
        problem = f"takes rows of {first.inputs.features}, and {collection.source} has rows of {collection.features}"
        require(collection.features == first.inputs.features, "start", name, problem, "pass features of that network")
    before = first.config["settings"]
    kept: dict[str, Any] = {}
    for setting in _KEPT:
        given, old = getattr(settings, setting), before.get(setting)
        problem = f"the run {name} has {old}, and its encoder cannot change"
        require(given is None or given == old, setting, given, problem, "leave it out, or start afresh")
        kept[setting] = old
    rate = before.get("learning_rate")
    if settings.learning_rate is None and rate is not None:
        kept["learning_rate"] = rate * (_RATE if before["backbone"] in FROM_SCRATCH else 1.0)
    learns_from_pixels = before["backbone"] in FROM_SCRATCH or settings.tune not in (None, "head")
    if settings.augment is None and learns_from_pixels:
        kept["augment"] = before.get("augment")
    return replace(settings, **kept)


def seen_items(first: Run, digests: np.ndarray) -> np.ndarray | None:
    """Which items, by their digests (N,), a run was trained on, (N,); None if it does not say, as older runs."""
    used = used_as(first.folder, digests)
    return None if used is None else np.array([use == TRAINING for use in used])


@torch.no_grad()
def start_classes(loss: PrototypeLoss, training: PreparedTraining, own_labels: Labels, split: Split, seed: int) -> None:
    """Put every class to the mean direction of its training items.

    Args:
        loss: The loss. Its class posteriors are changed.
        training: The items and the encoder, as it starts.
        own_labels: Labels of the training items.
        split: Which items are trained on.
        seed: Seed of the sample of items.
    """
    most = _MOST_ITEMS * len(own_labels.names)
    places = np.random.default_rng(seed).permutation(len(split.train))[:most]
    q = one_mode(training.posteriors(split.train[places]))
    mean = label_rows(own_labels)[torch.as_tensor(places)].mT @ q.mean.double()
    length = mean.norm(dim=1, keepdim=True)
    found = length > 1e-6
    loss.direction.copy_(torch.where(found, mean / length.clamp_min(1e-6), loss.direction.double()))
