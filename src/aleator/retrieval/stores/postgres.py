"""The server backend: a PostgreSQL database with pgvector, shared by many clients on many machines.

Each index has a schema of its own, `aleator_NAME`. Every change is one transaction, ids are unique by a
constraint of the table, and a client whose server went away connects again at its next call. A call that
failed in between may or may not have happened: ask `id in index`, or simply repeat it, since an id is never
taken twice.

What pgvector's index can do is hand out neighbours in order of distance. It cannot search within a radius,
let alone one of each query's own: `WHERE distance < t` scans the table. So a radius is answered by
neighbours in order, more of them until one lies outside; and by a scan where the answer is large, or must be
exact.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from aleator.foundation import reject, require
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.recall import calibrate
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates

_LARGEST_DIM = 16_000  # of the type
_LARGEST_INDEXED_DIM = 2_000  # of its HNSW index
_LARGEST_INLINE_DIM = 1_500  # of a vector that fits into a page beside its row
_FIRST_NEIGHBOURS = 64
_MOST_NEIGHBOURS = 16_384  # beyond, a scan of the table is the better way

_SCHEMA = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.config (key text PRIMARY KEY, value text NOT NULL);
CREATE SEQUENCE {schema}.seq MINVALUE 0;
CREATE TABLE {schema}.items (
    seq bigint PRIMARY KEY, key text COLLATE "C" NOT NULL UNIQUE, kappa real NOT NULL, note text NOT NULL,
    mu vector({dim}) NOT NULL
);
CREATE INDEX ON {schema}.items (kappa);
"""
_WITHIN = """
SELECT q.n, i.seq, i.mu, i.kappa
FROM unnest(%s::int[], %s::vector[], %s::float8[]) AS q (n, mu, bound)
JOIN {schema}.items AS i ON (i.mu <#> q.mu) <= q.bound
ORDER BY q.n
"""
_CLOSEST = """
SELECT q.n, i.seq, i.mu, i.kappa, i.distance
FROM unnest(%s::int[], %s::vector[]) AS q (n, mu)
CROSS JOIN LATERAL (
    SELECT seq, mu, kappa, mu <#> q.mu AS distance FROM {schema}.items ORDER BY mu <#> q.mu LIMIT %s
) AS i
ORDER BY q.n, i.distance
"""


