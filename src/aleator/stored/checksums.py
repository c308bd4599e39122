"""Checksums of a posteriors file and of the .jsonl file beside it.

The header of the .safetensors file has

    version         of the format; a file without it is written by hand, and has no checksums
    sha256          of the whole file, with 64 zeros in the place of this checksum
    ids_sha256      of the ids in the .jsonl file, in order
    items_sha256    of the .jsonl file

Other ids are an error. Other metadata are a warning: a person may add labels to the .jsonl file.
"""

import hashlib
import json
import os
import struct
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from aleator.foundation import DamagedFileError, file_sha256, require

VERSION = "1"
UNSEALED = "0" * 64
WAY_OUT = "restore it from a copy, or write it again with `aleator embed --replace`"
_BLOCK = 1 << 20
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it


def seal_posteriors(path: Path) -> None:
    """Replace the zeros in the header of a finished file by its checksum."""
    place = _place_of_checksum(path, UNSEALED)
    assert place is not None
    digest = file_sha256(path)
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(digest.encode())


def verify_posteriors(path: Path, header: Mapping[str, str]) -> None:
    """Raise unless a posteriors file matches the checksum in its header. A file written by hand has none.

    Args:
        path: The .safetensors file.
        header: Its header.

    Raises:
        DamagedFileError: If it does not match.
        ValueError: If it is in another format.
    """
    version = header.get("version")
    if version is None and "sha256" not in header:
        return
    known = version == VERSION
    problem = f"is in format {version}, and this release reads format {VERSION}"
    require(known, "posteriors", str(path), problem, "open it with the release that wrote it")
    status = os.stat(path)
    # Nobody sets the time of the last change, which a copy or a clock that goes back may do to the time of writing.
    facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if not _matches(path, header.get("sha256", ""), *facts):
        raise DamagedFileError(path, "its content does not match its checksum", WAY_OUT)


@lru_cache(maxsize=16)
def _matches(path: Path, expected: str, *_: int) -> bool:
    """Whether a file has this checksum. Size and time of the file are arguments, so that an answer is not kept long."""
    place = _place_of_checksum(path, expected) if len(expected) == len(UNSEALED) else None
    if place is None:
        return False
    total = hashlib.sha256()
    with open(path, "rb") as file:
        total.update(file.read(place))
        total.update(UNSEALED.encode())
        file.seek(place + len(UNSEALED))
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest() == expected


def _place_of_checksum(path: Path, value: str) -> int | None:
    """Where the checksum stands in a file; None if it is not there."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(min(length, _LONGEST_HEADER))
    place = text.find(f'"sha256": "{value}"'.encode())
    return None if place < 0 else 8 + place + len('"sha256": "')


def items_header(items: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What the header of a posteriors file says about the .jsonl file beside it.

    Args:
        items: The items in it, as for `write_items`.

    Returns:
        "items_sha256" and "ids_sha256".
    """
    whole, ids = hashlib.sha256(), hashlib.sha256()
    for item in items:
        whole.update(item_line(item).encode())
        ids.update(_id_line(item["id"]))
    return {"items_sha256": whole.hexdigest(), "ids_sha256": ids.hexdigest()}


def item_line(item: Mapping[str, Any]) -> str:
    """The line of an item in a .jsonl file."""
    return json.dumps(item, ensure_ascii=False) + "\n"


def verify_items(path: Path, ids: Iterable[Any], header: Mapping[str, str]) -> None:
    """Raise if the .jsonl file beside a posteriors file has other ids; warn if it was changed otherwise.

    Args:
        path: The .jsonl file.
        ids: The ids in it, in order.
        header: Header of the posteriors file.

    Raises:
        DamagedFileError: If the ids or their order are not those that were embedded.
    """
    if "items_sha256" not in header or file_sha256(path) == header["items_sha256"]:
        return
    if _ids_sha256(ids) != header.get("ids_sha256"):
        raise DamagedFileError(path, "its ids are not those of the posteriors beside it", WAY_OUT)
    warnings.warn(f"{path} was changed after it was written: its metadata are taken as they are now", stacklevel=2)


def _ids_sha256(ids: Iterable[Any]) -> str:
    total = hashlib.sha256()
    for id in ids:
        total.update(_id_line(id))
    return total.hexdigest()


def _id_line(id: Any) -> bytes:
    return json.dumps(id).encode() + b"\n"
