"""Repair of an index in a folder: what is whole is kept, what is lost is named, and the damaged folder stays.

An item is whole if its id, metadata, direction and kappa match the checksums of their rows. Items whose vector is lost
are made again from a posteriors file, if one is given.
"""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import DamagedFileError, reject
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.stores.checksums import row_digest, vector_checks
from aleator.retrieval.stores.consistency import arrays_problem, config_problem

_BLOCK = 256  # rows read at a time; where a page is damaged, one by one
_LAST_ROW = 100_000_000  # a number beyond it is damage


@dataclass
class Repair:
    """What was kept and what is lost.

    Args:
        kept: Number of items of the repaired index.
        made_again: Number of those whose vector was taken from the posteriors file.
        lost: Ids of items that are lost.
        nameless: Number of vectors whose id is lost.
        notes: Sentences on what else was lost.
        damaged: Where the damaged folder is now; None if there was nothing to repair.
    """

    kept: int = 0
    made_again: int = 0
    lost: list[str | int] = field(default_factory=list)
    nameless: int = 0
    notes: list[str] = field(default_factory=list)
    damaged: Path | None = None


@dataclass(frozen=True)
class ItemVectors:
    """Directions, kappas and weights of one item."""

    mu: np.ndarray  # (K, D)
    kappa: np.ndarray  # (K,)
    weight: np.ndarray  # (K,)


def repair_folder(folder: Path, replacements: dict[str, ItemVectors] | None, default: dict[str, Any]) -> Repair:
    """Repair an index; see `repair_index`.

    Args:
        folder: The folder.
        replacements: Vectors by key, for items whose own are lost.
        default: Settings, for an index whose settings are lost.
    """
    from aleator.retrieval.stores.folder import FolderStore, ledger_of

    path = ledger_of(folder)
    with contextlib.suppress(DamagedFileError):
        store = FolderStore.open(folder)
        try:
            store.check()
            return Repair(kept=len(store))
        finally:
            store.close()
    result = Repair()
    with _scratch(path) as scratch:
        tables = _Tables(scratch)
        config = _config(tables, default, result)
        named = dict(tables.items())
        held = _vectors(folder, tables, config, result)
        removed = {row for (row,) in tables.rows("removed")}
    result.nameless = len(set(held) - set(named) - removed)
    keys, notes, vectors = [], [], []
    for row, (key, metadata) in sorted(named.items()):
        found = held.get(row)
        if found is None and replacements and key in replacements:
            found = replacements[key]
            result.made_again += found.mu.shape[1] == config["dim"]
        if found is None or found.mu.shape[1] != config["dim"]:
            result.lost.append(decode_id(key))
            continue
        keys.append(key)
        notes.append(metadata)
        vectors.append(found)
    if not keys:
        way_out = "restore it from a copy, or build it again"
        if named and replacements is None:
            way_out = "run `aleator index repair` --from the posteriors file that it was built from, or " + way_out
        reject("location", str(folder), "no item is whole", way_out)
    result.kept = len(keys)
    result.damaged = _replace(folder, _items(keys, notes, vectors, config), config)
    return result


class _Tables:
    """Rows of a damaged ledger that can be read, and match their digest."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db

    def rows(self, table: str) -> list[list]:
        """Whole rows of a table, without their digests."""
        return self._whole(self._try(f"SELECT * FROM {table}") or [])

    def items(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Row, key and metadata of whole items, each key once. A damaged page costs the items in it alone."""
        largest = self._try("SELECT max(row) FROM items") or []
        last = max((row for (row,) in largest if isinstance(row, int)), default=-1)
        for key, text in self.rows("config"):
            if key == "next_row" and text.isdecimal():
                last = max(last, int(text) - 1)
        seen: set[str] = set()
        for start in range(0, min(last, _LAST_ROW) + 1, _BLOCK):
            select = "SELECT * FROM items WHERE row BETWEEN ? AND ?"
            block = self._try(select, start, start + _BLOCK - 1)
            if block is None:
                block = [line for row in range(start, start + _BLOCK) for line in self._try(select, row, row) or []]
            for row, key, metadata in self._whole(block):
                if key not in seen:
                    seen.add(key)
                    yield row, (key, metadata)

    def _try(self, query: str, *parameters: Any) -> list[tuple] | None:
        """Rows of a query; None if they cannot be read."""
        try:
            return self._db.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return None

    def _whole(self, lines: list[tuple]) -> list[list]:
        return [values for *values, digest in lines if digest == row_digest(*values)]


