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
from aleator.own_data.learning.defaults import compares_with_classes, usual_steps_of_head
from aleator.own_data.learning.plan import Plan
from aleator.own_data.learning.preparation import Job, PreparedTraining, with_modes
from aleator.own_data.learning.recipe import item_log_likelihoods, train_encoder
from aleator.own_data.learning.time_limit import TimeLimit

_SHARE = 4  # a trial takes a quarter of the steps; both take a quarter of the minutes
_LEAST_STEPS = 50
_FILE = "modes.json"


def try_modes(training: PreparedTraining, plan: Plan, job: Job) -> tuple[Plan, PreparedTraining]:
    """Choose one mode or two, and log why. The choice is kept in RUN/modes.json.

    Args:
        training: The items, with an encoder of one mode.
        plan: What to train, with one mode.
        job: Where it runs.

    Returns:
        The plan with the number of modes, and the items with an untrained encoder of so many.
    """
    reason = _untried(training, plan.data.labels, job)
    if reason is not None:
        _log(job, f"modes = 1: {reason}")
        return plan, training
    path = job.folder / _FILE
    if not path.is_file():
        write_json(path, _trial(training, plan, job))
    found = read_json(path, "remove it, and start again")
    _log(
        job,
        f"modes = {found['modes']}: in a trial of {' and '.join(map(str, found['steps']))} steps "
        f"({found['seconds']:.0f} s) two modes changed "
        f"the log-likelihood of held-out labels by {found['difference']:+.4f} (standard error {found['error']:.4f})",
    )
    if found["modes"] == 1:
        return plan, training
    plan = plan.changed(modes=found["modes"])
    return plan, with_modes(training, plan.settings)


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


def _trial(training: PreparedTraining, plan: Plan, job: Job) -> dict[str, Any]:
    """Train both for some steps: what is written to RUN/modes.json."""
    began, likelihoods = time.perf_counter(), []
    labels, split, settings = plan.data.labels, plan.split, plan.settings
    usual = usual_steps_of_head(labels, len(split.train), settings.batch_size, settings.members or 1)
    most = max(_LEAST_STEPS, (settings.steps or usual) // _SHARE)
    limit = None
    if settings.minutes is not None:  # for nothing but learning
        minutes = settings.minutes / _SHARE / 2
        limit = TimeLimit(minutes, 60 * minutes, 0, 1.0)
    made = []
    folder = job.folder / "trial"
    for modes in (1, 2):
        shutil.rmtree(folder, ignore_errors=True)  # of a trial that was stopped
        folder.mkdir()
        own = plan.changed(modes=modes, steps=most)
        tried = with_modes(training, own.settings)
        quiet = replace(job, folder=folder, progress=False, log=lambda line: None)
        steps, loss = train_encoder(tried, own, quiet, limit=limit)
        made.append(steps)
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
