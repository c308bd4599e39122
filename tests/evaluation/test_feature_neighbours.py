"""Neighbours, near duplicates and odd ones, against brute force and planted ones."""

import numpy as np
import pytest
import torch

import aleator.evaluation.feature_neighbours as module
from aleator.evaluation import (
    Neighbours,
    duplicate_ratio,
    intrinsic_dimension,
    linked_groups,
    near_duplicates,
    neighbour_graph,
    oddness,
)


def points(count=300, width=8, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_neighbours_are_those_of_brute_force():
    x = torch.nn.functional.normalize(points().double(), dim=1)
    distance = torch.cdist(x, x).fill_diagonal_(torch.inf)
    expected, items = distance.topk(5, largest=False)
    found = neighbour_graph(points(), 5)
    assert np.array_equal(found.items, items.numpy())
    assert np.allclose(found.distances, expected.numpy(), atol=1e-5)


def test_equal_items_are_neighbours_and_no_item_is_its_own():
    x = points(40)
    x[5:25] = x[5]
    found = neighbour_graph(x, 3)
    assert (found.items != np.arange(40)[:, None]).all()
    assert found.distances[5:25].max() < 1e-6
    assert set(found.items[5:25].reshape(-1)) <= set(range(5, 25))


def test_the_approximate_search_finds_most_neighbours(monkeypatch):
    exact = neighbour_graph(points(1200), 5)
    monkeypatch.setattr(module, "_EXACT_SEARCH", 1000)
    found = neighbour_graph(points(1200), 5)
    assert (found.items != np.arange(1200)[:, None]).all()
    shared = [len(set(a) & set(b)) / 5 for a, b in zip(exact.items, found.items, strict=True)]
    assert 0.5 < np.mean(shared) < 1


def test_more_neighbours_than_items():
    with pytest.raises(ValueError, match="count = 40: there are 40 items"):
        neighbour_graph(points(40), 40)


@pytest.mark.parametrize("dimension", [2, 5])
def test_the_dimension_of_a_sphere(dimension):
    """Directions of a Gaussian in m + 1 dimensions, turned into 20, lie on an m-dimensional sphere."""
    turned = points(2000, dimension + 1) @ torch.linalg.qr(points(20, 20, 1))[0][: dimension + 1]
    assert intrinsic_dimension(neighbour_graph(turned, 30)) == pytest.approx(dimension, rel=0.15)


def test_planted_duplicates_are_found_exactly():
    x = points(600, 12)
    planted = [(3, 500), (10, 11), (40, 41), (40, 42), (41, 42)]
    generator = torch.Generator().manual_seed(2)
    for first, second in planted:
        x[second] = x[first] * 2 + 1e-3 * torch.randn(12, generator=generator)
    found = neighbour_graph(x, 20)
    ratio = duplicate_ratio(found)
    assert near_duplicates(found, ratio).tolist() == sorted(map(list, planted))


@pytest.mark.parametrize("width", [2, 4, 16])
def test_random_items_have_no_duplicates_by_chance(width):
    """The expected number of items with a chance duplicate is 0.01 in each of 20 collections: 0.2 in all."""
    pairs = 0
    for seed in range(20):
        found = neighbour_graph(points(300, width, seed), 20)
        pairs += len(near_duplicates(found, duplicate_ratio(found)))
    assert pairs <= 2


def test_the_ratio_has_the_chance_that_it_says():
    """With a large chance, evenly spread items fall below the ratio about as often as expected."""
    counts = []
    for seed in range(10):
        found = neighbour_graph(points(1000, 4, seed), 20)
        ratio = duplicate_ratio(found, chance=0.99) * 50 ** (1 / intrinsic_dimension(found))  # 49.5 items expected
        counts.append((found.distances[:, 0] <= ratio * found.distances[:, -1]).sum())
    assert np.mean(counts) == pytest.approx(49.5, rel=0.25)


def test_all_items_equal():
    found = neighbour_graph(torch.ones(10, 3), 4)
    assert intrinsic_dimension(found) == 1
    assert len(set(linked_groups(near_duplicates(found, duplicate_ratio(found)), 10).tolist())) <= 2
    assert np.isfinite(oddness(found)).all()


def test_linked_groups():
    group = linked_groups(np.array([[0, 3], [3, 5], [1, 2]]), 6)
    assert group[0] == group[3] == group[5]
    assert group[1] == group[2]
    assert len({group[0], group[1], group[4]}) == 3
    assert len(set(linked_groups(np.empty((0, 2), int), 4).tolist())) == 4


def test_an_odd_item_is_far_from_its_neighbours():
    x = points(300) * 0.1 + torch.eye(8)[0]
    x[17] = -torch.eye(8)[0]
    scores = oddness(neighbour_graph(x, 12))
    assert scores.argmax() == 17
    assert scores[17] > 4
    assert np.median(scores) == pytest.approx(1)


def test_missing_neighbours_are_never_duplicates():
    found = Neighbours(np.array([[1, -1], [0, -1]]), np.array([[0.5, 2.0], [0.5, 2.0]]))
    assert near_duplicates(found, 0.3).tolist() == [[0, 1]]
