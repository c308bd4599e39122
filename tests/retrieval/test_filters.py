"""Conditions on metadata."""

import datetime
import math
from enum import StrEnum

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex
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


class Animal(StrEnum):
    CAT = "cat"


@pytest.mark.parametrize(
    ("foreign", "plain"),
    [
        (np.array(["cat"])[0], "cat"),
        (Animal.CAT, "cat"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.array(3), 3),
        (np.bool_(True), True),
        (torch.tensor(3), 3),
        (torch.tensor(0.5), 0.5),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([1, 2]), [1, 2]),
        ((1, np.float64(2.5)), [1, 2.5]),
        ([np.int64(1), (np.array(["a"])[0],)], [1, ["a"]]),
        ({"a": np.int64(1)}, {"a": 1}),
    ],
)
def test_values_of_numpy_and_torch_are_the_values_they_hold(foreign, plain):
    for condition in ("eq", "ne"):
        ours, theirs = compile_filter({"k": {condition: plain}}), compile_filter({"k": {condition: foreign}})
        assert ours.texts == theirs.texts
        for found in (plain, "other", 4, None):
            assert theirs({"k": found}) is ours({"k": found}) is ((found == plain) == (condition == "eq"))


def test_lists_and_limits_may_be_of_numpy_and_torch():
    names, numbers = np.array(["cat", "dog"]), torch.tensor([1, 2])
    for given in (names, list(names), tuple(names), set(names), frozenset(names)):
        passes = compile_filter({"k": {"in": given}})
        assert passes({"k": "dog"})
        assert not passes({"k": "cow"})
    assert compile_filter({"k": {"in": numbers}})({"k": 2})
    for least in (np.int64(2), np.float64(2.0), torch.tensor(2)):
        passes = compile_filter({"k": {"gte": least}})
        assert passes({"k": 2})
        assert not passes({"k": 1})


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        1j,
        b"cat",
        {"cat"},
        datetime.date(2024, 1, 1),
        np.datetime64(0, "ns"),
        object(),
    ],
)
def test_what_metadata_cannot_hold_is_refused_by_name(value):
    for spec in ({"k": {"eq": value}}, {"k": {"ne": value}}, {"k": {"in": ["a", value]}}, {"k": [value]}):
        with pytest.raises(ValueError, match=r"filter\['k'\] = .*: is no value that metadata can have; compare with"):
            compile_filter(spec)


def test_a_search_takes_a_label_out_of_an_array():
    labels = np.array(["cat", "dog", "cat"])
    q = VonMisesFisher(torch.eye(3), 10.0)
    index = CredibleIndex.build(q, metadata=[{"label": str(label), "n": n} for n, label in enumerate(labels)])
    found = index.search(q[:1], by="nearest", filter={"label": labels[0], "n": {"ne": np.int64(0)}})
    assert [hit.id for hit in found[0]] == [2]
