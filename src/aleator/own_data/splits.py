"""Which items are held out, and what remains of the labels."""

from dataclasses import dataclass

import numpy as np

from aleator.foundation import reject, require
from aleator.own_data.collection import Collection, Labels
from aleator.own_data.evaluation import evaluation_labels


@dataclass(frozen=True)
class Split:
    """Item numbers: to train on, to calibrate match probabilities on, and to measure on."""

    train: np.ndarray
    calibration: np.ndarray
    test: np.ndarray


def require_trainable(collection: Collection) -> Labels:
    """The labels, if something can be learned from them."""
    labels = collection.labels
    if labels is None:
        way_out = "put images into class folders, name a column label, or pass --labels with .npy features"
        reject("data", str(collection.source), "has no labels", way_out)
    if labels.kind == "pairs":
        return labels
    counts = labels.counts()
    for c in np.flatnonzero(counts == 0)[:1]:
        reject("data", f"class {labels.names[c]} of {collection.source}", "has no item", "leave it out")
    require(len(counts) >= 2, "data", str(collection.source), "has one class only", "two are needed to tell apart")
    if labels.kind == "classes":
        for c in np.flatnonzero(counts == 1)[:1]:
            i = int(np.flatnonzero(labels.values == c)[0])
            item = collection.items[i] if collection.kind != "features" else f"row {i}"
            way_out = "add another one, or leave the class out"
            reject("data", f"class {labels.names[c]} of {collection.source}", f"has one item only ({item})", way_out)
    if labels.kind == "groups":
        shared = int((counts > 1).sum())
        require(shared >= 2, "data", str(collection.source), "hardly any group has two items", "check the groups")
    return labels


def split(collection: Collection, labels: Labels, share: float, seed: int) -> Split:
    """Hold out a share of every class, or of the groups as wholes; half of that calibrates, half measures.

    A class keeps at least two items to train on. Pairs are held out as the groups that they link.
    """
    require(0 < share < 1, "holdout", share, "not a share inside (0, 1)", "try 0.2")
    generator = np.random.default_rng(seed)
    whole = evaluation_labels(labels, len(collection))
    hard = whole.hard()
    assert hard is not None
    order = generator.permutation(len(hard))
    if whole.kind == "groups":
        shared = np.flatnonzero(np.bincount(hard) > 1)
        generator.shuffle(shared)
        count = round(share * len(shared))
        parts = np.array_split(shared[:count], 2)
        calibration, test = (np.flatnonzero(np.isin(hard, part)) for part in parts)
        single = np.bincount(hard)[hard] == 1  # nothing to learn from these
        train = np.setdiff1d(np.flatnonzero(~single), np.concatenate([calibration, test]))
    else:
        by_class = order[np.argsort(hard[order], kind="stable")]
        counts = np.bincount(hard)
        place = np.arange(len(hard)) - np.repeat(np.cumsum(counts) - counts, counts)  # of an item in its class
        held = np.minimum(np.floor(share * counts), counts - 2).clip(0)
        calibration_share = np.floor(held / 2)
        ends = hard[by_class]
        calibration = np.sort(by_class[place < calibration_share[ends]])
        test = np.sort(by_class[(place >= calibration_share[ends]) & (place < held[ends])])
        train = np.sort(by_class[place >= held[ends]])
    enough = len(train) >= 4 and all(_measurable(hard[part]) for part in (calibration, test))
    linked = f"; the pairs link them into {len(whole.names)} groups, which stay whole" if labels.kind == "pairs" else ""
    require(
        enough,
        "data",
        len(hard),
        f"too few items to hold out {share:.0%} of them{linked}",
        "bring more items of each class, or raise --holdout",
    )
    return Split(train, calibration, test)


def _measurable(hard: np.ndarray) -> bool:
    """Whether there are two classes or more, and an item with a partner."""
    counts = np.bincount(hard)
    return bool((counts > 0).sum() >= 2 and (counts > 1).any())


def labels_of(labels: Labels, chosen: np.ndarray) -> Labels:
    """The labels of some items, numbered anew; pairs with both members among them."""
    if labels.kind != "pairs":
        values = labels.values[chosen]
        if labels.kind != "soft":
            return Labels(labels.kind, values, labels.names)
        some = values.sum(0) > 0
        return Labels("soft", values[:, some], tuple(np.array(labels.names)[some].tolist()))
    place = np.full(labels.values.max() + 1, -1)
    inside = chosen[chosen < len(place)]
    place[inside] = np.flatnonzero(chosen < len(place))
    pairs = place[labels.values]
    return Labels("pairs", pairs[(pairs >= 0).all(1)])
