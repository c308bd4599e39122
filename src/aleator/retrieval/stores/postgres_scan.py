"""Exact neighbours of many queries on a PostgreSQL server: all vectors are read once, and compared here.

The server compares one query after the other with all rows. For hundreds of queries that takes minutes where reading a
million rows takes seconds.
"""

from collections.abc import Iterator

import numpy as np
import psycopg
from psycopg import sql

from aleator.retrieval.stores.base import Candidates

LEAST_QUERIES = 32  # for fewer, the server compares
_HEADER = 19  # bytes of a binary COPY before its first row
_BLOCK = 2**24  # bytes that are compared at a time


def closest_by_reading(
    cursor: psycopg.Cursor, table: sql.Composable, dim: int, queries: np.ndarray, k: int
) -> tuple[Candidates, np.ndarray]:
    """The k nearest rows of each query by their inner products.

    Args:
        cursor: Of a transaction.
        table: A SELECT of seq (bigint), mu (vector), kappa (real) and weight (real), none of them null.
        dim: D.
        queries: Directions, shape (Q, D).
        k: Number of neighbours.

    Returns:
        The neighbours, sorted by query and inner product, and the inner product of the k-th neighbour of each query,
        shape (Q,); -inf if there are fewer than k rows.
    """
    best = np.empty((0, len(queries)), np.float32)  # (at most k, Q)
    rows = np.empty((0, len(queries)), _record(dim))
    queries = np.ascontiguousarray(queries.T, np.float32)
    for block in _blocks(cursor, table, dim):
        product = np.concatenate([best, block["mu"].astype(np.float32) @ queries])
        if len(product) > k:
            chosen = np.argpartition(-product, k - 1, axis=0)[:k]
        else:
            chosen = np.broadcast_to(np.arange(len(product))[:, None], product.shape)
        best, kept = np.take_along_axis(product, chosen, 0), len(rows)
        fresh = block[np.maximum(chosen - kept, 0)]
        if kept:
            earlier = np.take_along_axis(rows, np.minimum(chosen, kept - 1), 0)
            fresh = np.where(chosen < kept, earlier, fresh)
        rows = fresh
    order = np.argsort(-best, axis=0, kind="stable")
    found = np.take_along_axis(rows, order, 0).T.ravel()
    query = np.repeat(np.arange(best.shape[1]), len(best))
    reach = np.full(best.shape[1], -np.inf)
    if len(best) == k:
        reach = best.min(0).astype(np.float64)
    mu, kappa, weight = (found[name].astype(np.float32) for name in ("mu", "kappa", "weight"))
    return Candidates(query, found["seq"].astype(np.int64), mu, kappa, weight), reach


def _record(dim: int) -> np.dtype:
    """A row of a binary COPY: the number of fields; then each field behind its length. A vector has a header."""
    return np.dtype(
        [
            ("fields", ">i2"),
            ("seq bytes", ">i4"),
            ("seq", ">i8"),
            ("mu bytes", ">i4"),
            ("mu header", ">i4"),
            ("mu", ">f4", (dim,)),
            ("kappa bytes", ">i4"),
            ("kappa", ">f4"),
            ("weight bytes", ">i4"),
            ("weight", ">f4"),
        ]
    )


def _blocks(cursor: psycopg.Cursor, table: sql.Composable, dim: int) -> Iterator[np.ndarray]:
    """All rows, block by block."""
    record = _record(dim)
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(table)
    parts: list[bytes] = []
    size = 0
    with cursor.copy(statement) as copy:
        for number, part in enumerate(copy):
            parts.append(bytes(part) if number else bytes(part)[_HEADER:])
            size += len(parts[-1])
            if size >= _BLOCK:
                data = b"".join(parts)
                count = len(data) // record.itemsize
                yield np.frombuffer(data, record, count)
                parts = [data[count * record.itemsize :]]
                size = len(parts[0])
    data = b"".join(parts)
    if count := len(data) // record.itemsize:  # behind the last row there are two bytes
        yield np.frombuffer(data, record, count)
