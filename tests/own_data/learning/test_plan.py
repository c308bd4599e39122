"""A plan says what a training does, before an item is read, and without changing."""

import dataclasses

import numpy as np
import pytest

from aleator.own_data import Problem, Settings, read_collection
from aleator.own_data.learning.plan import TrainingData, make_plan, run_to_continue


def plan_of(photos, **settings):
    return make_plan(TrainingData.read(read_collection(photos), None), Settings(holdout=0.4, **settings))


def test_the_same_request_has_the_same_plan(photos):
    one, other = plan_of(photos), plan_of(photos)
    assert one.settings == other.settings
    assert one.identity == other.identity
    assert all(np.array_equal(a, b) for a, b in zip(vars(one.split).values(), vars(other.split).values(), strict=True))
    assert {choice.name for choice in one.choices} >= {"backbone", "dim", "batch_size"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.settings.steps = 7


@pytest.mark.parametrize("requested", [None, 30])
def test_items_that_cannot_be_read_leave_a_plan_for_the_others(photos, requested):
    plan = plan_of(photos, batch_size=requested)
    damaged = plan.split.train[:-20].tolist()
    smaller = plan.without({i: Problem("photo", "is damaged", "remove it") for i in damaged})
    assert len(smaller.data.collection) == len(smaller.data.digests) == len(plan.data.collection) - len(damaged)
    assert not {plan.data.collection.ids()[i] for i in damaged} & set(smaller.data.collection.ids())
    assert sum(map(len, vars(smaller.split).values())) == len(smaller.data.collection)
    # A batch size that was chosen is no larger than what there is to learn from; one that was asked for stays.
    learned = len(smaller.split.train)
    assert smaller.settings.batch_size == (min(plan.settings.batch_size, learned) if requested is None else requested)
    assert smaller.identity == plan.identity  # a run that is resumed has all of its items again
    assert plan.without({}) is plan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "seed = -1: not a whole number"),
        ({"holdout": "half"}, "holdout = 'half': is not a number"),
        ({"start": "nowhere"}, "start = 'nowhere': there is no such folder"),
    ],
)
def test_what_cannot_be_planned_with_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        run_to_continue(Settings(**given))