def _config(tables: _Tables, default: dict[str, Any], result: Repair) -> dict[str, Any]:
    """The settings of the ledger, or the defaults."""
    for key, text in tables.rows("config"):
        with contextlib.suppress(ValueError):
            if key == "config" and config_problem(config := json.loads(text)) is None:
                return config
    result.notes.append("the settings are lost: kernel, prior, calibration and encoder are the defaults")
    return default


def _vectors(folder: Path, tables: _Tables, config: dict[str, Any], result: Repair) -> dict[int, ItemVectors]:
    """Vectors of each row that are whole."""
    dim, mixtures = config["dim"], config.get("modes", 1) > 1
    held = _saved_vectors(folder, tables, dim, mixtures, result)
    for row, kappa, data in tables.rows("added"):
        width = dim + 2 if mixtures else dim
        if len(data) % (4 * width) == 0 and data:
            numbers = np.frombuffer(data, np.float32).reshape(-1, width)
            one = np.ones(1, np.float32)
            held[row] = (
                ItemVectors(numbers[:, 2:], numbers[:, 1], numbers[:, 0])
                if mixtures
                else ItemVectors(numbers, np.array([kappa], np.float32), one)
            )
    return held


def _saved_vectors(folder: Path, tables: _Tables, dim: int, mixtures: bool, result: Repair) -> dict[int, ItemVectors]:
    """Vectors of the vector file that match their checksums."""
    from aleator.retrieval.stores.faiss import VectorIndex

    lines = tables.rows("vectors")
    if not lines:
        result.notes.append("the list of vectors is damaged")
        return {}
    file, _, *blobs = lines[0]
    row, kappa, weight, checks = map(np.frombuffer, blobs, (np.int64, np.float32, np.float32, np.int64))
    path = folder / str(file)
    if path.parent != folder or not path.is_file():
        result.notes.append("the vector file is missing")
        return {}
    try:
        vectors = VectorIndex.read(path)
    except DamagedFileError:
        result.notes.append("the vector file cannot be read")
        return {}
    if not mixtures:
        weight = np.ones(len(row), np.float32)
    if vectors.dim != dim or arrays_problem(row, kappa, weight, len(checks)) is not None:
        result.notes.append("the vectors do not fit their list")
        return {}
    position, mu = vectors.stored()
    listed = (position >= 0) & (position < len(row))
    position, mu = position[listed], mu[listed]
    found = vector_checks(row[position], mu, kappa[position], weight[position] if mixtures else None)
    whole = found == checks[position]
    position, first = np.unique(position[whole], return_index=True)
    mu = mu[whole][first]
    held: dict[int, ItemVectors] = {}
    modes = dict(zip(*(part.tolist() for part in np.unique(row, return_counts=True)), strict=True))
    splits = np.flatnonzero(np.diff(row[position])) + 1
    for places in np.split(np.arange(len(position)), splits) if len(position) else []:
        at, number = position[places], int(row[position[places[0]]])
        if len(at) == modes[number]:  # of an item of several modes all must be whole
            held[number] = ItemVectors(mu[places], kappa[at], weight[at])
    if len(position) < len(row):
        result.notes.append(f"{len(row) - len(position)} of {len(row)} vectors in the vector file are damaged")
    return held


def _items(keys: list[str], notes: list[str], vectors: list[ItemVectors], config: dict[str, Any]) -> Items:
    mu = np.ascontiguousarray(np.concatenate([one.mu for one in vectors]))
    kappa = np.concatenate([one.kappa for one in vectors])
    if config.get("modes", 1) == 1:
        return Items(keys, mu, kappa, notes)
    owner = np.repeat(np.arange(len(keys)), [len(one.kappa) for one in vectors])
    return Items(keys, mu, kappa, notes, np.concatenate([one.weight for one in vectors]), owner)


def _replace(folder: Path, items: Items, config: dict[str, Any]) -> Path:
    """Write the repaired index in place of the damaged one, which gets another name."""
    from aleator.retrieval.stores.folder import FolderStore

    number = 1
    while (damaged := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    fresh = folder.with_name(f".{folder.name}.repaired-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    store = FolderStore.create(items, {**config, "report": None})
    try:
        store.save(str(fresh))
    finally:
        store.close()
    folder.rename(damaged)
    fresh.rename(folder)
    return damaged


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads the damaged ledger."""
    db = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()
