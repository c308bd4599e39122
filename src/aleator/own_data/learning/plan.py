"""The plan of a training: its items and labels, which of them are held out, and every setting.

It is known before an item is read, and is the same whenever a command is repeated. If items turn out to be unreadable,
it becomes the plan for the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import digest, is_whole, require
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.left_out import leave_out
from aleator.own_data.collection.number_tables import with_columns
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.problems import Problem
from aleator.own_data.learning.continuing import continued_settings, seen_items
from aleator.own_data.learning.defaults import Choice, CompleteSettings, Settings, choose_settings, held_out_share
from aleator.own_data.learning.splits import (
    allowed_share,
    describe_copies,
    describe_few_groups,
    describe_single_items,
    require_trainable,
    split_items,
)
from aleator.own_data.measuring.evaluation import evaluation_labels
from aleator.own_data.runs.run import Run, load_run

_SEEDS = 2**63  # torch takes no larger ones


@dataclass(frozen=True)
class TrainingData:
    """N items with labels that can be trained on; and the run that the training continues, if it continues one.

    Args:
        collection: The items.
        labels: Their labels.
        digests: What each item is, shape (N,); see `item_digests`.
        first: The run that is continued.
        seen: Which items that run was trained on, shape (N,).
    """

    collection: Collection
    labels: Labels
    digests: np.ndarray
    first: Run | None = None
    seen: np.ndarray | None = None

    @classmethod
    def read(cls, collection: Collection, first: Run | None, progress: bool | None = None) -> "TrainingData":
        """Check a collection, and look at what its items are. Raise if nothing can be learned from it."""
        collection = collection if first is None else with_columns(collection, first.columns)
        return cls(collection, require_trainable(collection), item_digests(collection, progress), first)._with_seen()

    def without(self, problems: Mapping[int, Problem]) -> "TrainingData":
        """Those items that can be read; `problems` says what is wrong with the others, by number."""
        collection = leave_out(self.collection, problems)
        digests = np.delete(self.digests, list(problems))
        return replace(self, collection=collection, labels=require_trainable(collection), digests=digests)._with_seen()

    @property
    def grouping(self) -> Labels:
        """Labels of all items, of no pairs; see `evaluation_labels`."""
        return evaluation_labels(self.labels, len(self.collection))

    def split(self, holdout: float, seed: int) -> Split:
        """Hold out a share of the items, none of which the first run was trained on."""
        return split_items(self.collection, self.labels, holdout, seed, self.seen, self.digests)

    def describe(self) -> dict[str, Any]:
        """What identifies the data: a run is resumed with the same data only. Names of items decide nothing."""
        collection, labels = self.collection, self.labels
        return {
            "source": str(collection.source),
            "kind": collection.kind,
            "items": len(collection),
            "contents": digest(self.digests),
            "labels": labels.kind,
            "labels_digest": digest(list(labels.names), np.ascontiguousarray(labels.values)),
            "classes": list(labels.names) if labels.kind != "groups" else len(labels.names),
            **({} if collection.columns is None else {"columns": collection.columns}),
            **({} if self.first is None else {"start": self.first.fingerprint}),
        }

    def _with_seen(self) -> "TrainingData":
        return self if self.first is None else replace(self, seen=seen_items(self.first, self.digests))


@dataclass(frozen=True)
class Plan:
    """What a training does.

    Args:
        data: The items and their labels.
        split: Which items are trained on, calibrate, and are tested on.
        settings: All settings.
        choices: Those that were chosen from the data, and why.
        requested: The settings as they were asked for.
        identity: What identified the data before an item was read. Their files may be moved.
        notes: What a user should know, a line each.
    """

    data: TrainingData
    split: Split
    settings: CompleteSettings
    choices: list[Choice]
    requested: Settings
    identity: dict[str, Any]
    notes: list[str]

    def without(self, problems: Mapping[int, Problem]) -> "Plan":
        """The plan for those items that can be read; `problems` says what is wrong with the others, by number."""
        if not problems:
            return self
        data = self.data.without(problems)
        split = data.split(self.settings.holdout, self.settings.seed)
        plan = replace(self, data=data, split=split)
        if self.requested.batch_size is None:  # it was chosen for all items
            plan = plan.changed(batch_size=min(self.settings.batch_size, len(split.train)))
        return plan

    def changed(self, **settings: Any) -> "Plan":
        """The plan with other settings, by name."""
        return replace(self, settings=replace(self.settings, **settings))


def run_to_continue(settings: Settings) -> Run | None:
    """Check the settings that decide what is read, and load the run that they continue, if there is one."""
    in_range = is_whole(settings.seed, 0) and settings.seed < _SEEDS
    require(in_range, "seed", settings.seed, "not a whole number from 0 to 2^63 - 1", "pass for example 0")
    a_share = settings.holdout is None or isinstance(settings.holdout, Real)
    require(a_share, "holdout", settings.holdout, "is not a number", "pass for example 0.2")
    if settings.start is None:
        return None
    there = Path(settings.start).expanduser().is_dir()
    require(there, "start", settings.start, "there is no such folder", "name one that `aleator train` made")
    return load_run(settings.start)


def make_plan(data: TrainingData, requested: Settings, gpu: bool = False) -> Plan:
    """Decide which items are held out, and choose the settings that are open.

    Args:
        data: The items and their labels.
        requested: The settings that the user asks for.
        gpu: Whether training runs on a GPU.

    Returns:
        The plan.

    Raises:
        ValueError: If too few items can be held out, or a setting cannot be used.
    """
    collection, labels, settings = data.collection, data.labels, requested
    notes = [*collection.notes, describe_single_items(labels)]
    if settings.holdout is None:
        usual = held_out_share(len(collection))
        holdout = allowed_share(collection, labels, usual, settings.seed, data.seen, data.digests)
        if holdout > usual:
            notes.append(f"holdout = {holdout:g}: {usual:.2g} would leave too few classes or groups to test")
        settings = replace(settings, holdout=holdout)
    if data.first is not None:
        settings = continued_settings(settings, data.first, collection)
    assert settings.holdout is not None
    split = data.split(settings.holdout, settings.seed)
    notes += [describe_copies(data.digests, split), describe_few_groups(data.grouping, split)]
    complete, choices = choose_settings(collection, labels, len(split.train), settings, gpu)
    identity = {name: value for name, value in data.describe().items() if name != "source"}
    return Plan(data, split, complete, choices, requested, identity, [note for note in notes if note])
