"""The files of an index on Lance in a folder. Lance verifies none of them, and some damage makes it end the process.

So the ledger has the SHA-256 of every file that Lance reads for the version that the ledger names: the manifest of the
version, and what the manifest names, which are data, deletions and indexes. They are verified before Lance reads them.
An object store keeps checksums itself.

The manifest is a message of Protocol Buffers, as https://lance.org/format/table describes it. What is read here:

    manifest: fragments (2)    fragment: number (1), files (2), deletions (3)    file: path (1)
    deletions: kind (1), version (2), number (3)
"""

import struct
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aleator.foundation import file_sha256
from aleator.retrieval.stores.lance.place import Place

Files = dict[str, str]  # SHA-256 by path in the folder of the index
_FOOTER = struct.Struct("<QHH4s")  # of a manifest: where the message begins, version of the format, b"LANC"
_FIXED = {1: 8, 5: 4}  # bytes of values of a fixed size, by their kind


def table_files(place: Place, name: str, version: int, known: Mapping[str, str]) -> Files:
    """SHA-256 of all files that a version of a table needs; nothing on an object store.

    Args:
        place: Where the index is.
        name: Of the table.
        version: Of the table.
        known: SHA-256 of files that need not be read again.
    """
    if place.folder is None:
        return {}
    with place.plain_errors():
        paths = _paths(place, place.folder / f"{name}.lance", version)
        names = {path.relative_to(place.folder).as_posix(): path for path in paths}
        return {name: known[name] if name in known else file_sha256(path) for name, path in sorted(names.items())}


def verify_files(place: Place, files: Files) -> None:
    """Raise unless the files match their SHA-256. Lance itself names one that is missing and needed."""
    for name, sha256 in files.items():
        path = place.folder / name if place.folder is not None else None
        if path is not None and path.is_file() and file_sha256(path) != sha256:
            raise place.damaged(f"{name} does not match its checksum")


def missing_files(place: Place, files: Files) -> Iterator[str]:
    """Those of the files that are not there. Lance can do without some of them."""
    return (name for name in files if place.folder is not None and not (place.folder / name).is_file())


def _paths(place: Place, above: Path, version: int) -> list[Path]:
    """The manifest of a version, and the files that it names."""
    manifest = above / "_versions" / f"{2**64 - 1 - version:020d}.manifest"
    data = manifest.read_bytes()
    try:
        named = [above / name for name in _named(data)]
    except (AttributeError, LookupError, ValueError, TypeError, struct.error):
        raise place.damaged(f"the manifest of version {version} cannot be read") from None
    # The manifest also has the ids of its indexes. Other folders are of older versions, or are being written.
    folders = [folder for folder in (above / "_indices").glob("*") if _has_id(data, folder.name)]
    indexes = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [manifest, *named, *indexes]


def _has_id(data: bytes, name: str) -> bool:
    """Whether a manifest has the id that a folder is called by. Folders that are called otherwise are not Lance's."""
    try:
        return uuid.UUID(name).bytes in data
    except ValueError:
        return False


def _named(data: bytes) -> Iterator[str]:
    """Data and deletions that a manifest names, by their path in the table."""
    begin, _, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    (size,) = struct.unpack_from("<I", data, begin)
    if magic != b"LANC" or begin + 4 + size > len(data):
        raise ValueError
    for field, fragment in _fields(data[begin + 4 : begin + 4 + size]):
        if field != 2:
            continue
        values = list(_fields(fragment))
        for part, value in values:
            if part == 2:
                yield f"data/{dict(_fields(value))[1].decode()}"
            elif part == 3:
                deletions = dict(_fields(value))
                kind = "bin" if deletions.get(1, 0) else "arrow"
                yield f"_deletions/{dict(values).get(1, 0)}-{deletions.get(2, 0)}-{deletions.get(3, 0)}.{kind}"


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message."""
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(data):
        key = integer()
        if key & 7 == 0:
            yield key >> 3, integer()
            continue
        size = integer() if key & 7 == 2 else _FIXED[key & 7]
        if place + size > len(data):
            raise ValueError
        yield key >> 3, data[place : place + size]
        place += size
