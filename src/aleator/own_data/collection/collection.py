"""A user's collection: items of one kind, and their labels."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.object_store import AnyPath, ObjectPath
from aleator.own_data.collection.problems import Problem


@dataclass(frozen=True)
class Collection:
    """N items of one kind, and their labels.

    Args:
        kind: "images", "features" or "text", as in `Inputs`.
        source: The file or folder that was read.
        items: Image paths relative to `root`, rows of features, or texts.
        root: Folder that image paths start from.
        labels: Labels of the items, if there are any.
        ignored: Number of files in the folder that are not images.
        problems: Items that are left out because they cannot be used, and why.
        names: Ids of features and texts: the column id of their table, or, for a part of a file, the number of each
            item in it. None: the numbers from 0.
        note: What a user should know about its ids; empty if there is nothing to say.

    Examples:
        >>> from pathlib import Path
        >>> from aleator.own_data import Collection
        >>> collection = Collection("text", Path("lines.txt"), ["It purrs.", "It barks."])
        >>> len(collection)
        2
        >>> list(collection.records())
        [{'id': 0, 'text': 'It purrs.'}, {'id': 1, 'text': 'It barks.'}]
    """

    kind: str
    source: AnyPath
    items: Sequence[Any] | FeatureFile
    root: AnyPath | None = None
    labels: Labels | None = None
    ignored: int = 0
    problems: tuple[Problem, ...] = ()
    names: Sequence[str | int] | None = None
    note: str = ""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def features(self) -> int:
        """F, the number of features of each item; for collections of features only."""
        assert isinstance(self.items, FeatureFile)
        return self.items.shape[1]

    @property
    def columns(self) -> list[str] | None:
        """The names of the features, if they have names."""
        named = self.items.columns if isinstance(self.items, FeatureFile) else None
        return None if named is None else list(named)

    @property
    def notes(self) -> list[str]:
        """What a user should know about how it was read, a line each."""
        return [self.note] * bool(self.note) + list(self.items.notes if isinstance(self.items, FeatureFile) else ())

    def raw(self, start: int, stop: int) -> Any:
        """Some items in the form that `Inputs.prepare` takes.

        Args:
            start: First item.
            stop: One past the last item.

        Returns:
            Paths of images (on an object store, `ObjectPath`), rows (n, F) of features, or texts.
        """
        items = self.items[start:stop]
        if isinstance(self.root, ObjectPath):
            return [self.root / path for path in items]
        return [os.path.join(self.root, path) for path in items] if self.root is not None else items

    def ids(self) -> list[str | int]:
        """The id of each item: the path of an image; for texts and features the column id of their table, or a number.

        Returns:
            N ids.
        """
        if self.kind == "images":
            assert not isinstance(self.items, FeatureFile)
            return list(self.items)
        return list(range(len(self)) if self.names is None else self.names)

    def records(self) -> Iterator[dict[str, Any]]:
        """Describe each item, as in the .jsonl beside a posteriors file.

        Yields:
            For each item its "id"; "path" of an image or "text"; "label", the (most probable) class or group; and for
            soft labels "labels", the probability of each possible class.
        """
        labels = self.labels
        hard = None if labels is None else labels.hard()
        for i, id in enumerate(self.ids()):
            record: dict[str, Any] = {"id": id}
            if self.kind != "features":
                record["path" if self.kind == "images" else "text"] = self.items[i]
            if labels is not None and hard is not None:
                record["label"] = labels.names[hard[i]]
                if labels.kind == "soft":
                    row = labels.values[i]
                    record["labels"] = {labels.names[c]: round(float(row[c]), 6) for c in np.flatnonzero(row)}
            yield record
