"""Filters: conditions on the metadata of items.

Filters are evaluated here, for candidates from any store. So every store gives the same answer. A store may look first:
`Predicate.texts` are pieces of JSON text that metadata must contain to pass.

A filter maps a metadata key to a value, or to conditions that must all hold:

    {"label": "cat", "year": {"gte": 2020, "lt": 2024}, "camera": {"in": ["a", "b"]}}

An item without the key does not pass. Numbers are compared with numbers, and strings with strings. True and False
are not numbers. Numbers, strings and arrays of NumPy and torch are taken as the values that they hold.
"""

import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aleator.foundation import plain_number, reject, require, require_one_of
from aleator.retrieval.items import Metadata

Filter = Mapping[str, Any]
_Test = Callable[[Any, Any], bool]  # of an item's value and the value in the filter
_LARGEST = 1e300  # of numbers with a simple text
_MOST_TEXTS = 64  # of one condition; a longer list is left to the test itself


@dataclass(frozen=True)
class Predicate:
    """A filter as a function of metadata.

    Args:
        tests: Key, test and the filter's value of each condition.
        texts: For each condition, pieces of text. Metadata that pass contain at least one of them as JSON text, in the
            form of `encode_metadata`. Metadata that contain one need not pass.
    """

    tests: tuple[tuple[str, _Test, Any], ...]
    texts: tuple[tuple[str, ...], ...]

    def __call__(self, metadata: Metadata) -> bool:
        return all(key in metadata and test(metadata[key], operand) for key, test, operand in self.tests)


def compile_filter(filter: Filter) -> Predicate:
    """Turn a filter into a function of metadata.

    Raises:
        ValueError: If the filter has an unknown condition, one that makes no sense for its value, or a value that JSON
            does not have.
    """
    require(isinstance(filter, Mapping), "filter", filter, "is not a dict", 'write {"key": value}')
    tests: list[tuple[str, _Test, Any]] = []
    texts: list[tuple[str, ...]] = []
    for key, wanted in filter.items():
        require(isinstance(key, str), "filter", key, "is not a metadata key", "keys are strings")
        argument = f"filter[{key!r}]"
        conditions = wanted if isinstance(wanted, Mapping) else {"eq": wanted}
        require(len(conditions) > 0, argument, wanted, "has no condition", 'write {"eq": value}')
        for name, given in conditions.items():
            require_one_of(argument, name, _TESTS)
            is_set = name == "in" and isinstance(given, set | frozenset)
            operand = _plain(argument, list(given) if is_set else given)
            if name in _ORDERED:
                ordered = _json_type(operand) in (float, str)
                require(ordered, argument, operand, f"has no order for {name!r}", "compare with a number or a string")
            if name == "in":
                require(isinstance(operand, list), argument, operand, "is not a list of values", 'write {"in": [a, b]}')
            tests.append((key, _TESTS[name], operand))
            texts.append(_texts(key, name, operand))
    return Predicate(tuple(tests), tuple(texts))


def _plain(argument: str, value: Any) -> Any:
    """A value of a filter as metadata come back from JSON: None, a boolean, a number, a string, a list or a dict."""
    if isinstance(value, list | tuple | np.ndarray | torch.Tensor) and getattr(value, "shape", None) != ():
        return [_plain(argument, member) for member in value]
    if isinstance(value, Mapping):
        return {key: _plain(argument, member) for key, member in value.items()}
    is_time = isinstance(value, np.datetime64 | np.timedelta64)  # some of them would become numbers
    value = value if is_time else plain_number(value)
    if isinstance(value, str):
        return str.__str__(value)  # without its own class, such as that of an enum
    if value is None or isinstance(value, int) or (isinstance(value, float) and not math.isnan(value)):
        return value
    way_out = "compare with a number, a string, True, False, None, a list or a dict"
    return reject(argument, value, "is no value that metadata can have", way_out)


def _texts(key: str, name: str, operand: Any) -> tuple[str, ...]:
    """Pieces of JSON text, one of which metadata contain that pass a condition: the key, with the value if it is known.

    A number may go on after the piece, and the piece may be part of a value that is a dict. So the test still decides.
    """
    start = f"{json.dumps(key)}: "
    values = [operand] if name == "eq" else list(operand) if name == "in" else [...]
    ends = [end for value in values for end in _value_texts(value)]
    if len(ends) > _MOST_TEXTS or "" in ends:
        return (start,)
    return tuple(dict.fromkeys(start + end for end in ends))


def _value_texts(value: Any) -> list[str]:
    """JSON texts of all values that equal this one; the empty text if that is not simple to say."""
    if value is None or isinstance(value, str | bool):
        return [json.dumps(value)]
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return [""]
    if value == 0:
        return ["0", "0.0", "-0.0"]
    equal = [number for number in (int(value), float(value)) if number == value]
    return [json.dumps(number) for number in equal]


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
