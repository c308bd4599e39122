"""Which items are trained on and which are held out."""

from typing import NoReturn

import numpy as np

from aleator.foundation import percent, reject, require
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.number_tables import is_number
from aleator.own_data.collection.parts import Split, can_be_evaluated
from aleator.own_data.collection.problems import listed
from aleator.own_data.measuring.evaluation import evaluation_labels

_LARGER_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)  # held out from collections that are too small for the usual share
_NAMED = 3  # classes that a line of the log names
_LEAST_OF_ONE_CLASS = 6  # items: two to learn from, two to calibrate, two to test
# Scales and maps that were fitted on two to six groups were wrong by factors of 4 to 20, however many items they had.
_LEAST_GROUPS = 30
_MOST_GROUPS_HELD_OUT = 0.5  # share of the groups that may be held out in order to calibrate
_FEW_GROUPS_HELD_OUT = 0.3  # where even that is too few


def require_trainable(collection: Collection) -> Labels:
    """Return the labels of a collection. Raise if there are none, or if nothing can be learned from them."""
    labels, source = collection.labels, str(collection.source)
    if labels is None:
        way_out = "put images into class folders, name a column label, or pass --labels with features or texts"
        if collection.columns is not None:
            way_out = (
                "call its column of classes label, or pass --labels; a column of texts or paths is called text or path"
            )
        reject("data", source, "has no labels", way_out)
    _require_precise(collection)
    if labels.kind == "pairs":
        return labels
    counts = labels.counts()
    for c in np.flatnonzero(counts == 0)[:1]:
        reject("data", f"class {labels.names[c]} of {source}", "has no item", "leave it out")
    left_out = f", without {len(collection.problems)} items that cannot be used" if collection.problems else ""
    require(len(counts) >= 2, "data", source, f"has one class only{left_out}", "add items of another class")
    if labels.kind == "classes":
        _require_classes(labels, source)
    if labels.kind in ("classes", "groups"):
        shared = int((counts > 1).sum())
        problem = f"fewer than two {labels.kind} have two items{left_out}"
        require(shared >= 2, "data", source, problem, f"check the {labels.kind}, or add items")
    return labels


def _require_classes(labels: Labels, source: str) -> None:
    """Raise if the labels are measurements: numbers with decimals, most of which stand once."""
    measured = sum("." in name and is_number(name) for name in labels.names)
    once = int((labels.counts() == 1).sum())
    problem = f"its labels are {len(labels.names)} different numbers, such as {labels.names[0]}, and not classes"
    way_out = "make classes of them, such as low and high"
    require(2 * measured <= len(labels.names) or 2 * once <= len(labels.names), "data", source, problem, way_out)


def _require_precise(collection: Collection) -> None:
    """Raise if float32, which everything is computed in, can hardly tell the values of a feature apart."""
    coarse = collection.items.coarse if isinstance(collection.items, FeatureFile) else ()
    way_out = "subtract the mean from such a feature, or leave it out"
    require(
        not coarse,
        "data",
        str(collection.source),
        f"{listed(coarse, 5)}: float32 cannot tell the values apart",
        way_out,
    )


def describe_single_items(labels: Labels) -> str:
    """A line of the log about classes with one item; empty if there are none.

    Such an item is trained on, because it tells where its class is, but no held-out item can be asked about the class.
    """
    if labels.kind != "classes":
        return ""
    single = np.flatnonzero(labels.counts() == 1)
    if not len(single):
        return ""
    names = listed([labels.names[c] for c in single], _NAMED)
    has = "class has" if len(single) == 1 else "classes have"
    return f"{len(single)} {has} one item only ({names}), which is trained on; no question tests such a class"


