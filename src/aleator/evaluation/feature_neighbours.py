"""Neighbours in a collection of features: near duplicates, and items that are unlike the others.

Features are compared by direction: distances are those between unit vectors.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from aleator.foundation import require, require_count, require_probability

_EXACT_SEARCH = 60_000  # of more items, neighbours are searched approximately
_ROWS_AT_ONCE = 2048
_SAME = 1e-6  # distance of unit vectors that differ by rounding alone


@dataclass(frozen=True)
class Neighbours:
    """The k nearest other items of each item, nearest first.

    Args:
        items: Item numbers, shape (N, k).
        distances: Distances between the unit vectors, from 0 to 2, shape (N, k).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import neighbour_graph
        >>> neighbour_graph(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]), 2).distances.round(2)
        array([[1.41, 2.  ],
               [1.41, 1.41],
               [1.41, 2.  ]], dtype=float32)
    """

    items: np.ndarray
    distances: np.ndarray


def neighbour_graph(features: Tensor, count: int) -> Neighbours:
    """Find the nearest other items of each item, by direction. Above 60,000 items the search is approximate.

    Args:
        features: Features, shape (N, F), centred if their mean says nothing; see `standardise`.
        count: k, the number of neighbours.

    Returns:
        The neighbours, nearest first.

    Raises:
        ValueError: If there are not more than `count` items.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import neighbour_graph
        >>> neighbour_graph(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), 1).items[:, 0]
        array([1, 0, 1])
    """
    import faiss

    require_count("count", count, "pass for example 10")
    size, width = features.shape
    require(size > count, "count", count, f"there are {size} items", "pass a smaller number, or more items")
    rows = np.ascontiguousarray(F.normalize(features.float(), dim=1).cpu().numpy())
    index: Any = faiss.IndexFlatIP(width)
    if size > _EXACT_SEARCH:
        cells = round(4 * math.sqrt(size))
        index = faiss.IndexIVFFlat(index, width, cells, faiss.METRIC_INNER_PRODUCT)
        index.train(rows[:: max(1, size // (64 * cells))])
        index.nprobe = max(8, cells // 16)
    index.add(rows)
    items = np.empty((size, count), np.int64)
    distances = np.empty((size, count), np.float32)
    for start in range(0, size, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, size)
        _, found = index.search(rows[start:stop], count + 1)
        found = _without_itself(found, np.arange(start, stop))
        # From differences: the cosine of near duplicates is 1 up to rounding.
        distance = np.linalg.norm(rows[np.maximum(found, 0)] - rows[start:stop, None], axis=2)
        distance[found < 0] = 2.0  # an approximate search may find fewer
        order = np.argsort(distance, 1, kind="stable")
        items[start:stop] = np.take_along_axis(found, order, 1)
        distances[start:stop] = np.take_along_axis(distance, order, 1)
    return Neighbours(items, distances)


def intrinsic_dimension(neighbours: Neighbours) -> float:
    """How fast the number of neighbours grows with the distance: like distance^m (Levina and Bickel 2004).

    Args:
        neighbours: Neighbours of each item.

    Returns:
        m, the median over items whose neighbours are not all at the same place; at least 1.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import intrinsic_dimension, neighbour_graph
        >>> angle = torch.linspace(0, 6.28, 101)[:100]
        >>> ring = torch.stack([angle.cos(), angle.sin()], 1)
        >>> 1 <= intrinsic_dimension(neighbour_graph(ring, 20)) < 1.3
        True
    """
    nearer, farthest = neighbours.distances[:, :-1], neighbours.distances[:, -1:]
    usable = (nearer[:, 0] > _SAME) & (farthest[:, 0] > nearer[:, 0])
    if not usable.any():
        return 1.0
    return max(1.0, 1 / float(np.median(np.log(farthest[usable] / nearer[usable]).mean(1))))


def duplicate_ratio(neighbours: Neighbours, chance: float = 0.01) -> float:
    """Below which ratio of distances a pair is closer than chance allows.

    If the k nearest items were spread evenly around an item in m dimensions, the share of items with one of them nearer
    than t times the distance of the k-th would be (k - 1) t^m. The returned t makes this one item in N / `chance`.

    Args:
        neighbours: Neighbours of each item.
        chance: Expected number of items with such a neighbour if there were no near duplicates.

    Returns:
        t, between 0 and 1.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import duplicate_ratio, neighbour_graph
        >>> angle = torch.linspace(0, 6.28, 101)[:100]
        >>> ring = torch.stack([angle.cos(), angle.sin()], 1)
        >>> duplicate_ratio(neighbour_graph(ring, 20)) < 0.001
        True
    """
    require_probability("chance", chance, "try 0.01")
    size, count = neighbours.items.shape
    return float((chance / (size * max(1, count - 1))) ** (1 / intrinsic_dimension(neighbours)))


def near_duplicates(neighbours: Neighbours, ratio: float) -> np.ndarray:
    """Pairs that are much nearer to each other than to their other neighbours, and pairs at the same place.

    Args:
        neighbours: Neighbours of each item. Groups of more than k near duplicates are not found.
        ratio: Largest distance of a pair, as a share of the distance of the k-th neighbour of both.

    Returns:
        Pairs of item numbers, the smaller one first, each pair once, shape (P, 2).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import near_duplicates, neighbour_graph
        >>> x = torch.randn(50, 8, generator=torch.manual_seed(0))
        >>> x[7] = x[3]
        >>> near_duplicates(neighbour_graph(x, 5), ratio=0.1)
        array([[3, 7]])
    """
    reach = neighbours.distances[:, -1]
    first = np.repeat(np.arange(len(reach)), neighbours.items.shape[1])
    second, distance = neighbours.items.reshape(-1), neighbours.distances.reshape(-1)
    close = (distance <= ratio * np.minimum(reach[first], reach[second])) | (distance <= _SAME)
    close &= second >= 0
    pairs = np.sort(np.stack([first[close], second[close]], 1), 1)
    return np.unique(pairs, axis=0)


def linked_groups(pairs: np.ndarray, count: int) -> np.ndarray:
    """Group of each item, if the items of a pair are in one group.

    Args:
        pairs: Item numbers, shape (P, 2).
        count: N, the number of items.

    Returns:
        Group numbers, shape (N,). An item in no pair is a group of its own.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import linked_groups
        >>> linked_groups(np.array([[0, 2]]), 4)
        array([0, 1, 0, 2])
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return connected_components(links, directed=False)[1].astype(np.int64)


def oddness(neighbours: Neighbours, count: int = 10) -> np.ndarray:
    """How far each item is from its neighbours: the mean distance, divided by the median over all items.

    Args:
        neighbours: Neighbours of each item.
        count: Number of neighbours that count.

    Returns:
        Ratios, shape (N,); 1 is usual, large values are unlike the other items.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import neighbour_graph, oddness
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [1.0, 0.2], [-1.0, 0.0]])
        >>> int(oddness(neighbour_graph(x, 2)).argmax())
        4
    """
    mean = neighbours.distances[:, :count].astype(np.float64).mean(1)
    return mean / max(float(np.median(mean)), 1e-12)


def _without_itself(found: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Drop each row's own number; where it is missing (an equal item came first), drop the last."""
    keep = found != own[:, None]
    keep[keep.all(1), -1] = False
    return found[keep].reshape(len(found), -1)
