"""Checksums of the parts of a vector index, for a file that stays on disk.

A memory-mapped file is not read when it is opened. Its parts are verified when a search first reads them: lists of an
inverted file, or blocks of a flat index. What faiss holds in memory (centroids, the map from position to vector) is the
frame, and is verified at once.
"""

import hashlib
from typing import Any

import faiss
import numpy as np

BLOCK = 4096  # vectors of a flat index in one part
_DIGEST = 16  # bytes


class VectorParts:
    """The parts of a faiss index, with their checksums as bytes of 16 each.

    Args:
        index: The faiss index: flat, or an inverted file with a map from position to vector.
    """

    def __init__(self, index: Any):
        self._index = index
        self._lists = getattr(index, "nlist", 0)

    def __len__(self) -> int:
        return self._lists or -(-self._index.ntotal // BLOCK)

    def frame(self) -> bytes:
        """Checksum of everything but the parts."""
        index = self._index
        facts: list[Any] = [index.d, index.ntotal, index.metric_type]
        arrays = []
        if self._lists:
            quantizer = faiss.downcast_index(index.quantizer)
            sizes = [index.invlists.list_size(number) for number in range(self._lists)]
            facts += [
                index.code_size,
                index.by_residual,
                index.direct_map.type,
                quantizer.ntotal,
                quantizer.metric_type,
            ]
            arrays = [_floats(quantizer), self._direct_map(), np.array(sizes, np.int64)]
        total = hashlib.blake2b(repr(facts).encode(), digest_size=_DIGEST)
        for array in arrays:
            total.update(array.data)
        return total.digest()

    def part(self, number: int) -> bytes:
        """Checksum of one part."""
        total = hashlib.blake2b(digest_size=_DIGEST)
        if self._lists:
            lists, size = self._index.invlists, self._index.invlists.list_size(number)
            if size:
                total.update(faiss.rev_swig_ptr(lists.get_codes(number), size * self._index.code_size).data)
                total.update(faiss.rev_swig_ptr(lists.get_ids(number), size).data)
        else:
            width = self._index.d
            total.update(_floats(self._index)[number * BLOCK * width : (number + 1) * BLOCK * width].data)
        return total.digest()

    def digests(self) -> bytes:
        """Checksums of the frame and of all parts, one after the other."""
        return self.frame() + b"".join(self.part(number) for number in range(len(self)))

    def of_positions(self, positions: np.ndarray) -> np.ndarray:
        """The part of each position."""
        return self._direct_map()[positions] >> 32 if self._lists else positions // BLOCK

    def _direct_map(self) -> np.ndarray:
        """For each position the number of its list, and in the lower half its place in the list."""
        array = self._index.direct_map.array
        return faiss.rev_swig_ptr(array.data(), array.size()) if array.size() else np.empty(0, np.int64)


class PartVerifier:
    """Verifies each part once, when it is first needed.

    Args:
        index: The faiss index.
        expected: What `VectorParts.digests` gave when the file was written.
    """

    def __init__(self, index: Any, expected: bytes):
        self._index, self.parts = index, VectorParts(index)
        self._expected = expected
        self._pending: np.ndarray | None = np.ones(len(self.parts), bool)

    def frame_is_whole(self) -> bool:
        """Whether the frame and the number of parts are what was written."""
        whole = len(self._expected) == _DIGEST * (1 + len(self.parts))
        return whole and self.parts.frame() == self._expected[:_DIGEST]

    def first_damaged(self, parts: np.ndarray | None = None) -> int | None:
        """The number of the first damaged part among the given ones; None if all are whole. Default: all parts."""
        if self._pending is None:
            return None
        wanted = np.arange(len(self.parts)) if parts is None else np.unique(parts[parts >= 0])
        for number in wanted[self._pending[wanted]].tolist():
            if not self.is_whole(number):
                return number
            self._pending[number] = False
        if not self._pending.any():
            self._pending = None
        return None

    def is_whole(self, number: int) -> bool:
        """Whether a part is what was written."""
        start = _DIGEST * (1 + number)
        return self.parts.part(number) == self._expected[start : start + _DIGEST]


def _floats(index: Any) -> np.ndarray:
    """The vectors of a flat index in one row, without a copy."""
    size = index.ntotal * index.d
    return faiss.rev_swig_ptr(index.get_xb(), size) if size else np.empty(0, np.float32)