class PostgresStore:
    """A `Store` on a server. Not bound to a connection: it opens one when it needs one."""

    def __init__(self, location: str):
        url, _, name = location.partition("#")
        name = name or "default"
        require(
            re.fullmatch(r"[\w-]+", name) is not None and len(name.encode()) <= 50,
            "location",
            name,
            "is not a name for an index",
            "use letters, digits, _ and - after the #, 50 bytes at most",
        )
        self._location = location
        self.config: dict[str, Any] = {}
        self._url = url
        self._schema = sql.Identifier(f"aleator_{name}")
        self._name = name
        self._lock = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._indexed = False

    @classmethod
    def create(cls, location: str, items: Items, config: dict[str, Any], replace: bool = False) -> "PostgresStore":
        dim = items.mu.shape[1]
        require(dim <= _LARGEST_DIM, "posteriors", f"{dim} dimensions", "too many for pgvector", "use a folder")
        store = cls(location)
        with store._closing_on_failure():
            with store._transaction() as cursor:
                store._make_schema(cursor, dim, replace)
                store._configure(cursor, config)
                store._copy(cursor, store._next(cursor, len(items)), items)
            store.config = config
            store.save(None)
        return store

    @classmethod
    def open(cls, location: str) -> "PostgresStore":
        store = cls(location)
        with store._closing_on_failure(), store._transaction() as cursor:
            require(store._exists(cursor), "location", store._name, "names no index here", "build one first")
            (value,) = cursor.execute(store._sql("SELECT value FROM {schema}.config")).fetchone() or ("{}",)
            store.config = json.loads(value)
            store._indexed = bool(store._index_state(cursor))
        return store

    @property
    def location(self) -> str | None:
        return self._location

    def __len__(self) -> int:
        with self._transaction() as cursor:
            return cursor.execute(self._sql("SELECT count(*) FROM {schema}.items")).fetchone()[0]  # type: ignore[index]

    @property
    def efforts(self) -> list[int]:
        """Sizes of HNSW's candidate list, up to what pgvector allows."""
        return [20, 40, 80, 160, 320, 640, 1000] if self._indexed else []

    def reserve(self, count: int) -> list[int]:
        with self._transaction() as cursor:
            return self._next(cursor, count)

    def insert(self, items: Items) -> None:
        try:
            with self._transaction() as cursor:
                self._copy(cursor, self._next(cursor, len(items)), items)
        except psycopg.errors.UniqueViolation:
            held = self.present(list(items.keys))
            twice = next((key for key in items.keys if key in held), items.keys[0])
            reject("ids", decode_id(twice), "already in the index", "remove it first, or choose another id")

    def delete(self, keys: list[str]) -> None:
        with self._transaction() as cursor:
            statement = self._sql("DELETE FROM {schema}.items WHERE key = ANY(%s) RETURNING key")
            gone = {key for (key,) in cursor.execute(statement, (keys,), prepare=True)}
            unknown = [key for key in keys if key not in gone]
            if unknown:
                reject("ids", decode_id(unknown[0]), "not in the index", "remove only what it holds")

    def present(self, keys: list[str]) -> set[str]:
        with self._transaction() as cursor:
            statement = self._sql("SELECT key FROM {schema}.items WHERE key = ANY(%s)")
            return {key for (key,) in cursor.execute(statement, (keys,), prepare=True)}

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        wide = radius - slack(mu.shape[1])
        if effort is not None:
            return self._within_approximately(mu, wide, effort)
        with self._transaction() as cursor:
            ask = list(range(len(mu))), list(mu), (-wide).tolist()
            rows = cursor.execute(self._sql(_WITHIN), ask, prepare=True).fetchall()
        return _candidates(rows, mu.shape[1])

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        with self._transaction() as cursor:
            if effort is None:
                cursor.execute("SET LOCAL enable_indexscan = off")
            else:
                cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(effort),))
                cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            rows = cursor.execute(self._sql(_CLOSEST), (list(range(len(mu))), list(mu), k), prepare=True).fetchall()
        found = _candidates(rows, mu.shape[1])
        distance = np.array([row[4] for row in rows], np.float64)
        last = np.searchsorted(found.query, np.arange(len(mu)), side="right") - 1
        full = np.bincount(found.query, minlength=len(mu)) >= k
        reach = np.full(len(mu), -np.inf)
        reach[full] = -distance[last[full]]
        return found, reach

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        statement = self._sql("SELECT seq, key, note FROM {schema}.items WHERE seq = ANY(%s)")
        with self._transaction() as cursor:
            found = cursor.execute(statement, (np.unique(rows).tolist(),), prepare=True)
            return {seq: (key, note) for seq, key, note in found}

    def kappa_range(self) -> tuple[float, float]:
        """Smallest and largest finite kappa held, each at one end of an index."""
        ends = "SELECT kappa FROM {schema}.items WHERE kappa < 'Infinity' ORDER BY kappa"
        with self._transaction() as cursor:
            low = cursor.execute(self._sql(ends + " LIMIT 1")).fetchone()
            high = cursor.execute(self._sql(ends + " DESC LIMIT 1")).fetchone()
        return (low[0], high[0]) if low and high else (0.0, 0.0)

    def sample(self, count: int) -> np.ndarray:
        statement = self._sql("SELECT mu FROM {schema}.items ORDER BY md5(seq::text) LIMIT %s")
        with self._transaction() as cursor:
            rows = cursor.execute(statement, (count,)).fetchall()
        return np.array([vector.to_numpy() for (vector,) in rows], np.float32)

    def save(self, location: str | None = None) -> None:
        """Everything is stored already; past the size for exact search, make the HNSW index, once."""
        require(location is None, "location", location, "the index lives on a server", "build another there")
        large = len(self) >= self.config["exact_below"] and self.config["dim"] <= _LARGEST_INDEXED_DIM
        if not large:
            return
        with self._lock:
            connection = self._connected()
            with connection.cursor() as cursor:
                state = self._index_state(cursor)
                # CONCURRENTLY lets other clients write meanwhile; a build that was killed leaves an invalid
                # index.
                if state is False:
                    cursor.execute(self._sql("DROP INDEX CONCURRENTLY IF EXISTS {schema}.nearest"))
                if not state:
                    build = "CREATE INDEX CONCURRENTLY nearest ON {schema}.items USING hnsw (mu vector_ip_ops)"
                    cursor.execute(self._sql(build))
                cursor.execute(self._sql("ANALYZE {schema}.items"))
        self._indexed = True
        self.config = {**self.config, "report": calibrate(self, self.config["recall"])}
        with self._transaction() as cursor:
            self._configure(cursor, self.config)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _within_approximately(self, mu: np.ndarray, radius: np.ndarray, effort: int) -> Candidates:
        parts: list[Candidates] = []
        pending, count = np.arange(len(mu)), _FIRST_NEIGHBOURS
        while len(pending) and count <= _MOST_NEIGHBOURS:
            found, reach = self.closest(mu[pending], count, effort)
            done = reach < radius[pending]
            parts.append(found.take(done[found.query]).of(pending))
            pending = pending[~done]
            count *= 4
        if len(pending):
            parts.append(self.within(mu[pending], radius[pending], None).of(pending))
        return Candidates.concatenate(parts)

    def _make_schema(self, cursor: psycopg.Cursor, dim: int, replace: bool) -> None:
        # Two clients that create one index queue here.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"aleator_{self._name}",))
        there = self._exists(cursor)
        if there and not replace:
            reject("location", self._name, "already holds an index", "add to it, or pass replace=True")
        if there:
            cursor.execute(self._sql("DROP SCHEMA {schema} CASCADE"))
        for statement in _SCHEMA.strip().split(";\n"):
            cursor.execute(self._sql(statement, dim=sql.Literal(dim)))
        if dim <= _LARGEST_INLINE_DIM:
            cursor.execute(self._sql("ALTER TABLE {schema}.items ALTER COLUMN mu SET STORAGE PLAIN"))

    def _copy(self, cursor: psycopg.Cursor, numbers: list[int], items: Items) -> None:
        statement = self._sql("COPY {schema}.items (seq, key, kappa, note, mu) FROM STDIN (FORMAT BINARY)")
        with cursor.copy(statement) as copy:
            copy.set_types(["int8", "text", "float4", "text", "vector"])
            for item in zip(numbers, items.keys, items.kappa.tolist(), items.notes, items.mu, strict=True):
                copy.write_row(item)

    def _next(self, cursor: psycopg.Cursor, count: int) -> list[int]:
        statement = self._sql("SELECT nextval({sequence}) FROM generate_series(1, %s)", sequence=self._sequence)
        return [number for (number,) in cursor.execute(statement, (count,))]

    @property
    def _sequence(self) -> sql.Composable:
        return sql.Literal(self._schema.as_string(None) + ".seq")

    def _configure(self, cursor: psycopg.Cursor, config: dict[str, Any]) -> None:
        statement = """INSERT INTO {schema}.config VALUES ('config', %s)
                       ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
        cursor.execute(self._sql(statement), (json.dumps(config),))

    def _exists(self, cursor: psycopg.Cursor) -> bool:
        found = cursor.execute("SELECT to_regclass(%s)", (self._schema.as_string(None) + ".config",)).fetchone()
        return found is not None and found[0] is not None

    def _index_state(self, cursor: psycopg.Cursor) -> bool | None:
        """True for a usable index, False for one whose build was killed, None for none."""
        statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        found = cursor.execute(statement, (self._schema.as_string(None) + ".nearest",)).fetchone()
        return None if found is None else found[0]

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        return sql.SQL(statement).format(schema=self._schema, **parts)

    def _connected(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True)
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(self._connection)
        return self._connection

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor]:
        with self._lock:
            connection = self._connected()
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor


def _candidates(rows: list[tuple], dim: int) -> Candidates:
    """Rows of query, seq, mu, kappa."""
    return Candidates(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2].to_numpy() for row in rows], np.float32).reshape(len(rows), dim),
        np.array([row[3] for row in rows], np.float32),
    )
