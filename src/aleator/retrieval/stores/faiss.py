"""Directions by position, in faiss, with a radius of its own for every query of a call.

Faiss takes one radius per call. Stored as [x, 1] and asked with [q, -t], an inner product of 0 is the cosine
t, so one call with the radius 0 serves a batch of queries with a radius t each. Lists of an inverted file
are chosen by [c, 0]: the extra coordinate has no say in it.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from faiss.contrib.ivf_tools import add_preassigned

from aleator.retrieval.scoring import slack

_BLOCK = 65_536  # vectors copied at a time
_EVERYTHING = -4.0  # a radius below every cosine


def list_count(size: int) -> int:
    """Lists of an inverted file: about 4 sqrt(n), the usual balance of choosing lists and scanning them."""
    return 1 << max(0, round(np.log2(4 * np.sqrt(size))))


class VectorIndex:
    """Unit vectors numbered 0, 1, 2, ... in the order they came; flat, or an inverted file of lists."""

    def __init__(self, index: Any):
        self.index = index

    @classmethod
    def build(cls, mu: np.ndarray, lists: int = 0) -> "VectorIndex":
        """mu (n, D) float32; lists = 0 builds a flat index, in which every search is exact."""
        if not lists:
            built = cls(faiss.IndexFlatIP(mu.shape[1] + 1))
            built.add(mu)
            return built
        kmeans = faiss.Kmeans(
            mu.shape[1], lists, niter=10, spherical=True, seed=0, max_points_per_centroid=64, min_points_per_centroid=1
        )
        kmeans.train(mu)
        return cls(_inverted_file(mu, np.asarray(kmeans.centroids)))

    @classmethod
    def read(cls, path: Path, memory_map: bool = False) -> "VectorIndex":
        flags = faiss.IO_FLAG_MMAP_IFC if memory_map else 0
        return cls(faiss.read_index(str(path), flags))

    def write(self, path: Path) -> None:
        faiss.write_index(self.index, str(path))

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def lists(self) -> int:
        return getattr(self.index, "nlist", 0)

    def add(self, mu: np.ndarray) -> None:
        for start in range(0, len(mu), _BLOCK):
            self.index.add(_extended(mu[start : start + _BLOCK], 1))

    def vectors(self, positions: np.ndarray) -> np.ndarray:
        """(n, D) float32, as they were added."""
        if len(positions) == 0:
            return np.empty((0, self.index.d - 1), np.float32)
        return self.index.reconstruct_batch(positions)[:, :-1]

    def within(self, mu: np.ndarray, radius: np.ndarray, probes: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Query and position of every vector found whose cosine may reach radius (Q,)."""
        wide = np.maximum(radius - slack(mu.shape[1]), _EVERYTHING)
        ask = _extended(mu, -wide)
        bounds, _, position = self.index.range_search(ask, 0.0, params=self._params(probes))
        counts = np.subtract(bounds[1:], bounds[:-1], dtype=np.int64, casting="unsafe")
        return np.repeat(np.arange(len(mu)), counts), position

    def closest(self, mu: np.ndarray, k: int, probes: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query, position and reach (Q,) of the k nearest vectors."""
        if k >= len(self):
            everything = np.full(len(mu), -np.inf)
            return *self.within(mu, everything, None), everything
        score, position = self.index.search(_extended(mu, 0), k, params=self._params(probes))
        found = position >= 0
        reach = np.where(found[:, -1], score[:, -1].astype(np.float64), -np.inf)
        return np.nonzero(found)[0], position[found], reach

    def _params(self, probes: int | None) -> Any:
        if not self.lists:
            return None
        return faiss.SearchParametersIVF(nprobe=probes or self.lists)  # type: ignore[call-arg]


def _inverted_file(mu: np.ndarray, centroids: np.ndarray) -> Any:
    """The index of mu (n, D) in lists around the centroids (L, D), with a map from position to vector."""
    lists, dim = centroids.shape
    quantizer = faiss.IndexFlatIP(dim + 1)
    quantizer.add(_extended(centroids, 0))
    index: Any = faiss.IndexIVFFlat(quantizer, dim + 1, lists, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.make_direct_map()
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(mu), _BLOCK)]
    nearest = [quantizer.assign(_extended(mu[block], 0), 1)[:, 0] for block in blocks]
    # Lists of their final capacity: growing by doubling would leave a fifth more memory behind.
    for number, size in enumerate(np.bincount(np.concatenate(nearest), minlength=lists).tolist()):
        index.invlists.resize(number, size)
        index.invlists.resize(number, 0)
    for block, assigned in zip(blocks, nearest, strict=True):
        add_preassigned(index, _extended(mu[block], 1), assigned)
    return index


def _extended(mu: np.ndarray, last: float | np.ndarray) -> np.ndarray:
    extended = np.empty((len(mu), mu.shape[1] + 1), np.float32)
    extended[:, :-1] = mu
    extended[:, -1] = last
    return extended
