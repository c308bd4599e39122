"""Directions in faiss, where each query of a call has its own radius.

Faiss takes one radius per call. Vectors are stored as [x, 1] and queries are asked as [q, -t]. Their inner product is
the cosine less t. So one call with radius 0 answers a batch of queries with a radius t each. The centroids of an
inverted file are stored as [c, 0], so that the extra coordinate does not change which lists are chosen.
"""

import math
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from faiss.contrib.ivf_tools import add_preassigned

from aleator.foundation import DamagedFileError
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.ledger import WAY_OUT

_BLOCK = 65_536  # vectors copied at a time
_ALL_COSINES = -4.0  # a radius below every cosine
_NO_FLOATS = np.zeros(0, np.float32)


def list_count(size: int) -> int:
    """Number of lists of an inverted file: the power of two from 4 sqrt(n) on, but no more than there are vectors.

    It balances choosing lists and scanning them. Scanning costs more for each vector, so fewer lists are slower.
    """
    return min(max(size, 1), 1 << math.ceil(math.log2(4 * math.sqrt(max(size, 1)))))


class VectorIndex:
    """Unit vectors with positions 0, 1, 2, ... in the order of addition; flat, or an inverted file of lists."""

    def __init__(self, index: Any):
        self.index = index

    @classmethod
    def build(cls, mu: np.ndarray, lists: int = 0) -> "VectorIndex":
        """Index of mu (n, D) float32. Without lists it is flat, and every search is exact."""
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
        """Read an index from a file that was verified; with `memory_map` its vectors stay on disk.

        Raises:
            DamagedFileError: If the file cannot be read.
        """
        try:
            return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if memory_map else 0))
        except (RuntimeError, MemoryError) as error:  # a damaged size asks for more memory than there is
            raise DamagedFileError(path, f"faiss cannot read the vectors ({_first_line(error)})", WAY_OUT) from error

    @property
    def dim(self) -> int:
        """Dimension D of the vectors."""
        return self.index.d - 1

    def write(self, path: Path) -> None:
        """Write the index to a file."""
        try:
            faiss.write_index(self.index, str(path))
        except RuntimeError as error:  # faiss has one error for everything
            raise OSError(f"{path}: the vectors could not be written; check the disk ({_first_line(error)})") from error

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def lists(self) -> int:
        """Number of lists; 0 for a flat index."""
        return getattr(self.index, "nlist", 0)

    def add(self, mu: np.ndarray) -> None:
        """Append vectors (n, D) float32."""
        for start in range(0, len(mu), _BLOCK):
            self.index.add(_extended(mu[start : start + _BLOCK], 1))

    def vectors(self, positions: np.ndarray) -> np.ndarray:
        """The vectors at the given positions, (n, D) float32, exactly as they were added."""
        if len(positions) == 0:
            return np.empty((0, self.index.d - 1), np.float32)
        return self.index.reconstruct_batch(positions)[:, :-1]

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (n,) and vectors (n, D) as they stand in the file, without the map from position to vector.

        For a file that may be damaged: that map may lead anywhere.
        """
        if not self.lists:
            flat = faiss.rev_swig_ptr(self.index.get_xb(), len(self) * self.index.d) if len(self) else _NO_FLOATS
            return np.arange(len(self)), flat.reshape(-1, self.index.d)[:, :-1]
        inverted = self.index.invlists
        sizes = [inverted.list_size(number) for number in range(self.lists)]
        lists = [number for number, size in enumerate(sizes) if size]
        ids = [faiss.rev_swig_ptr(inverted.get_ids(number), sizes[number]) for number in lists]
        codes = [
            faiss.rev_swig_ptr(inverted.get_codes(number), sizes[number] * self.index.code_size) for number in lists
        ]
        vectors = np.concatenate([_NO_FLOATS, *(code.view(np.float32) for code in codes)])
        return np.concatenate([np.zeros(0, np.int64), *ids]), vectors.reshape(-1, self.index.d)[:, :-1]

    def within(self, mu: np.ndarray, radius: np.ndarray, probes: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Query and position of each found vector whose cosine may reach the query's radius; `radius` is (Q,)."""
        wide = np.maximum(radius - slack(mu.shape[1]), _ALL_COSINES)
        bounds, _, position = self.index.range_search(_extended(mu, -wide), 0.0, params=self._params(probes))
        counts = np.subtract(bounds[1:], bounds[:-1], dtype=np.int64, casting="unsafe")
        return np.repeat(np.arange(len(mu)), counts), position

    def closest(self, mu: np.ndarray, k: int, probes: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query and position of the k nearest vectors, and the reach (Q,) of `Store.closest`."""
        if k >= len(self):
            no_radius = np.full(len(mu), -np.inf)
            return *self.within(mu, no_radius, None), no_radius
        score, position = self.index.search(_extended(mu, 0), k, params=self._params(probes))
        valid = position >= 0  # faiss fills up with -1
        reach = np.where(valid[:, -1], score[:, -1].astype(np.float64), -np.inf)
        return np.nonzero(valid)[0], position[valid], reach

    def _params(self, probes: int | None) -> Any:
        if not self.lists:
            return None
        return faiss.SearchParametersIVF(nprobe=probes or self.lists)  # type: ignore[call-arg]


def _inverted_file(mu: np.ndarray, centroids: np.ndarray) -> Any:
    """An inverted file of mu (n, D) with lists around the centroids (L, D), and a map from position to vector."""
    lists, dim = centroids.shape
    quantizer = faiss.IndexFlatIP(dim + 1)
    quantizer.add(_extended(centroids, 0))
    index: Any = faiss.IndexIVFFlat(quantizer, dim + 1, lists, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.make_direct_map()
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(mu), _BLOCK)]
    nearest = [quantizer.assign(_extended(mu[block], 0), 1)[:, 0] for block in blocks]
    # Give the lists their final capacity. Lists that grow by doubling would take a fifth more memory.
    for number, size in enumerate(np.bincount(np.concatenate(nearest), minlength=lists).tolist()):
        index.invlists.resize(number, size)
        index.invlists.resize(number, 0)
    for block, assigned in zip(blocks, nearest, strict=True):
        add_preassigned(index, _extended(mu[block], 1), assigned)
    return index


def _extended(mu: np.ndarray, last: float | np.ndarray) -> np.ndarray:
    """Vectors with one more coordinate, (n, D + 1) float32."""
    extended = np.empty((len(mu), mu.shape[1] + 1), np.float32)
    extended[:, :-1] = mu
    extended[:, -1] = last
    return extended


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
