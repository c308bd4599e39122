"""One mode or two? A short trial of both, judged by held-out labels.

Two modes cost time and need data that show them, so they are taken only if they are clearly better: if the mean over
held-out items of the log-likelihood of an item's label is larger by more than its standard error. The two trials are
compared item by item, so what all heads find hard does not count.
"""

import shutil
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import read_json, write_json
from aleator.losses import PrototypeLoss
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split
from aleator.own_data.learning.defaults import compares_with_classes, usual_steps_of_head
from aleator.own_data.learning.preparation import Job, PreparedTraining, with_modes
from aleator.own_data.learning.recipe import item_log_likelihoods, train_encoder
from aleator.own_data.learning.time_limit import TimeLimit

_SHARE = 4  # a trial takes a quarter of the steps; both take a quarter of the minutes
_LEAST_STEPS = 50
_FILE = "modes.json"


def try_modes(
    training: PreparedTraining,
    labels: Labels,
    split: Split,
    settings: dict[str, Any],
    job: Job,
    identity: dict[str, Any],
) -> tuple[int, PreparedTraining]:
    """Choose one mode or two, and log why. The choice is kept in RUN/modes.json.

    Args:
        training: The items, with an encoder of one mode.
        labels: Labels of all items.
        split: Which items are trained on, and which are held out.
        settings: Complete settings, by name, but for the modes.
        job: Where it runs.
        identity: What identifies the data.

    Returns:
        The number of modes, and the items with an untrained encoder of so many.
    """
    reason = _untried(training, labels, job)
    if reason is not None:
        _log(job, f"modes = 1: {reason}")
        return 1, training
    path = job.folder / _FILE
    if not path.is_file():
        write_json(path, _trial(training, labels, split, settings, job, identity))
    found = read_json(path, "remove it, and start again")
    _log(
        job,
        f"modes = {found['modes']}: in a trial of {' and '.join(map(str, found['steps']))} steps "
        f"({found['seconds']:.0f} s) two modes changed "
        f"the log-likelihood of held-out labels by {found['difference']:+.4f} (standard error {found['error']:.4f})",
    )
    return found["modes"], training if found["modes"] == 1 else with_modes(training, settings, found["modes"])


def better_by(first: Tensor, second: Tensor) -> tuple[float, float]:
    """By how much the second is larger than the first in the mean over items (n,), and its standard error."""
    difference = (second - first).double()
    return difference.mean().item(), difference.std().item() / len(difference) ** 0.5


def _untried(training: PreparedTraining, labels: Labels, job: Job) -> str | None:
    """Why nothing is tried, or None."""
    if training.learns_from_pixels:
        return "a network that learns from pixels takes too long to be trained for a trial; pass --modes 2 to have two"
    if not compares_with_classes(labels):
        return "modes are tried with classes or soft labels only"
    if job.group.count > 1:
        return "modes are not tried by several processes"
    return None


def _trial(
    training: PreparedTraining,
    labels: Labels,
    split: Split,
    settings: dict[str, Any],
    job: Job,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Train both for some steps: what is written to RUN/modes.json."""
    began, steps, likelihoods = time.perf_counter(), settings["steps"], []
    most = max(_LEAST_STEPS, (steps or usual_steps_of_head(labels, len(split.train), settings)) // _SHARE)
    minutes = settings["minutes"] and settings["minutes"] / _SHARE / 2
    limit = minutes and TimeLimit(minutes, 60 * minutes, 0, 1.0)  # nothing but learning
    made = []
    folder = job.folder / "trial"
    for modes in (1, 2):
        shutil.rmtree(folder, ignore_errors=True)  # of a trial that was stopped
        folder.mkdir()
        tried = with_modes(training, settings, modes)
        quiet = replace(job, folder=folder, progress=False, log=lambda line: None)
        own = settings | {"modes": modes, "steps": most}
        result, loss = train_encoder(tried, labels, split, own, quiet, identity, limit=limit)
        made.append(result.steps)
        assert isinstance(loss, PrototypeLoss)
        with torch.no_grad():
            likelihoods.append(item_log_likelihoods(tried, loss, labels, split))
    shutil.rmtree(folder, ignore_errors=True)
    difference, error = better_by(*likelihoods)
    chosen = {"modes": 2 if difference > error else 1, "difference": difference, "error": error}
    return chosen | {"steps": made, "seconds": time.perf_counter() - began}


def _log(job: Job, line: str) -> None:
    if job.group.first:
        job.log(line)
