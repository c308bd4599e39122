"""Checksums of the parts of a vector file, for a file that stays on disk.

A memory-mapped file is not read when it is opened. Its parts are verified when a search first reads them: lists of an
inverted file, or blocks of a flat index. What stands before them (sizes, centroids, the map from position to vector) is
the frame. It is verified before faiss reads the file, because a damaged frame can end the process.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

import faiss
import numpy as np

BLOCK = 4096  # vectors of a flat index in one part
_DIGEST = 16  # bytes
_ID = 8  # bytes of a position in a list
_LENGTH = struct.Struct("<Q")


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

    def digests(self, path: Path) -> bytes:
        """Checksums of a file that faiss wrote: length and checksum of the frame, then those of all parts."""
        index = self._index
        payload = index.ntotal * (index.code_size + (_ID if self._lists else 0))
        frame = path.stat().st_size - payload
        return _LENGTH.pack(frame) + _start_of(path, frame) + b"".join(self.part(i) for i in range(len(self)))

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

    def fits(self) -> bool:
        """Whether there is a checksum for each part."""
        return len(self._expected) == _LENGTH.size + _DIGEST * (1 + len(self.parts))

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
        start = _LENGTH.size + _DIGEST * (1 + number)
        return self.parts.part(number) == self._expected[start : start + _DIGEST]


def frame_is_whole(path: Path, expected: bytes) -> bool:
    """Whether the frame of a file is what was written.

    Args:
        path: The file.
        expected: What `VectorParts.digests` gave when the file was written.
    """
    if len(expected) < _LENGTH.size + _DIGEST:
        return False
    (length,) = _LENGTH.unpack_from(expected)
    return length <= path.stat().st_size and _start_of(path, length) == expected[_LENGTH.size :][:_DIGEST]


def _start_of(path: Path, length: int) -> bytes:
    """Checksum of the first bytes of a file."""
    total = hashlib.blake2b(digest_size=_DIGEST)
    with open(path, "rb") as file:
        while length > 0 and (block := file.read(min(length, 1 << 20))):
            total.update(block)
            length -= len(block)
    return total.digest()


def _floats(index: Any) -> np.ndarray:
    """The vectors of a flat index in one row, without a copy."""
    size = index.ntotal * index.d
    return faiss.rev_swig_ptr(index.get_xb(), size) if size else np.empty(0, np.float32)