def describe_few_groups(grouping: Labels, split: Split) -> str:
    """A warning that too few groups are held out to calibrate on; empty for enough of them, and for other labels."""
    if grouping.kind != "groups":
        return ""
    count = len(np.unique(grouping.values[split.calibration]))
    if count >= _LEAST_GROUPS:
        return ""
    return (
        "NOT CALIBRATED: kappa and match probabilities stay as training left them. "
        f"{count} groups are too few to calibrate on: {_LEAST_GROUPS} are needed, and as many to evaluate; add groups, "
        "or hold out more of them"
    )


def describe_copies(digests: np.ndarray, split: Split) -> str:
    """A line of the log about items that equal others; empty if there are none."""
    copies = len(digests) - len(np.unique(digests))
    known = np.isin(digests[split.test], digests[split.train]).sum()
    if known:
        return f"{known} of {len(split.test)} test items are copies of items that are trained on: figures are too good"
    are = "item is a copy of another" if copies == 1 else "items are copies of others"
    return f"{copies} {are}; equal items are all trained on or all held out" if copies else ""


def split_items(
    collection: Collection,
    labels: Labels,
    share: float,
    seed: int,
    seen: np.ndarray | None = None,
    digests: np.ndarray | None = None,
) -> Split:
    """Hold out a share of every class, or a share of the groups. Half of it is for calibration, half for evaluation.

    A class keeps at least two items to train on. A group is held out as a whole. Pairs are treated as the groups of
    items that they link. Items that are alone in their group are in no part. Items that are `seen`, booleans (N,), are
    not held out. Equal items, those with equal `digests` (N,), are in the same part; but not those of groups, and not
    if too few would be held out.
    """
    require(0 < share < 1, "holdout", share, "not a share above 0 and below 1", "pass for example 0.2")
    grouping = evaluation_labels(labels, len(collection))
    if seen is None:
        seen = np.zeros(len(collection), bool)
    split = _split(grouping, share, seed, seen, digests)
    if split is None:
        _reject_too_few(str(collection.source), grouping, labels, share, seed, seen, digests)
    return split


def _split(grouping: Labels, share: float, seed: int, seen: np.ndarray, digests: np.ndarray | None) -> Split | None:
    """The split; None if too few items would be trained on, calibrate or be tested on."""
    generator = np.random.default_rng(seed)
    hard = grouping.hard()
    assert hard is not None
    order = generator.permutation(len(hard))
    if grouping.kind == "groups":
        split = _split_groups(hard, share, generator, seen)
    else:
        if digests is not None:
            order = _equal_ones_together(order, digests)
        order = np.concatenate([order[~seen[order]], order[seen[order]]])  # the first of a class are held out
        split = _without_seen(_split_classes(hard, share, order), seen)
        if digests is not None:
            split = _equal_ones_in_one_part(split, digests)
    enough = len(split.train) >= 4 and all(can_be_evaluated(hard[part]) for part in (split.calibration, split.test))
    if enough:
        return split
    return None if digests is None else _split(grouping, share, seed, seen, None)


def _reject_too_few(
    source: str, grouping: Labels, labels: Labels, share: float, seed: int, seen: np.ndarray, digests: np.ndarray | None
) -> NoReturn:
    """Raise the error for items that cannot be split, with a share that would do, if there is one."""
    new = f"that are new ({np.count_nonzero(~seen)} of {len(seen)})" if seen.any() else f"({len(seen)})"
    problem, way_out = f"too few items {new} to hold out {percent(share)} of them", "add items of each class"
    if grouping.kind == "groups":
        groups = np.count_nonzero(grouping.counts() > 1)
        link = "the pairs link them into " if labels.kind == "pairs" else ""
        problem += f" ({link}{groups} groups of two items or more, which stay whole)"
        way_out = "add groups: two calibrate, two are tested on, the others are learned from"
    elif grouping.counts().max() < _LEAST_OF_ONE_CLASS:
        way_out += f" (one needs {_LEAST_OF_ONE_CLASS}), or call the labels groups"
    enough = [other for other in (0.2, *_LARGER_SHARES) if _split(grouping, other, seed, seen, digests)]
    if enough:
        way_out += f"; or pass holdout={enough[0]:g}"
    reject("data", source, problem, way_out)


