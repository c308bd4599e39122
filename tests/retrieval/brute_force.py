"""Retrieval as a loop over all items: the slow, obvious twin of `CredibleIndex.search`."""

from functools import cache

import numpy as np
import torch

from aleator import VMFKernel, VonMisesFisher, match_probability
from tests.retrieval.random_collections import KAPPAS

TIE = 1e-12  # cosines this close are equal, as the guide says


@cache
def caps(dim: int, kappas: tuple[float, ...], p: float) -> dict[float, float]:
    """The cosine that an item must reach for each kappa of a query; all items belong to a flat posterior."""
    mu = torch.eye(1, dim, dtype=torch.float64)
    cosines = VonMisesFisher(mu, torch.tensor(kappas, dtype=torch.float64)).cap(p).tolist()
    return {kappa: t if kappa > 0 else -2.0 for kappa, t in zip(kappas, cosines, strict=True)}


def all_cosines(queries, items) -> np.ndarray:
    """(Q, n), of vectors rounded to float32, in extended precision."""
    left, right = (q.mu.double().numpy() for q in (queries, items))
    left, right = (mu / np.linalg.norm(mu, axis=1, keepdims=True) for mu in (left, right))
    left, right = (mu.astype(np.float32).astype(np.longdouble) for mu in (left, right))
    lengths = np.outer(np.square(left).sum(axis=1), np.square(right).sum(axis=1))
    return ((left @ right.T) / np.sqrt(lengths)).astype(np.float64)


def all_matches(queries, items, kernel=None, prior=0.5) -> np.ndarray:
    """(Q, n), each query by itself."""
    rows = [
        match_probability(q, _double(items), kernel or VMFKernel(20.0), prior).numpy()
        for q in (_double(queries)[i : i + 1] for i in range(len(queries)))
    ]
    return np.array(rows).reshape(len(queries), len(items))


def credible(queries, items, p) -> list[list[int]]:
    """Positions of the items in each query's credible set, nearest first, earlier ones first where they tie."""
    radius = caps(queries.dim, tuple(sorted({*KAPPAS, *queries.kappa.tolist()})), p)
    wanted = [radius[kappa] - TIE for kappa in queries.kappa.tolist()]
    cosines = all_cosines(queries, items)
    return [[j for j in ranked(row) if row[j] >= t] for row, t in zip(cosines, wanted, strict=True)]


def nearest(queries, items, limit) -> list[list[int]]:
    return [ranked(row)[:limit] for row in all_cosines(queries, items)]


def match(queries, items, threshold, kernel=None, prior=0.5) -> list[list[int]]:
    return [
        [j for j in ranked(row.astype(np.float32), near) if row[j] >= threshold]
        for row, near in zip(all_matches(queries, items, kernel, prior), all_cosines(queries, items), strict=True)
    ]


def ranked(*keys) -> list[int]:
    """Positions by descending keys; equal ones in their order. Fifteen digits: exact ties tie, noise does not count."""
    return sorted(range(len(keys[0])), key=lambda j: [-round(float(key[j]), 15) for key in keys])


def _double(q) -> VonMisesFisher:
    mu = torch.nn.functional.normalize(q.mu.double(), dim=-1).float().double()
    return VonMisesFisher(mu, q.kappa.double())
