"""Checksums of the rows of a store: one of what a hit shows, and one of what decides whether an item is in an answer.

They are sums of 64 bits or less, so a store can also keep their total over all rows, which does not depend on the order
of the rows, and changes by the rows that are added and removed.
"""

import hashlib
from functools import lru_cache

import numpy as np

_AT_ONCE = 2**20  # words


def row_digest(*values: object) -> int:
    """A digest of 48 bits of numbers, texts and bytes, such as the row, the id and the metadata of an item."""
    parts = [value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass") for value in values]
    return int.from_bytes(hashlib.blake2b(b"\0".join(parts), digest_size=6).digest())


def vector_checks(row: np.ndarray, mu: np.ndarray, kappa: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Checksums of what decides which items are found.

    Each is a sum of words of 32 bits times odd random constants, modulo 2**64, mixed. One damaged word always changes
    the sum. It costs one multiplication for each number, so that a million rows are verified in seconds.

    Args:
        row: Rows, shape (n,), int64.
        mu: Directions, shape (n, D), float32.
        kappa: Certainties, shape (n,), float32.
        weight: Weights of components, shape (n,), float32; None for items of one mode.

    Returns:
        Checksums, shape (n,), int64.
    """
    columns = [_words(row), _words(kappa), *([] if weight is None else [_words(weight)])]
    total = sum((_linear(words, 4 * number) for number, words in enumerate(columns)), np.ones(len(row), np.uint64))
    step = max(1, _AT_ONCE // max(1, mu.shape[1]))
    for start in range(0, len(row), step):
        total[start : start + step] += _linear(_words(mu[start : start + step]), 16)
    return _mixed(total).view(np.int64)


def total_of(checks: np.ndarray) -> int:
    """The sum of checksums (n,), int64, modulo 2**64."""
    return int(np.add.reduce(checks.view(np.uint64), dtype=np.uint64))


def _words(values: np.ndarray) -> np.ndarray:
    """Numbers (n, ...) as words (n, k) of 32 bits."""
    if not len(values):
        return np.zeros((0, 1), np.uint32)
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint32)


def _linear(words: np.ndarray, place: int) -> np.ndarray:
    """Words (n, k) times the constants from a place on, summed: (n,)."""
    stop = place + words.shape[1]
    return words.astype(np.uint64) @ _constants(1 << max(10, (stop - 1).bit_length()))[place:stop]


@lru_cache(maxsize=8)
def _constants(size: int) -> np.ndarray:
    """Odd numbers of 64 bits; a longer array starts as a shorter one does."""
    return _mixed(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
