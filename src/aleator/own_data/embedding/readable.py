"""Items that turn out to be unusable while they are read: the others are prepared."""

from typing import Any

import numpy as np

from aleator.data import Inputs
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.problems import Problem, problem_of


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
