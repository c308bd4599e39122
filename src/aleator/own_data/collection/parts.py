"""Parts of a collection: what is trained on and what is held out, and some items with their labels."""

from dataclasses import dataclass, replace

import numpy as np

from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels, named_labels


@dataclass(frozen=True)
class Split:
    """Item numbers of three parts: to train on, to calibrate match probabilities on, and to evaluate on."""

    train: np.ndarray
    calibration: np.ndarray
    test: np.ndarray


def select_items(collection: Collection, numbers: np.ndarray) -> Collection:
    """Some items of a collection, with their labels. Classes that none of them has are dropped.

    Args:
        collection: Images or texts.
        numbers: Numbers of the items, in the order that they shall have.

    Returns:
        The smaller collection.
    """
    assert not isinstance(collection.items, FeatureFile)
    ids = collection.ids()
    return replace(
        collection,
        items=[collection.items[i] for i in numbers.tolist()],
        labels=None if collection.labels is None else _labels_of(collection.labels, numbers),
        names=None if collection.kind == "images" else [ids[i] for i in numbers.tolist()],
    )


def _labels_of(labels: Labels, numbers: np.ndarray) -> Labels:
    selected = select_labels(labels, numbers)
    if selected.kind in ("classes", "groups"):
        return named_labels([selected.names[value] for value in selected.values], selected.kind)
    return selected


def labels_at(labels: Labels, items: np.ndarray) -> Labels:
    """The labels of some items, which are numbered from 0 in the new labels. All names stay.

    Of pairs, those with both members among the items remain.
    """
    if labels.kind != "pairs":
        return replace(labels, values=labels.values[items])
    new_number = np.full(labels.values.max() + 1, -1)
    paired = items < len(new_number)
    new_number[items[paired]] = np.flatnonzero(paired)
    pairs = new_number[labels.values]
    return Labels("pairs", pairs[(pairs >= 0).all(1)])


def select_labels(labels: Labels, items: np.ndarray) -> Labels:
    """The same, but soft labels lose the classes that none of the items can have."""
    chosen = labels_at(labels, items)
    if chosen.kind != "soft":
        return chosen
    possible = chosen.values.sum(0) > 0
    return Labels("soft", chosen.values[:, possible], tuple(np.array(labels.names)[possible].tolist()))


def can_be_evaluated(hard: np.ndarray) -> bool:
    """Whether there are at least two classes, and two items of one class."""
    counts = np.bincount(hard)
    return bool((counts > 0).sum() >= 2 and (counts > 1).any())
