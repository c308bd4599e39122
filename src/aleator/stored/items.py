"""The .jsonl file beside a posteriors file: a JSON object for each item, with its id."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aleator.foundation import DamagedFileError, reject, require, require_file, writing_atomically
from aleator.stored.arrays import read_header
from aleator.stored.checksums import WAY_OUT, item_line, verify_items

Id = str | int
Metadata = dict[str, Any]

_COPY_BOTH = "copy it along with the posteriors, or write both again with `aleator embed --replace`"


def read_items_beside(path: Path) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Read the ids and metadata of a posteriors file from the .jsonl file beside it.

    Args:
        path: The posteriors file. Of a link, the file may lie beside its target.

    Returns:
        What `read_items` returns; None and None if the posteriors were written without such a file.

    Raises:
        ValueError: If a line is not a JSON object with an id.
        DamagedFileError: If the file is missing, or its ids are not those of the posteriors.
    """
    beside = _beside(path)
    header = read_header(path)
    if not beside.is_file():
        if "items_sha256" in header:
            raise DamagedFileError(beside, f"it is missing, and has the ids of {path}", _COPY_BOTH)
        return None, None
    ids, metadata = read_items(beside)
    verify_items(beside, ids or [], header)
    return ids, metadata


def read_records(path: Path, count: int) -> list[dict[str, Any]]:
    """The records of `count` items from the .jsonl file beside a posteriors file; numbers if it was written without.

    Args:
        path: The posteriors file.
        count: Number of posteriors in it.

    Returns:
        For each item its "id" and its metadata.

    Raises:
        ValueError: If the .jsonl file has another number of lines, or is not that of the posteriors.
    """
    ids, metadata = read_items_beside(path)
    if ids is None or metadata is None:
        return [{"id": i} for i in range(count)]
    problem, way_out = f"has {len(ids)} lines for {count} posteriors", "embed again: both files are written together"
    require(len(ids) == count, "items", str(_beside(path)), problem, way_out)
    return [{"id": id} | dict(entry) for id, entry in zip(ids, metadata, strict=True)]


def read_items(path: Path | None) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Read ids and metadata from JSON lines such as {"id": "cat-1", "label": "cat"}.

    Args:
        path: The .jsonl file. None: no ids and no metadata.

    Returns:
        The ids, and for each id its metadata: all keys but the id.

    Raises:
        ValueError: If a line is not a JSON object with an id.
    """
    if path is None:
        return None, None
    require_file("items", path, "name a file of JSON lines")
    ids, metadata = [], []
    for number, line in enumerate(_lines(path), 1):
        try:
            item = json.loads(line)
            ids.append(item.pop("id"))
            hash(ids[-1])
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            reject(
                "items", f"line {number} of {path}", "is not a JSON object with an id", 'write {"id": ..., "key": ...}'
            )
        metadata.append(item)
    return ids, metadata


def join_items(
    ids: Sequence[Id] | None, named: Sequence[Id] | None, metadata: list[Metadata] | None, file: str
) -> list[Metadata] | None:
    """Metadata of a second file, in the order of the ids.

    Args:
        ids: Ids of the posteriors. None: they have none, and the second file is taken line by line.
        named: Ids of the second file.
        metadata: Metadata of the second file.
        file: Name of the second file, for errors.

    Returns:
        The metadata of each id. Lines of other ids are left out.

    Raises:
        ValueError: If the second file names an id twice, or not at all.
    """
    if ids is None or named is None or metadata is None:
        return metadata
    line_of: dict[Id, int] = {}
    for line, id in enumerate(named):
        problem = f"{id!r} is in line {line_of.get(id, 0) + 1} too"
        require(
            line_of.setdefault(id, line) == line, "items", f"line {line + 1} of {file}", problem, "keep one of them"
        )
    for id in ids:
        require(id in line_of, "items", file, f"has no line for {id!r}", "write one line for each id of the posteriors")
    return [metadata[line_of[id]] for id in ids]


def write_items(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    """Write the .jsonl file of a posteriors file; each item has an "id". It appears when it is complete."""
    with writing_atomically(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for item in items:
            file.write(item_line(item))


def _beside(path: Path) -> Path:
    """The .jsonl file of a posteriors file: beside it, or beside the target of a link."""
    beside = path.with_suffix(".jsonl")
    target = Path(os.path.realpath(path)).with_suffix(".jsonl")  # `resolve` raises an error for a link to itself
    return target if path.is_symlink() and target.is_file() and not beside.is_file() else beside


def _lines(path: Path) -> list[str]:
    # Not splitlines: a text may contain characters that it takes for the end of a line.
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as damage:
        raise DamagedFileError(path, f"it is not UTF-8 text (byte {damage.start})", WAY_OUT) from None
    return lines[:-1] if lines and not lines[-1] else lines
