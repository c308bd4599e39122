"""What is wrong with single items of a collection: all of it in one report, and the work goes on without them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aleator.foundation import BadArgumentError
from aleator.own_data.collection.tables import Table

_NAMED = 3  # items that a line of the report names
_LINES = 8  # kinds of problems that the report lists
_DETAILS = re.compile(r"\(.*\)|'[^']*'|\d+")  # what differs between problems of one kind


@dataclass(frozen=True)
class Problem:
    """Why an item cannot be used.

    Args:
        item: Its path, or where it is: "row 3 of items.csv".
        reason: What is wrong with it.
        way_out: What the user can do.

    Examples:
        >>> from aleator.own_data import Problem
        >>> Problem("cat/1.jpg", "is damaged", "copy it again").reason
        'is damaged'
    """

    item: str
    reason: str
    way_out: str


def problem_of(item: str, error: ValueError) -> Problem:
    """The problem that an error tells of.

    Args:
        item: Name of the item.
        error: The error of a check.

    Returns:
        The problem.
    """
    if isinstance(error, BadArgumentError):
        return Problem(item, error.problem, error.way_out)
    return Problem(item, str(error), "leave it out")


def usable_rows(table: Table, check: Callable[[int], None]) -> tuple[Table, list[Problem]]:
    """The rows of a table that pass a check, and what is wrong with the others.

    Args:
        table: The table.
        check: Called with the index of each row. It raises a ValueError if the row cannot be used.

    Returns:
        The table without bad rows, and a problem for each of these.
    """
    problems: dict[int, Problem] = {}
    for i in range(len(table)):
        try:
            check(i)
        except ValueError as error:
            problem = problem_of(table.where(i), error)
            column = f"{error.argument}: " if isinstance(error, BadArgumentError) else ""
            problems[i] = replace(problem, reason=column + problem.reason)
    return (table.without(problems) if problems else table), list(problems.values())


def listed(names: Sequence[str], most: int) -> str:
    """The first names in words: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def describe_problems(problems: Sequence[Problem], total: int) -> str:
    """One report of all problems: how many, what, the first names and the way out.

    Args:
        problems: The problems.
        total: Number of items, with those that have a problem.

    Returns:
        Several lines. Problems of one kind share a line.

    Examples:
        >>> from aleator.own_data import Problem, describe_problems
        >>> damaged = [Problem(f"{i}.jpg", f"is damaged (byte {i})", "copy it again") for i in range(5)]
        >>> print(describe_problems([*damaged, Problem("a.heic", "is a HEIC picture", "convert it")], 100))
        6 of 100 items cannot be used:
          5 x is damaged (byte 0): 0.jpg, 1.jpg, 2.jpg and 2 more; copy it again
          1 x is a HEIC picture: a.heic; convert it
    """
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((_DETAILS.sub("", problem.reason), problem.way_out), []).append(problem)
    lines = [f"{len(problems)} of {total} items cannot be used:"]
    by_size = sorted(kinds.values(), key=len, reverse=True)
    for alike in by_size[:_LINES]:
        names = listed([problem.item for problem in alike], _NAMED)
        lines.append(f"  {len(alike)} x {alike[0].reason}: {names}; {alike[0].way_out}")
    if len(by_size) > _LINES:
        lines.append(f"  {sum(map(len, by_size[_LINES:]))} x other problems")
    return "\n".join(lines)


def stop_at(problems: Sequence[Problem], total: int, argument: str = "data") -> None:
    """Raise if there are problems. One problem alone reads like any other error of an argument.

    Args:
        problems: The problems.
        total: Number of items, with those that have a problem.
        argument: Name of the argument that holds the items.

    Raises:
        ValueError: With all problems.
    """
    if len(problems) == 1:
        (problem,) = problems
        raise BadArgumentError(argument, repr(problem.item), problem.reason, problem.way_out)
    if problems:
        raise ValueError(describe_problems(problems, total))
