"""Conditions on metadata.

Filters are evaluated here, for candidates from any store. So every store gives the same answer.

A filter maps a metadata key to a value, or to conditions that must all hold:

    {"label": "cat", "year": {"gte": 2020, "lt": 2024}, "camera": {"in": ["a", "b"]}}

An item without the key does not pass. Numbers are compared with numbers, and strings with strings. True and False
are not numbers.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from aleator.foundation import require, require_one_of
from aleator.retrieval.items import Metadata

Filter = Mapping[str, Any]
Predicate = Callable[[Metadata], bool]
_Test = Callable[[Any, Any], bool]  # of an item's value and the value in the filter


def compile_filter(filter: Filter) -> Predicate:
    """Turn a filter into a function of metadata.

    Raises:
        ValueError: If the filter has an unknown condition, or one that makes no sense for its value.
    """
    require(isinstance(filter, Mapping), "filter", filter, "is not a dict", 'write {"key": value}')
    tests: list[tuple[str, _Test, Any]] = []
    for key, wanted in filter.items():
        require(isinstance(key, str), "filter", key, "is not a metadata key", "keys are strings")
        argument = f"filter[{key!r}]"
        conditions = wanted if isinstance(wanted, Mapping) else {"eq": wanted}
        require(len(conditions) > 0, argument, wanted, "has no condition", 'write {"eq": value}')
        for name, operand in conditions.items():
            require_one_of(argument, name, _TESTS)
            if name in _ORDERED:
                ordered = _json_type(operand) in (float, str)
                require(ordered, argument, operand, f"has no order for {name!r}", "compare with a number or a string")
            if name == "in":
                is_list = isinstance(operand, list | tuple | set | frozenset)
                require(is_list, argument, operand, "is not a list of values", 'write {"in": [a, b]}')
            tests.append((key, _TESTS[name], operand))
    return lambda metadata: all(key in metadata and test(metadata[key], operand) for key, test, operand in tests)


def _json_type(value: Any) -> type:
    """The type of a value in JSON: integers and floats are one type, and booleans are another."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float
    return type(value)


def _equal(value: Any, operand: Any) -> bool:
    return _json_type(value) is _json_type(operand) and value == operand


def _if_same_type(compare: _Test) -> _Test:
    return lambda value, operand: _json_type(value) is _json_type(operand) and compare(value, operand)


_ORDERED = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_TESTS: dict[str, _Test] = {
    "eq": _equal,
    "ne": lambda value, operand: not _equal(value, operand),
    "in": lambda value, operand: any(_equal(value, member) for member in operand),
    **{name: _if_same_type(compare) for name, compare in _ORDERED.items()},
}
