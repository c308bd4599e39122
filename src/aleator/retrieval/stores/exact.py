"""Exact search: all vectors, in blocks, are compared with all queries."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from aleator.retrieval.stores.base import Candidates

_MOST_KEPT = 2**20  # vectors that are kept before it is looked which are still near


def within_exactly(blocks: Iterable[Candidates], mu: np.ndarray, radius: np.ndarray) -> Candidates:
    """The vectors of all blocks that reach each query's radius. There is at least one block."""
    parts = []
    for block in blocks:
        query, position = np.nonzero(mu @ block.mu.T >= radius[:, None])
        parts.append(replace(block.take(position), query=query))
    return Candidates.concatenate(parts)


def closest_exactly(blocks: Iterable[Candidates], mu: np.ndarray, k: int) -> tuple[Candidates, np.ndarray]:
    """The vectors that reach each query's k-th cosine, and a reach as `Store.closest` has it."""
    best = np.full((len(mu), k), -np.inf, np.float32)
    parts: list[Candidates] = []
    cosines: list[np.ndarray] = []

    def prune() -> None:
        cosine, together = np.concatenate(cosines), Candidates.concatenate(parts)
        # In the order of `concatenate`.
        cosine = cosine[np.argsort(np.concatenate([part.query for part in parts]), kind="stable")]
        near = cosine >= best.min(axis=1)[together.query]
        parts[:], cosines[:] = [together.take(near)], [cosine[near]]

    for block in blocks:
        cosine = mu @ block.mu.T
        for i in np.flatnonzero((cosine > best.min(axis=1)[:, None]).any(axis=1)):
            joined = np.concatenate([best[i], cosine[i][cosine[i] > best[i].min()]])
            best[i] = np.partition(joined, len(joined) - k)[len(joined) - k :]
        query, position = np.nonzero(cosine >= best.min(axis=1)[:, None])
        parts.append(replace(block.take(position), query=query))
        cosines.append(cosine[query, position])
        if sum(map(len, parts)) > max(_MOST_KEPT, 2 * best.size):
            prune()
    prune()
    return parts[0], best.min(axis=1).astype(np.float64)
