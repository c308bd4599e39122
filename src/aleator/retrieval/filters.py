"""Conditions on metadata, the same in every backend because this one function decides them.

A filter maps a metadata key to a value or to conditions, all of which must hold:

    {"label": "cat", "year": {"gte": 2020, "lt": 2024}, "camera": {"in": ["a", "b"]}}

An item without the key does not pass. Order is defined between two numbers and between two strings; true and
false are not numbers.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from aleator.foundation import require, require_one_of
from aleator.retrieval.items import Metadata

Filter = Mapping[str, Any]


def compile_filter(spec: Filter) -> Callable[[Metadata], bool]:
    """The predicate that a filter stands for; a filter that makes no sense raises before any search."""
    require(isinstance(spec, Mapping), "filter", spec, "is not a dict", 'write {"key": value}')
    conditions: list[tuple[str, Callable[[Any, Any], bool], Any]] = []
    for key, wanted in spec.items():
        require(isinstance(key, str), "filter", key, "is not a metadata key", "keys are strings")
        tests = wanted if isinstance(wanted, Mapping) else {"eq": wanted}
        require(len(tests) > 0, f"filter[{key!r}]", wanted, "asks nothing", 'write {"eq": value}')
        for name, operand in tests.items():
            require_one_of(f"filter[{key!r}]", name, _TESTS)
            require(
                name not in _ORDERED or _kind(operand) in (float, str),
                f"filter[{key!r}]",
                operand,
                f"has no order for {name!r}",
                "compare with a number or a string",
            )
            require(
                name != "in" or isinstance(operand, list | tuple | set | frozenset),
                f"filter[{key!r}]",
                operand,
                "is not a list of values",
                'write {"in": [a, b]}',
            )
            conditions.append((key, _TESTS[name], operand))
    return lambda metadata: all(key in metadata and test(metadata[key], operand) for key, test, operand in conditions)


def _kind(value: Any) -> type:
    """JSON's idea of a type: one kind of number, and booleans are none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float
    return type(value)


def _equal(value: Any, operand: Any) -> bool:
    return _kind(value) is _kind(operand) and value == operand


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, operand: _kind(value) is _kind(operand) and compare(value, operand)


_ORDERED = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": _equal,
    "ne": lambda value, operand: not _equal(value, operand),
    "in": lambda value, operand: any(_equal(value, one) for one in operand),
    **{name: _comparison(compare) for name, compare in _ORDERED.items()},
}
