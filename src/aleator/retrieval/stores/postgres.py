"""A store in a PostgreSQL database with pgvector, shared by many clients on many machines.

Each index has its own schema, `aleator_NAME`. Every change is one transaction, and the table keeps ids unique. A client
connects again when its server was gone. A call that failed in between may or may not have happened. The caller can ask
`id in index`, or repeat the call: an id is never stored twice.

The HNSW index of pgvector returns neighbours in order of distance. It cannot search within a radius:
`WHERE distance < t` scans the table. So an approximate search for a radius asks for more and more neighbours until one
lies outside. A large answer and an exact search scan the table.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from aleator.foundation import DamagedFileError, redacted, reject, require
from aleator.retrieval.items import Items, decode_id, state_text
from aleator.retrieval.recall import tune_recall
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates, Store
from aleator.retrieval.stores.consistency import config_problem

_LARGEST_DIM = 16_000  # of pgvector's type
_LARGEST_INDEXED_DIM = 2_000  # of an HNSW index
_LARGEST_INLINE_DIM = 1_500  # of a vector that fits into a page beside its row
_FIRST_NEIGHBOURS = 16  # a graph gives few neighbours much faster than many
_MOST_NEIGHBOURS = 16_384  # for more than this, a scan of the table is faster
# The server compares one query after the other with all rows. For hundreds of queries that takes minutes where reading
# a million rows takes seconds.
_LEAST_QUERIES = 32  # for fewer, the server compares
_HEADER = 19  # bytes of a binary COPY before its first row
_BLOCK = 2**24  # bytes that are compared at a time

_SCHEMA = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.config (key text PRIMARY KEY, value text NOT NULL);
CREATE SEQUENCE {schema}.seq MINVALUE 0;
CREATE TABLE {schema}.items (
    seq bigint PRIMARY KEY, key text COLLATE "C" NOT NULL UNIQUE, kappa real NOT NULL, note text NOT NULL,
    digest bigint NOT NULL, mu vector({dim}) NOT NULL
);
CREATE INDEX ON {schema}.items (kappa);
"""
# Of an index for posteriors with several modes: all components. `items` then has the heaviest of each item.
_COMPONENTS = """
CREATE TABLE {schema}.components (
    seq bigint NOT NULL REFERENCES {schema}.items ON DELETE CASCADE, kappa real NOT NULL, weight real NOT NULL,
    mu vector({dim}) NOT NULL
);
CREATE INDEX ON {schema}.components (kappa);
CREATE INDEX ON {schema}.components (seq);
"""
_WITHIN = """
SELECT q.n, i.seq, i.mu, i.kappa, {weight}
FROM unnest(%s::int[], %s::vector[], %s::float8[]) AS q (n, mu, bound)
JOIN {schema}.{vectors} AS i ON (i.mu <#> q.mu) <= q.bound
ORDER BY q.n
"""
_GRAPH_SEARCH = (
    "SELECT set_config('hnsw.ef_search', %s, false), set_config('hnsw.iterative_scan', 'strict_order', false)"
)
_CLOSEST = """
SELECT q.n, i.seq, i.mu, i.kappa, i.weight, i.distance
FROM unnest(%s::int[], %s::vector[]) AS q (n, mu)
CROSS JOIN LATERAL (
    SELECT seq, mu, kappa, {weight} AS weight, mu <#> q.mu AS distance
    FROM {schema}.{vectors} ORDER BY mu <#> q.mu LIMIT %s
) AS i
ORDER BY q.n, i.distance
"""


