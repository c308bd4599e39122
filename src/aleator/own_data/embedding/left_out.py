"""Items that turn out to be unusable while they are read: the work goes on with the others.

A run records which items it left out, RUN/left_out.json. A resumed run must leave out the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from aleator.data import Inputs
from aleator.foundation import read_json, require, using_contents, write_json
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels, named_labels
from aleator.own_data.collection.problems import Problem, describe_problems, problem_of
from aleator.own_data.learning.splits import select_labels

FILE = "left_out.json"


def prepare_readable(
    inputs: Inputs, collection: Collection, start: int, stop: int
) -> tuple[Any, np.ndarray, dict[int, Problem]]:
    """Prepare those items of a span that can be read.

    Args:
        inputs: How items are prepared.
        collection: The items.
        start: First item.
        stop: One past the last item.

    Returns:
        The prepared items, None if there are none; their numbers; and for the others, by number, what is wrong.

    Raises:
        ValueError: If a row of features cannot be used. Features are not left out: their rows belong together.
    """
    numbers = np.arange(start, stop)
    try:
        return inputs.prepare(collection.raw(start, stop)), numbers, {}
    except ValueError:
        if collection.kind == "features":
            raise
    problems = unreadable_items(inputs, collection, numbers)
    good = np.array([i for i in numbers.tolist() if i not in problems], np.int64)
    items = [collection.raw(i, i + 1)[0] for i in good.tolist()]
    return (inputs.prepare(items) if items else None), good, problems


def unreadable_items(inputs: Inputs, collection: Collection, numbers: np.ndarray) -> dict[int, Problem]:
    """What is wrong with those of some items that cannot be read.

    Args:
        inputs: How items are prepared.
        collection: The items.
        numbers: Numbers of the items.

    Returns:
        Problems, by the number of the item.
    """
    problems = {}
    for i in numbers.tolist():
        (item,) = collection.raw(i, i + 1)
        try:
            inputs.prepare([item])
        except ValueError as error:
            problems[i] = problem_of(str(item) if collection.kind == "images" else f"text {i}", error)
    return problems


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


def leave_out(collection: Collection, problems: Mapping[int, Problem]) -> Collection:
    """A collection without the items that have a problem; these are added to its problems.

    Args:
        collection: The items.
        problems: Problems, by the number of the item.

    Returns:
        The smaller collection.
    """
    if not problems:
        return collection
    kept = np.array([i for i in range(len(collection)) if i not in problems], np.int64)
    return replace(select_items(collection, kept), problems=(*collection.problems, *problems.values()))


def record_left_out(folder: Path, problems: Sequence[Problem]) -> None:
    """Write RUN/left_out.json, or check that a resumed run leaves out the same items.

    Args:
        folder: The run folder.
        problems: What is wrong with the items that are left out.

    Raises:
        ValueError: If the run left out other items before.
    """
    path = folder / FILE
    names = sorted(problem.item for problem in problems)
    if path.is_file():
        way_out = "name a new folder"
        with using_contents(path, way_out):
            before = sorted(entry["item"] for entry in read_json(path, way_out, list))
        changed = sorted(set(before) ^ set(names))
        problem = f"has left out other items; now differs: {', '.join(changed[:3])}"
        require(not changed, "output", str(folder), problem, "name a new folder, or bring the files back")
    elif problems:
        write_json(path, [asdict(problem) for problem in problems])


def _labels_of(labels: Labels, numbers: np.ndarray) -> Labels:
    selected = select_labels(labels, numbers)
    if selected.kind in ("classes", "groups"):
        return named_labels([selected.names[value] for value in selected.values], selected.kind)
    return selected


def describe_left_out(collection: Collection) -> str | None:
    """The report of the items that are left out of a collection; None if there are none.

    Args:
        collection: The collection without them.

    Returns:
        Several lines.
    """
    if not collection.problems:
        return None
    report = describe_problems(collection.problems, len(collection) + len(collection.problems))
    return f"{report}\nThey are left out; --strict stops instead."
