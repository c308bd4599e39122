"""Conditions on metadata."""

import pytest

from aleator.retrieval.filters import compile_filter


@pytest.mark.parametrize(
    ("spec", "metadata", "passes"),
    [
        ({"label": "cat"}, {"label": "cat"}, True),
        ({"label": "cat"}, {"label": "dog"}, False),
        ({"label": "cat"}, {}, False),
        ({"label": {"ne": "cat"}}, {}, False),
        ({"label": {"ne": "cat"}}, {"label": "dog"}, True),
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": True}, {"n": 1}, False),
        ({"n": None}, {"n": None}, True),
        ({"n": None}, {}, False),
        ({"n": {"eq": {"a": 1}}}, {"n": {"a": 1}}, True),
        ({"n": {"in": [1, "x"]}}, {"n": "x"}, True),
        ({"n": {"in": []}}, {"n": "x"}, False),
        ({"year": {"gte": 2020, "lt": 2024}}, {"year": 2023.5}, True),
        ({"year": {"gte": 2020, "lt": 2024}}, {"year": 2024}, False),
        ({"year": {"gt": 2020}}, {"year": "2021"}, False),
        ({"name": {"lte": "m"}}, {"name": "anna"}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"a": [1, 2]}, {"a": [1, 2]}, True),
    ],
)
def test_conditions(spec, metadata, passes):
    assert compile_filter(spec)(metadata) is passes
