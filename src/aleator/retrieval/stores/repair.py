"""Repair of an index in a folder: what is whole is kept, what is lost is named, and the damaged folder stays.

An item is whole if its id and metadata match their checksum, and its direction and kappa can be trusted: those of items
that were added since the last save by the checksum of their table, those of the vector file by the checksums of its
parts. Items whose vector is lost are made again from a posteriors file, if one is given.
"""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import DamagedFileError, file_sha256, reject
from aleator.retrieval.items import Items, decode_id
from aleator.retrieval.stores.consistency import arrays_problem, config_problem
from aleator.retrieval.stores.faiss import VectorIndex
from aleator.retrieval.stores.folder import FolderStore, ledger_of
from aleator.retrieval.stores.ledger_checks import item_digest, row_digest
from aleator.retrieval.stores.repaired import ItemVectors, Repair
from aleator.retrieval.stores.seal import sealed_config
from aleator.retrieval.stores.vector_parts import PartVerifier, frame_is_whole

_BLOCK = 256  # rows read at a time; where a page is damaged, one by one
_LAST_ROW = 100_000_000  # a number beyond it is damage


def repair_folder(folder: Path, replacements: dict[str, ItemVectors] | None, default: dict[str, Any]) -> Repair:
    """Repair an index; see `repair_index`.

    Args:
        folder: The folder.
        replacements: Vectors by key, for items whose own are lost.
        default: Settings, for an index whose settings are lost.
    """
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
        tables = _Tables(scratch, result)
        config = _config(tables, path, default, result)
        named = dict(tables.items())
        held = _vectors(folder, tables, config, result)
        removed = {row for (row,) in tables.read("SELECT row FROM removed")}
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
    """Rows of a damaged ledger, as far as they can be read."""

    def __init__(self, db: sqlite3.Connection, result: Repair):
        self._db, self._result = db, result

    def read(self, query: str, *parameters: Any) -> list[tuple]:
        """Rows of a query; empty if they cannot be read."""
        return self._try(query, *parameters) or []

    def _try(self, query: str, *parameters: Any) -> list[tuple] | None:
        """Rows of a query; None if they cannot be read."""
        try:
            return self._db.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return None

    def items(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Row, key and metadata of items that match their checksum, each key once."""
        checked = bool(self.read("SELECT digest FROM items LIMIT 1"))
        if not checked:
            self._result.notes.append("the index has no checksums of items: ids and metadata are taken as they are")
        last = max((row for (row,) in self.read("SELECT max(row) FROM items") if isinstance(row, int)), default=-1)
        numbers = [value for (value,) in self.read("SELECT value FROM config WHERE key = 'next_row'")]
        if numbers and str(numbers[0]).isdecimal():
            last = max(last, int(numbers[0]) - 1)
        columns = "row, key, note" + (", digest" if checked else "")
        seen: set[str] = set()
        for start in range(0, min(last, _LAST_ROW) + 1, _BLOCK):
            select = f"SELECT {columns} FROM items WHERE row BETWEEN ? AND ?"
            block = self._try(select, start, start + _BLOCK - 1)
            if block is None:
                block = [line for row in range(start, start + _BLOCK) for line in self.read(select, row, row)]
            for row, key, metadata, *digest in block:
                whole = not digest or digest[0] == item_digest(row, key, metadata)
                if whole and isinstance(key, str) and isinstance(metadata, str) and key not in seen:
                    seen.add(key)
                    yield row, (key, metadata)

    def whole(self, table: str, columns: str) -> list[tuple] | None:
        """All rows of a table that matches its total; None if it does not. A table without a total is taken."""
        rows = self.read(f"SELECT {columns} FROM {table}")
        total = self.read("SELECT total FROM checks WHERE name = ?", table)
        if total and sum(row_digest(table, *row) for row in rows) % 2**62 != total[0][0]:
            return None
        return rows


def _config(tables: _Tables, path: Path, default: dict[str, Any], result: Repair) -> dict[str, Any]:
    """Settings: of the ledger, of the copy in its seal, or the defaults."""
    for (text,) in tables.read("SELECT value FROM config WHERE key = 'config'"):
        with contextlib.suppress(ValueError, TypeError):
            config = json.loads(text)
            if config_problem(config) is None and tables.whole("config", "*") is not None:
                return config
    copied = sealed_config(path)
    if copied is not None and config_problem(copied) is None:
        result.notes.append("the settings are those of the last save")
        return copied
    result.notes.append("the settings are lost: kernel, prior, calibration and encoder are the defaults")
    return default


def _vectors(folder: Path, tables: _Tables, config: dict[str, Any], result: Repair) -> dict[int, ItemVectors]:
    """Vectors of each row that can be trusted."""
    dim, mixture = config["dim"], config.get("modes", 1) > 1
    held = _saved_vectors(folder, tables, dim, mixture, result)
    added = tables.whole("added", "row, kappa, mu")
    if added is None:
        result.notes.append("the items added since the last save are damaged")
    for row, kappa, data in added or []:
        width = dim + 2 if mixture else dim
        if isinstance(data, bytes) and len(data) % (4 * width) == 0 and data:
            numbers = np.frombuffer(data, np.float32).reshape(-1, width)
            one = np.ones(1, np.float32)
            held[row] = (
                ItemVectors(numbers[:, 2:], numbers[:, 1], numbers[:, 0])
                if mixture
                else ItemVectors(numbers, np.array([kappa], np.float32), one)
            )
    return held


def _saved_vectors(folder: Path, tables: _Tables, dim: int, mixture: bool, result: Repair) -> dict[int, ItemVectors]:
    """Vectors of the parts of the vector file that match their checksum."""
    lines = tables.whole("vectors", "*")
    parts = tables.whole("parts", "*") or [(None, None)]
    if not lines:
        result.notes.append("the list of vectors is damaged")
        return {}
    file, sha256, rows, kappas = lines[0]
    path = folder / str(file)
    if path.parent != folder or not path.is_file():
        result.notes.append("the vector file is missing")
        return {}
    weights = tables.whole("weights", "*") if mixture else None
    digests = parts[0][1]
    whole = file_sha256(path) == sha256
    try:
        vectors = VectorIndex.read(path)
    except DamagedFileError:
        result.notes.append("the vector file cannot be read")
        return {}
    row, kappa = np.frombuffer(rows, np.int64), np.frombuffer(kappas, np.float32)
    weight = np.frombuffer(weights[0][0], np.float32) if weights else np.ones(len(row), np.float32)
    misfit = vectors.dim != dim or arrays_problem(row, kappa, weight if mixture else None, len(vectors)) is not None
    if misfit or (mixture and not weights):
        result.notes.append("the vectors do not fit their list")
        return {}
    everything = np.arange(len(row))
    position = everything if whole else _trusted(path, vectors.index, digests, everything)
    if position is None:
        result.notes.append("the vector file does not match its checksum")
        return {}
    mu = vectors.vectors(position)
    held: dict[int, ItemVectors] = {}
    modes = dict(zip(*(part.tolist() for part in np.unique(row, return_counts=True)), strict=True))
    splits = np.flatnonzero(np.diff(row[position])) + 1
    for places in np.split(np.arange(len(position)), splits) if len(position) else []:
        at, number = position[places], int(row[position[places[0]]])
        if len(at) == modes[number]:  # of an item of several modes all must be whole
            held[number] = ItemVectors(mu[places], kappa[at], weight[at])
    return held


def _trusted(path: Path, index: Any, digests: Any, position: np.ndarray) -> np.ndarray | None:
    """Positions in parts that match their checksum; None if the frame itself is damaged, or has no checksum."""
    if not isinstance(digests, bytes) or not frame_is_whole(path, digests):
        return None
    verifier = PartVerifier(index, digests)
    if not verifier.fits():
        return None
    whole = np.array([verifier.is_whole(number) for number in range(len(verifier.parts))], bool)
    return position[whole[verifier.parts.of_positions(position)]]


def _items(keys: list[str], notes: list[str], vectors: list[ItemVectors], config: dict[str, Any]) -> Items:
    mu = np.ascontiguousarray(np.concatenate([one.mu for one in vectors]))
    kappa = np.concatenate([one.kappa for one in vectors])
    if config.get("modes", 1) == 1:
        return Items(keys, mu, kappa, notes)
    owner = np.repeat(np.arange(len(keys)), [len(one.kappa) for one in vectors])
    return Items(keys, mu, kappa, notes, np.concatenate([one.weight for one in vectors]), owner)


def _replace(folder: Path, items: Items, config: dict[str, Any]) -> Path:
    """Write the repaired index in place of the damaged one, which gets another name."""
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
