"""The table of items of an index on Lance: one row of Lance for each component of each item.

An exact search reads all vectors, in blocks. An approximate search asks the vector index for one query at a time, in
the query's own radius. Lance also compares the vectors that were added after the index was built.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aleator.retrieval.items import Items, digests_of, sum_of
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.base import Candidates
from aleator.retrieval.stores.lance.checksums import (
    TEXT_CHECK,
    VECTOR_CHECK,
    Totals,
    combined,
    text_checks,
    totals_of,
    vector_checks,
)
from aleator.retrieval.stores.lance.place import Place

_BLOCK = 65_536  # vectors written or compared at a time
_MOST_IN_LIST = 1_000  # values in a condition; for more, a scan of the column is faster
_FIRST_NEIGHBOURS = 64
_AT_ONCE = 4  # questions


Described = dict[int, tuple[str, str]]  # id and metadata as JSON text, by row


def schema(dim: int, mixtures: bool, checked: bool) -> pa.Schema:
    """Columns of the table. `first` is true for the heaviest component of an item. Old tables have no checksums."""
    columns = [("row", pa.int64()), ("key", pa.string()), ("kappa", pa.float32()), ("note", pa.string())]
    more = [("weight", pa.float32()), ("first", pa.bool_())] if mixtures else []
    checks = [(VECTOR_CHECK, pa.int64()), (TEXT_CHECK, pa.int64())] if checked else []
    return pa.schema([*columns, *more, *checks, ("mu", pa.list_(pa.float32(), dim))])


def batches(items: Items, first_row: int, columns: pa.Schema, totals: Totals) -> Iterator[pa.RecordBatch]:
    """Items as batches of Arrow, with rows from `first_row` on. Their checksums are added to the totals."""
    owner = np.arange(len(items)) if items.owner is None else items.owner
    for start in range(0, len(owner), _BLOCK):
        part = owner[start : start + _BLOCK]
        low, high = int(part[0]), int(part[-1]) + 1
        keys, notes = list(items.keys[low:high]), items.metadata_json[low:high]
        vectors = pa.array(items.mu[start : start + _BLOCK].reshape(-1))
        data = {
            "row": pa.array(part + first_row, pa.int64()),
            "key": pa.array([keys[i - low] for i in part.tolist()], pa.string()),
            "kappa": pa.array(items.kappa[start : start + _BLOCK], pa.float32()),
            "note": pa.array([notes[i - low] for i in part.tolist()], pa.string()),
            "mu": pa.FixedSizeListArray.from_arrays(vectors, items.mu.shape[1]),
        }
        if items.weight is not None:
            before = owner[start - 1] if start else -1
            data["weight"] = pa.array(items.weight[start : start + _BLOCK], pa.float32())
            data["first"] = pa.array(np.diff(part, prepend=before) > 0)
        if VECTOR_CHECK in columns.names:
            row, kappa, mu = part + first_row, items.kappa[start : start + _BLOCK], items.mu[start : start + _BLOCK]
            weight = None if items.weight is None else items.weight[start : start + _BLOCK]
            first = None if weight is None else data["first"].to_numpy(zero_copy_only=False)
            vectors, texts = vector_checks(row, mu, kappa, weight), text_checks(row, data["key"], data["note"])
            described = [(keys[i - low], notes[i - low]) for i in part.tolist()]
            of_items = {"items": sum_of(digests_of(described, mu, kappa, weight))}
            totals.update(combined(totals, totals_of(row, kappa, first, vectors, texts) | of_items))
            data |= {VECTOR_CHECK: pa.array(vectors), TEXT_CHECK: pa.array(texts)}
        yield pa.RecordBatch.from_pydict({name: data[name] for name in columns.names}, schema=columns)


def contains_any_of_each(texts: Sequence[Sequence[str]]) -> str:
    """An SQL condition: the metadata contain at least one text of each sequence."""
    each = [" OR ".join(f"contains(note, {_quoted(text)})" for text in any_of) or "false" for any_of in texts]
    return " AND ".join(f"({condition})" for condition in each)


def _quoted(text: str) -> str:
    """A string of SQL. Nothing but a quote has a meaning inside; JSON text has no control characters."""
    return "'" + text.replace("'", "''") + "'"


class ItemTable:
    """An open table of items, at one version. Rows that are read are compared with their checksums, if it has any."""

    def __init__(self, place: Place, table: Any, dim: int, mixtures: bool, checked: bool):
        self.place, self.table, self.dim, self.mixtures, self.checked = place, table, dim, mixtures, checked
        self.schema = schema(dim, mixtures, checked)

    def add(self, items: Items, first_row: int) -> Totals:
        """Append items with rows from `first_row` on, in one commit. Returns the totals of their checksums."""
        totals: Totals = {}
        with self.place.plain_errors():
            self.table.add(pa.Table.from_batches(batches(items, first_row, self.schema, totals), self.schema))
        return totals

    def delete(self, ranges: list[tuple[int, int]]) -> None:
        """Remove rows (start, stop) from the table."""
        for start in range(0, len(ranges), _MOST_IN_LIST):
            chosen = ranges[start : start + _MOST_IN_LIST]
            with self.place.plain_errors():
                self.table.delete(" OR ".join(f"(row >= {a} AND row < {b})" for a, b in chosen))

    def find(self, column: str, values: list, wanted: list[str]) -> pa.Table:
        """The columns `wanted` of all rows whose `column` has one of the values."""
        if not values:
            return self.schema.empty_table().select(wanted)
        if len(values) <= _MOST_IN_LIST:
            listed = ", ".join(_quoted(value) if isinstance(value, str) else str(value) for value in values)
            with self.place.plain_errors():
                return self.table.search().where(f"{column} IN ({listed})").select(wanted).to_arrow()
        known = pa.array(values, self.schema.field(column).type)
        columns = list(dict.fromkeys([*wanted, column]))
        found = [batch.filter(pc.is_in(batch[column], known)) for batch in self.scan(columns)]
        return pa.Table.from_batches(found).select(wanted) if found else self.find(column, [], wanted)

    def scan(self, columns: list[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, or of those for which an SQL condition holds."""
        with self.place.plain_errors():
            query = self.table.search().select(columns)
            reader = (query if where is None else query.where(where)).to_batches()
        while True:
            with self.place.plain_errors():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    def blocks(self, where: str | None = None) -> Iterator[tuple[Candidates, np.ndarray]]:
        """All vectors, or those of rows for which an SQL condition holds; `query` is 0. With their checksums."""
        gathered: list[pa.RecordBatch] = []
        for batch in self.scan(self.vector_columns, where):
            gathered.append(batch)
            if sum(map(len, gathered)) >= _BLOCK:
                yield self._plain(gathered)
                gathered = []
        if gathered:
            yield self._plain(gathered)

    def _plain(self, found: list[pa.RecordBatch]) -> tuple[Candidates, np.ndarray]:
        table = pa.Table.from_batches(found)
        checks = self.column(table, VECTOR_CHECK) if self.checked else np.zeros(len(table), np.int64)
        return self.candidates(table, np.zeros(len(table), np.int64)), checks

    def take(self, offsets: np.ndarray) -> Candidates:
        """The vectors at some offsets of the table; `query` is 0."""
        with self.place.plain_errors():
            found = self.table.take_offsets(offsets.tolist()).select(self.vector_columns).to_arrow()
        return self.candidates(found, np.zeros(len(found), np.int64))

    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int) -> tuple[Candidates, Described]:
        """Vectors that reach each query's radius, of `effort` partitions, and what is known about small answers."""
        bound = 2 - 2 * (radius - slack(self.dim))  # squared distance of unit vectors
        asked = [(vector, None, limit, effort) for vector, limit in zip(mu, bound.tolist(), strict=True)]
        return self._together(self._ask_all(asked))

    def closest(self, mu: np.ndarray, k: int, effort: int) -> tuple[Candidates, np.ndarray, Described]:
        """The k nearest vectors, of `effort` partitions, and a reach as `Store.closest` has it."""
        parts = self._ask_all([(vector, k, None, effort) for vector in mu])
        far = np.array([part["_distance"][-1].as_py() if len(part) >= k else np.inf for part in parts], np.float64)
        candidates, described = self._together(parts)
        return candidates, 1 - far / 2, described

    def _ask_all(self, asked: list[tuple]) -> list[pa.Table]:
        """Ask several questions. Some wait while others are computed."""
        if len(asked) == 1:
            return [self._ask(*asked[0])]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda question: self._ask(*question), asked))

    def _ask(self, vector: np.ndarray, k: int | None, bound: float | None, effort: int) -> pa.Table:
        """Neighbours of one vector, nearest first. Without k: all within the bound."""
        limit = _FIRST_NEIGHBOURS if k is None else k
        while True:
            # Ids and metadata of few items cost little here, and save another question.
            columns = self._columns if limit <= _FIRST_NEIGHBOURS else self.vector_columns
            with self.place.plain_errors():
                query = self.table.search(vector, vector_column_name="mu").distance_type("l2").nprobes(effort)
                if bound is not None:
                    query = query.distance_range(None, max(0.0, bound) if np.isfinite(bound) else None)
                found = query.select([*columns, "_distance"]).limit(limit).to_arrow()
            if k is not None or len(found) < limit:
                return found
            limit *= 32

    def _together(self, parts: list[pa.Table]) -> tuple[Candidates, Described]:
        described: Described = {}
        for part in parts:
            if "key" in part.column_names:
                row, key, note = self.texts(part)
                described.update(zip(row.tolist(), zip(key, note, strict=True), strict=True))
        found = pa.concat_tables([part.select(self.vector_columns) for part in parts])
        query = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return self.candidates(found, query), described

    def candidates(self, found: Any, query: np.ndarray) -> Candidates:
        """Rows of Arrow with the columns of vectors, as candidates of these queries. They match their checksums."""
        row, kappa = self.column(found, "row"), self.column(found, "kappa")
        weight = self.column(found, "weight") if self.mixtures else None
        mu = self.column(found, "mu").reshape(len(found), self.dim)
        if self.checked:
            right = vector_checks(row, mu, kappa, weight) == self.column(found, VECTOR_CHECK)
            self._require(right, row, "vectors or kappas")
        return Candidates(query, row, mu, kappa, weight)

    def texts(self, found: Any) -> tuple[np.ndarray, list[str], list[str]]:
        """Row, id and metadata of rows of Arrow with the columns of texts. They match their checksums."""
        row, key, note = self.column(found, "row"), _whole(found["key"]), _whole(found["note"])
        if self.checked:
            checks = text_checks(row, key, note)
            right = np.zeros(len(row), bool) if checks is None else checks == self.column(found, TEXT_CHECK)
            self._require(right, row, "ids or metadata")
        with self.place.plain_errors():
            return row, key.to_pylist(), note.to_pylist()

    def column(self, found: Any, name: str) -> np.ndarray:
        """A column of numbers; of vectors one after the other."""
        values = _whole(found[name])
        flat = values.flatten() if name == "mu" else values
        if values.null_count or flat.null_count or len(flat) != len(values) * (self.dim if name == "mu" else 1):
            raise self.place.damaged(f"values of the column {name!r} are missing")
        return flat.to_numpy(zero_copy_only=False)

    def _require(self, right: np.ndarray, row: np.ndarray, what: str) -> None:
        if not right.all():
            wrong = f"{len(right) - right.sum()} of the {len(right)} that were read, the first in row {row[~right][0]}"
            raise self.place.damaged(f"{what} of items do not match their checksums ({wrong})")

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys([*self.text_columns, *self.vector_columns]))

    @property
    def vector_columns(self) -> list[str]:
        """Columns that `candidates` needs."""
        more = [name for name, there in (("weight", self.mixtures), (VECTOR_CHECK, self.checked)) if there]
        return ["row", "kappa", "mu", *more]

    @property
    def text_columns(self) -> list[str]:
        """Columns that `texts` needs."""
        return ["row", "key", "note", *([TEXT_CHECK] if self.checked else [])]

    @property
    def kappa_columns(self) -> list[str]:
        """Columns that totals of certainties need."""
        return ["row", "kappa", *(["first"] if self.mixtures else [])]


def _whole(values: Any) -> pa.Array:
    """A column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
