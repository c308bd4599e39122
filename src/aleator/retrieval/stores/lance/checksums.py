"""Checksums of an index on Lance, whose own files have none.

Every row of the table of items has two: of what decides whether the item is in an answer, and of what a hit shows. The
ledger has their totals, over all rows of the index, so that rows that are lost or come back are noticed as well. In a
folder it also has the SHA-256 of the files (`files.py`).

The checksum of a row is a sum of its words times odd random constants, modulo 2**64, mixed. One damaged word always
changes the sum. It costs one multiplication for each number, so that a million rows are verified in seconds.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

VECTOR_CHECK, TEXT_CHECK = "vector_check", "text_check"  # columns
Totals = dict[str, int]  # "vectors", "texts", "kappas" and "items" (`Store.state`): sums of checksums, modulo 2**64
_AT_ONCE = 2**20  # words
_VECTOR, _TEXT, _KAPPA = 1, 2, 3  # kinds of checksums


def vector_checks(row: np.ndarray, mu: np.ndarray, kappa: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Checksums (n,), int64, of what decides which items are found."""
    columns = [_words(row), _words(kappa), *([] if weight is None else [_words(weight)])]
    total = sum((_linear(words, 4 * number) for number, words in enumerate(columns)), _start(_VECTOR, len(row)))
    step = max(1, _AT_ONCE // max(1, mu.shape[1]))
    for start in range(0, len(row), step):
        total[start : start + step] += _linear(_words(mu[start : start + step]), 16)
    return _mixed(total).view(np.int64)


def kappa_checks(row: np.ndarray, kappa: np.ndarray, first: np.ndarray | None) -> np.ndarray:
    """Checksums (n,), int64, of the certainties alone. They are in no column, only their total is kept."""
    heaviest = np.ones(len(row), np.uint32) if first is None else first.astype(np.uint32)
    columns = [_words(row), _words(kappa), heaviest[:, None]]
    total = sum((_linear(words, 4 * number) for number, words in enumerate(columns)), _start(_KAPPA, len(row)))
    return _mixed(total).view(np.int64)


def text_checks(row: np.ndarray, key: pa.Array, note: pa.Array) -> np.ndarray | None:
    """Checksums (n,), int64, of ids and metadata; None if the texts are no texts."""
    total = _linear(_words(row), 0) + _start(_TEXT, len(row))
    for number, texts in enumerate((key, note)):
        sums = _text_sums(texts)
        if sums is None:
            return None
        total = _mixed(total + sums + np.uint64(number))
    return total.view(np.int64)


def _text_sums(texts: pa.Array) -> np.ndarray | None:
    """The sum of each text's bytes times constants that depend on their place."""
    if texts.null_count:
        return None
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.zeros(len(texts), np.uint64)
    ends = np.frombuffer(offsets, np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    ends = ends[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    length = np.diff(ends)
    if ends[0] < 0 or ends[-1] > data.size or (length < 0).any():
        return None
    # A byte counts as itself + 1, so that zeros at the end are seen.
    letters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].astype(np.uint64) + np.uint64(1)
    within = np.arange(len(letters)) - np.repeat(ends[:-1] - ends[0], length)
    products = letters * _constants(_rounded(int(length.max())))[within]
    so_far = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])
    return so_far[ends[1:] - ends[0]] - so_far[ends[:-1] - ends[0]]


def _words(values: np.ndarray) -> np.ndarray:
    """Numbers (n, ...) as words (n, k) of 32 bits."""
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint32) if len(values) else _NO_WORDS


def _linear(words: np.ndarray, place: int) -> np.ndarray:
    """Words (n, k) times the constants from a place on, summed: (n,)."""
    stop = place + words.shape[1]
    return words.astype(np.uint64) @ _constants(_rounded(stop))[place:stop]


def _start(kind: int, count: int) -> np.ndarray:
    return np.full(count, _mixed(np.array([kind], np.uint64))[0])


def _rounded(size: int) -> int:
    return 1 << max(10, (size - 1).bit_length())


@lru_cache(maxsize=8)
def _constants(size: int) -> np.ndarray:
    """Odd numbers of 64 bits; a longer array starts as a shorter one does."""
    return _mixed(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_NO_WORDS = np.zeros((0, 1), np.uint32)


# Totals


def total_of(checks: np.ndarray) -> int:
    """The sum of checksums, modulo 2**64."""
    return int(np.add.reduce(checks.view(np.uint64), dtype=np.uint64))


def totals_of(row: np.ndarray, kappa: np.ndarray, first: np.ndarray | None, vectors: Any, texts: Any) -> Totals:
    """Totals of some rows with these checksums of vectors and texts."""
    kappas = kappa_checks(row, kappa, first)
    return {"vectors": total_of(vectors), "texts": total_of(texts), "kappas": total_of(kappas)}


def combined(totals: Totals, more: Totals, sign: int = 1) -> Totals:
    """Totals with those of other rows added, or taken away (sign -1)."""
    return {name: (totals.get(name, 0) + sign * more[name]) % 2**64 for name in more} if more else totals
