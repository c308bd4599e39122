"""Items that are left out because they cannot be used: the work goes on with the others, and a report names them.

A run records which items it left out, RUN/left_out.json. A resumed run must leave out the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from aleator.foundation import read_json, require, using_contents, write_json
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.parts import select_items
from aleator.own_data.collection.problems import Problem, describe_problems

FILE = "left_out.json"


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