class PostgresStore(Store):
    """A `Store` on a server. It connects when it needs a connection.

    Args:
        location: postgresql://user@host/database#name.
    """

    def __init__(self, location: str):
        url, _, name = location.partition("#")
        name = name or "default"
        require(
            re.fullmatch(r"[\w-]+", name) is not None and len(name.encode()) <= 50,
            "location",
            name,
            "is not a name for an index",
            "use letters, digits, _ and - after the #, at most 50 bytes",
        )
        self._location = location
        self.config: dict[str, Any] = {}
        self._url = url
        self._schema = sql.Identifier(f"aleator_{name}")
        self._name = name
        self._lock = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._indexed = False
        self._effort: int | None = None  # of the searches on this connection
        self._seen: tuple[str, tuple[int, int]] | None = None  # the snapshot of the server, and what it held

    @classmethod
    def create(cls, location: str, items: Items, config: dict[str, Any], replace: bool = False) -> "PostgresStore":
        """Make the tables and insert the items, in one transaction."""
        dim = items.mu.shape[1]
        require(dim <= _LARGEST_DIM, "posteriors", f"{dim} dimensions", "too many for pgvector", "use a folder")
        store = cls(location)
        with store._closing_on_failure():
            store.config = config
            with store._transaction() as cursor:
                store._make_schema(cursor, dim, replace)
                store._configure(cursor, config)
                store._copy(cursor, store._next_rows(cursor, len(items)), items)
            store.save(None)
        return store

    @classmethod
    def open(cls, location: str) -> "PostgresStore":
        """Open an index that `create` made."""
        store = cls(location)
        with store._closing_on_failure(), store._transaction() as cursor:
            exists = store._exists(cursor)
            require(exists, "location", store._name, "is not an index in this database", "build one first")
            store.config = store._stored_config(cursor)
            store._indexed = bool(store._index_state(cursor))
        return store

    @property
    def location(self) -> str | None:
        return self._location

    def __len__(self) -> int:
        return self._contents()[0]

    def state(self) -> str:
        return state_text(self._contents()[1])

    def _contents(self) -> tuple[int, int]:
        """Number of items, and the sum of their digests."""
        with self._transaction() as cursor:
            # While nothing is committed in the whole database, its snapshots are equal: no need to count.
            (snapshot,) = cursor.execute("SELECT pg_current_snapshot()::text", prepare=True).fetchone() or ("",)
            if self._seen is None or self._seen[0] != snapshot:
                look = self._sql("SELECT count(*), coalesce(sum(digest), 0)::text FROM {schema}.items")
                count, total = cursor.execute(look).fetchone() or (0, "0")
                self._seen = snapshot, (count, int(total))
            return self._seen[1]

    @property
    def efforts(self) -> list[int]:
        """Sizes of the candidate list of HNSW, up to the largest that pgvector allows."""
        return [20, 40, 80, 160, 320, 640, 1000] if self._indexed else []

    def reserve_ids(self, count: int) -> list[int]:
        with self._transaction() as cursor:
            return self._next_rows(cursor, count)

    def insert(self, items: Items) -> None:
        try:
            with self._transaction() as cursor:
                self._copy(cursor, self._next_rows(cursor, len(items)), items)
        except psycopg.errors.UniqueViolation:
            existing = self.existing(list(items.keys))
            duplicate = next((key for key in items.keys if key in existing), items.keys[0])
            reject("ids", decode_id(duplicate), "already in the index", "remove it first, or choose another id")

    def delete(self, keys: list[str]) -> None:
        with self._transaction() as cursor:
            statement = self._sql("DELETE FROM {schema}.items WHERE key = ANY(%s) RETURNING key")
            deleted = {key for (key,) in cursor.execute(statement, (keys,), prepare=True)}
            unknown = [key for key in keys if key not in deleted]
            if unknown:
                reject("ids", decode_id(unknown[0]), "not in the index", "remove only items that it holds")

    def existing(self, keys: list[str]) -> set[str]:
        with self._reading() as cursor:
            statement = self._sql("SELECT key FROM {schema}.items WHERE key = ANY(%s)")
            return {key for (key,) in cursor.execute(statement, (keys,), prepare=True)}

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        wide = radius - slack(mu.shape[1])
        if effort is not None:
            return self._within_approximately(mu, wide, effort)
        with self._reading() as cursor:
            parameters = list(range(len(mu))), list(mu), (-wide).tolist()
            rows = cursor.execute(self._sql(_WITHIN), parameters, prepare=True).fetchall()
        return self._candidates(rows)

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        if effort is None and len(mu) >= _LEAST_QUERIES:
            with self._transaction() as cursor:
                table = self._sql("SELECT seq, mu, kappa, ({weight})::real FROM {schema}.{vectors}")
                found, reach = _closest_by_reading(cursor, table, self.config["dim"], mu, k)
            return found if self._mixtures else replace(found, weight=None), reach
        with self._transaction() if effort is None else self._reading() as cursor:
            if effort is None:
                cursor.execute("SET LOCAL enable_indexscan = off")
            elif effort != self._effort:  # it holds until it is changed, or the connection is lost
                cursor.execute(_GRAPH_SEARCH, (str(effort),))
                self._effort = effort
            rows = cursor.execute(self._sql(_CLOSEST), (list(range(len(mu))), list(mu), k), prepare=True).fetchall()
        candidates = self._candidates(rows)
        distance = np.array([row[5] for row in rows], np.float64)
        last = np.searchsorted(candidates.query, np.arange(len(mu)), side="right") - 1
        full = np.bincount(candidates.query, minlength=len(mu)) >= k
        reach = np.full(len(mu), -np.inf)
        reach[full] = -distance[last[full]]
        return candidates, reach

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        statement = self._sql("SELECT seq, key, note FROM {schema}.items WHERE seq = ANY(%s)")
        with self._reading() as cursor:
            described = cursor.execute(statement, (np.unique(rows).tolist(),), prepare=True)
            return {row: (key, metadata) for row, key, metadata in described}

    def components(self, rows: np.ndarray) -> Candidates:
        statement = self._sql("""
            SELECT q.n - 1, i.seq, i.mu, i.kappa, i.weight
            FROM unnest(%s::bigint[]) WITH ORDINALITY AS q (seq, n) JOIN {schema}.components AS i ON i.seq = q.seq
            ORDER BY q.n, i.weight DESC
        """)
        with self._reading() as cursor:
            return self._candidates(cursor.execute(statement, (rows.tolist(),), prepare=True).fetchall())

    def kappa_range(self) -> tuple[float, float]:
        # An index on kappa makes both ends cheap.
        ends = "SELECT kappa FROM {schema}.{vectors} WHERE kappa < 'Infinity' ORDER BY kappa"
        with self._transaction() as cursor:
            low = cursor.execute(self._sql(ends + " LIMIT 1")).fetchone()
            high = cursor.execute(self._sql(ends + " DESC LIMIT 1")).fetchone()
        return (low[0], high[0]) if low and high else (0.0, 0.0)

    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        statement = self._sql("SELECT count(*) FROM {schema}.items WHERE kappa < %s")
        with self._reading() as cursor:
            counts = [cursor.execute(statement, (float(value),)).fetchone() for value in kappa]
        return np.array([count[0] for count in counts if count], np.int64)

    def sample_directions(self, count: int) -> np.ndarray:
        statement = self._sql("SELECT mu FROM {schema}.{vectors} ORDER BY md5(seq::text) LIMIT %s")
        with self._reading() as cursor:
            rows = cursor.execute(statement, (count,)).fetchall()
        return np.array([vector.to_numpy() for (vector,) in rows], np.float32)

    def configure(self, **changes: Any) -> None:
        with self._transaction() as cursor:
            cursor.execute(self._sql("LOCK TABLE {schema}.config IN SHARE ROW EXCLUSIVE MODE"))
            config = {**self._stored_config(cursor), **changes}  # another client may have changed other settings
            self._configure(cursor, config)
        self.config = config

    def save(self, location: str | None = None) -> None:
        """Make the HNSW index, once, when the collection is too large for exact search. Items are stored already."""
        require(location is None, "location", location, "the index is on a server", "build another one there")
        large = len(self) >= self.config["exact_below"] and self.config["dim"] <= _LARGEST_INDEXED_DIM
        if not large:
            return
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.cursor() as cursor:
                state = self._index_state(cursor)
                # CONCURRENTLY lets other clients write meanwhile. A build that was killed leaves an invalid index.
                if state is False:
                    cursor.execute(self._sql("DROP INDEX CONCURRENTLY IF EXISTS {schema}.nearest"))
                if not state:
                    build = "CREATE INDEX CONCURRENTLY nearest ON {schema}.{vectors} USING hnsw (mu vector_ip_ops)"
                    cursor.execute(self._sql(build))
                cursor.execute(self._sql("ANALYZE {schema}.{vectors}"))
        self._indexed = True
        self.configure(report=tune_recall(self, self.config["recall"]))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _within_approximately(self, mu: np.ndarray, radius: np.ndarray, effort: int) -> Candidates:
        """Ask for four times as many neighbours in each round, until one lies outside the radius."""
        parts: list[Candidates] = []
        pending, count = np.arange(len(mu)), _FIRST_NEIGHBOURS
        while len(pending) and count <= _MOST_NEIGHBOURS:
            neighbours, reach = self.closest(mu[pending], count, effort)
            done = reach < radius[pending]
            parts.append(neighbours.take(done[neighbours.query]).of_queries(pending))
            pending = pending[~done]
            count *= 4
        if len(pending):
            parts.append(self.within(mu[pending], radius[pending], None).of_queries(pending))
        return Candidates.concatenate(parts)

    def _make_schema(self, cursor: psycopg.Cursor, dim: int, replace: bool) -> None:
        # Of two clients that create the same index, the second waits here.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"aleator_{self._name}",))
        exists = self._exists(cursor)
        if exists and not replace:
            reject("location", self._name, "already holds an index", "add to it, or pass replace=True")
        if exists:
            cursor.execute(self._sql("DROP SCHEMA {schema} CASCADE"))
        for statement in (_SCHEMA + (_COMPONENTS if self._mixtures else "")).strip().split(";\n"):
            cursor.execute(self._sql(statement, dim=sql.Literal(dim)))
        if dim <= _LARGEST_INLINE_DIM:
            cursor.execute(self._sql("ALTER TABLE {schema}.{vectors} ALTER COLUMN mu SET STORAGE PLAIN"))

    def _copy(self, cursor: psycopg.Cursor, rows: list[int], items: Items) -> None:
        """Insert items under the given rows."""
        kappa, mu, digests = items.kappa, items.mu, items.digests()
        if items.owner is not None:
            heaviest = np.searchsorted(items.owner, np.arange(len(items)))
            kappa, mu = kappa[heaviest], mu[heaviest]
            digests = np.add.reduceat(digests, heaviest) if len(items) else digests
        statement = self._sql("COPY {schema}.items (seq, key, kappa, note, digest, mu) FROM STDIN (FORMAT BINARY)")
        with cursor.copy(statement) as copy:
            copy.set_types(["int8", "text", "float4", "text", "int8", "vector"])
            signed = digests.view(np.int64).tolist()
            for item in zip(rows, items.keys, kappa.tolist(), items.metadata_json, signed, mu, strict=True):
                copy.write_row(item)
        if items.weight is None:
            return
        statement = self._sql("COPY {schema}.components (seq, kappa, weight, mu) FROM STDIN (FORMAT BINARY)")
        with cursor.copy(statement) as copy:
            copy.set_types(["int8", "float4", "float4", "vector"])
            seq = items.rows_of_vectors(np.array(rows, np.int64)).tolist()
            for component in zip(seq, items.kappa.tolist(), items.weight.tolist(), items.mu, strict=True):
                copy.write_row(component)

    def _next_rows(self, cursor: psycopg.Cursor, count: int) -> list[int]:
        statement = self._sql("SELECT nextval({sequence}) FROM generate_series(1, %s)", sequence=self._sequence)
        return [number for (number,) in cursor.execute(statement, (count,))]

    @property
    def _sequence(self) -> sql.Composable:
        return sql.Literal(self._schema.as_string(None) + ".seq")

    def _configure(self, cursor: psycopg.Cursor, config: dict[str, Any]) -> None:
        statement = """INSERT INTO {schema}.config VALUES ('config', %s)
                       ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
        cursor.execute(self._sql(statement), (json.dumps(config),))

    def _stored_config(self, cursor: psycopg.Cursor) -> dict[str, Any]:
        (value,) = cursor.execute(self._sql("SELECT value FROM {schema}.config")).fetchone() or ("{}",)
        with contextlib.suppress(ValueError):
            config = json.loads(value)
            if config_problem(config) is None:
                return config
        raise DamagedFileError(self._place, "the settings of the index cannot be read", "restore the database")

    def _exists(self, cursor: psycopg.Cursor) -> bool:
        table = cursor.execute("SELECT to_regclass(%s)", (self._schema.as_string(None) + ".config",)).fetchone()
        return table is not None and table[0] is not None

    def _index_state(self, cursor: psycopg.Cursor) -> bool | None:
        """Whether the HNSW index is complete; None if there is none."""
        statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        state = cursor.execute(statement, (self._schema.as_string(None) + ".nearest",)).fetchone()
        return None if state is None else state[0]

    @property
    def _mixtures(self) -> bool:
        return self.config.get("modes", 1) > 1

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        """A statement with names filled in. `vectors` is the table to search in, `weight` its weight."""
        table, weight = ("components", "weight") if self._mixtures else ("items", "1")
        return sql.SQL(statement).format(
            schema=self._schema, vectors=sql.Identifier(table), weight=sql.SQL(weight), **parts
        )

    def _candidates(self, rows: list[tuple]) -> Candidates:
        """Candidates from rows that start with query, seq, mu, kappa and weight."""
        return Candidates(
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
            np.array([row[2].to_numpy() for row in rows], np.float32).reshape(len(rows), self.config["dim"]),
            np.array([row[3] for row in rows], np.float32),
            np.array([row[4] for row in rows], np.float32) if self._mixtures else None,
        )

    def _connected(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True)
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(self._connection)
            self._effort = None
        return self._connection

    @property
    def _place(self) -> str:
        """The location without user, password and options."""
        try:
            parts = urlsplit(self._url)
            host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
            return f"{parts.scheme}://{host}{parts.path}#{self._name}"
        except ValueError:  # a port that is not a number, for example
            return f"postgresql://...#{self._name}"

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Errors of psycopg as errors about this index, without user, password and traceback of the driver."""
        try:
            yield
        except psycopg.errors.UniqueViolation:
            raise  # `insert` says which id it is
        except psycopg.Error as error:
            cause, way_out = _translated(error)
            # Not chained: the driver's own error may hold the whole URL.
            raise ConnectionError(f"{self._place}: {redacted(cause, *_secrets(self._url))}; {way_out}") from None

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[psycopg.Cursor]:
        """For one statement that reads. It needs no transaction, and so fewer messages."""
        with self._lock, self._plain_errors(), self._connected().cursor(binary=True) as cursor:
            yield cursor

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor]:
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor


def _translated(error: psycopg.Error) -> tuple[str, str]:
    """What happened, and what the user can do."""
    said = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, psycopg.errors.DiskFull):
        return f"the disk of the server is full ({said})", "free some space there and repeat it"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"the user may not do this ({said})", "ask for the permission, or name another user"
    if error.sqlstate is None or isinstance(error, psycopg.OperationalError):
        way_out = "check the address, user and password, or start the server; a change may or may not have happened"
        return f"the server cannot be reached or went away ({said})", way_out
    return f"the server refuses ({said})", "check the database and its extension pgvector"


def _secrets(url: str) -> list[str]:
    """The password in a URL, as it stands there."""
    found = re.findall(r"//[^/@:]*:([^@]*)@", url) + re.findall(r"(?i)password=([^&\s]+)", url)
    return [secret for secret in found if secret]


def _closest_by_reading(
    cursor: psycopg.Cursor, table: sql.Composable, dim: int, queries: np.ndarray, k: int
) -> tuple[Candidates, np.ndarray]:
    """The k nearest rows of each query by their inner products: all are read once, and compared here.

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
