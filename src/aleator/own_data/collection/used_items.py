"""Which items a run has seen: RUN/items.npz holds a digest of each item that it trained, calibrated or tested on.

A digest is taken from the content, so an item is known again under another name or in another collection.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import reject, writing_atomically
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.object_store import open_file
from aleator.own_data.collection.parts import Split

FILE = "items.npz"
TRAINING, CALIBRATION = "training", "calibration"
_END = 2**14  # bytes at each end of a file that are read


def item_digests(collection: Collection) -> np.ndarray:
    """A number for each item that says what it is: equal items have equal numbers.

    Texts and features count whole. Of an image file, the size and 16 kB at both ends count, which is quick to read. A
    file that cannot be read is like no other.

    Args:
        collection: The items.

    Returns:
        Digests, shape (N,), uint64.
    """
    digests = np.empty(len(collection), np.uint64)
    for start in range(0, len(collection), 4096):
        for i, item in enumerate(collection.raw(start, min(start + 4096, len(collection))), start):
            try:
                content = _content(item, collection.kind)
            except OSError:
                content = str(item).encode()
            digests[i] = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    return digests


def _content(item: Any, kind: str) -> bytes:
    """What identifies an item: a row of features, a text, or size and both ends of a file."""
    if kind == "features":
        return np.ascontiguousarray(item, np.float32).tobytes()
    if kind == "text":
        return item.encode()
    with open_file(item) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(_END)
        file.seek(max(len(first), size - _END))
        return size.to_bytes(8, "little") + first + file.read()


def save_used_items(folder: Path, digests: np.ndarray, split: Split, first: Path | None = None) -> None:
    """Write RUN/items.npz.

    Args:
        folder: The run folder.
        digests: Those of the items, shape (N,).
        split: Which of them are trained on, calibrated on and tested on.
        first: Folder of the run that was continued, if there was one. What it was trained on counts, too.
    """
    parts = {TRAINING: split.train, CALIBRATION: split.calibration, "test": split.test}
    used = {name: digests[numbers] for name, numbers in parts.items()}
    if first is not None and (first / FILE).is_file():
        with np.load(first / FILE, allow_pickle=False) as stored:
            used[TRAINING] = np.union1d(used[TRAINING], stored[TRAINING])
    with writing_atomically(folder / FILE) as temporary, open(temporary, "wb") as file:
        np.savez(file, **used)


def used_as(folder: Path, digests: np.ndarray) -> list[str | None] | None:
    """What a run has used each item for: "training", "calibration" or None.

    Args:
        folder: The run folder.
        digests: Those of the items, shape (N,).

    Returns:
        One entry for each item. None for a run of an older version, which does not say what it has seen.

    Raises:
        ValueError: If the file of the run is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            seen = {name: stored[name] for name in (TRAINING, CALIBRATION)}
    except (ValueError, OSError, EOFError, KeyError) as damage:
        reject("run", str(folder), f"its {FILE} is damaged ({damage})", "restore it, or remove the file")
    trained, calibrated = (np.isin(digests, seen[name]) for name in (TRAINING, CALIBRATION))
    return [TRAINING if t else CALIBRATION if c else None for t, c in zip(trained, calibrated, strict=True)]


def marked_records(collection: Collection, used: list[str | None] | None) -> Iterator[dict[str, Any]]:
    """The records of a collection; those of items that a run has used say "used": "training" or "calibration".

    Args:
        collection: The items.
        used: From `used_as`.

    Yields:
        The record of each item.
    """
    for record, use in zip(collection.records(), used or [None] * len(collection), strict=True):
        yield record if use is None else record | {"used": use}
