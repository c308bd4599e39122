"""Conditions on metadata."""

import pytest

from aleator.retrieval.filters import compile_filter
from aleator.retrieval.items import encode_metadata


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


@pytest.mark.parametrize(
    "value", ["a'b", '"', "é", "", True, False, None, 0, -0.0, 0.0, 1, 1.0, 2.5, 10**16, 1e16, -3, 2**80]
)
def test_metadata_that_pass_contain_one_of_the_texts(value):
    equal = [value, *({int(value), float(value)} if isinstance(value, float) and value.is_integer() else [])]
    equal += [float(value)] if isinstance(value, int) and not isinstance(value, bool) else []
    for spec in ({"k": value}, {"k": {"in": ["other", value]}}, {"k": {"ne": "other"}}):
        passes = compile_filter(spec)
        for found in equal:
            metadata = {"first": "k", "k": found, "last": 7}
            assert passes(metadata)
            assert all(any(text in encode_metadata(metadata) for text in any_of) for any_of in passes.texts)


def test_what_has_no_simple_text_asks_for_the_key_alone():
    for spec in (
        {"k": [1]},
        {"k": {"eq": {"a": 1}}},
        {"k": {"gt": 1}},
        {"k": {"in": list(range(1000))}},
        {"k": 10**5000},
    ):
        assert compile_filter(spec).texts == (('"k": ',),)
    assert compile_filter({"k": {"in": []}}).texts == ((),)