def allowed_share(
    collection: Collection,
    labels: Labels,
    usual: float,
    seed: int,
    seen: np.ndarray | None = None,
    digests: np.ndarray | None = None,
) -> float:
    """The usual share of held-out items, or the least larger one that leaves enough to calibrate and evaluate on.

    Classes of eight items, for example, have one of them in a share of 20 %. Each half needs two of a class.
    Of groups, 30 calibrate and 30 evaluate, if that is at most half of them.
    If no share is enough, the usual one is returned; `split_items` then says what is missing.
    """
    grouping = evaluation_labels(labels, len(collection))
    if grouping.kind == "groups":
        needed = 2 * _LEAST_GROUPS / max(1, int((grouping.counts() > 1).sum()))
        usual = max(usual, needed if needed <= _MOST_GROUPS_HELD_OUT else _FEW_GROUPS_HELD_OUT)
    seen = np.zeros(len(collection), bool) if seen is None else seen
    shares = (usual, *_LARGER_SHARES)
    return next((share for share in shares if _split(grouping, share, seed, seen, digests)), usual)


def _without_seen(split: Split, seen: np.ndarray) -> Split:
    """The split with the held-out items that are seen among those to train on."""
    calibration, test = split.calibration[~seen[split.calibration]], split.test[~seen[split.test]]
    held_out = np.concatenate([split.calibration, split.test])
    return Split(np.sort(np.concatenate([split.train, held_out[seen[held_out]]])), calibration, test)


def _equal_ones_together(order: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """The order of items (N,), with each item right behind the first one that equals it."""
    _, first, kind = np.unique(digests[order], return_index=True, return_inverse=True)
    return order[np.argsort(first[kind.reshape(-1)], kind="stable")]


def _equal_ones_in_one_part(split: Split, digests: np.ndarray) -> Split:
    """The split, in which no item is held out that equals one to train on, or tested on that calibrates."""
    known = np.isin(digests, digests[split.train])
    split = _without_seen(split, known)
    calibrates = np.isin(digests[split.test], digests[split.calibration])
    calibration = np.sort(np.concatenate([split.calibration, split.test[calibrates]]))
    return Split(split.train, calibration, split.test[~calibrates])


def _split_groups(group: np.ndarray, share: float, generator: np.random.Generator, seen: np.ndarray) -> Split:
    """Hold out whole groups without `seen` items; `group` (N,) is the group of each item."""
    sizes = np.bincount(group)
    shared = np.flatnonzero(sizes > 1)
    generator.shuffle(shared)
    new = shared[np.bincount(group, weights=seen)[shared] == 0]
    held_out = np.array_split(new[: round(share * len(shared))], 2)
    calibration, test = (np.flatnonzero(np.isin(group, groups)) for groups in held_out)
    matched = np.flatnonzero(sizes[group] > 1)  # nothing can be learned from an item that is alone in its group
    return Split(np.setdiff1d(matched, np.concatenate([calibration, test])), calibration, test)


def _split_classes(hard: np.ndarray, share: float, order: np.ndarray) -> Split:
    """Hold out a share of each class, taken in a random order of the items; `hard` (N,) is the class of each item."""
    by_class = order[np.argsort(hard[order], kind="stable")]
    counts = np.bincount(hard)
    place = np.arange(len(hard)) - np.repeat(np.cumsum(counts) - counts, counts)  # of an item within its class
    held_out = np.minimum(np.floor(share * counts), counts - 2).clip(0)
    class_of = hard[by_class]
    calibration_end, test_end = np.floor(held_out / 2)[class_of], held_out[class_of]
    return Split(
        train=np.sort(by_class[place >= test_end]),
        calibration=np.sort(by_class[place < calibration_end]),
        test=np.sort(by_class[(place >= calibration_end) & (place < test_end)]),
    )
