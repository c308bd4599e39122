"""Which items a run has seen: RUN/items.npz holds a digest of each item that it trained, calibrated or tested on.

A digest is taken from the content, so an item is known again under another name or in another collection.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import reject, writing_atomically
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import content_text
from aleator.own_data.collection.parts import Split

FILE = "items.npz"
TRAINING, CALIBRATION = "training", "calibration"


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


def learned_elsewhere(folder: Path, digests: np.ndarray) -> int:
    """How many items a run was trained on that are none of these.

    Args:
        folder: The run folder.
        digests: Those of the items, shape (N,).

    Returns:
        Their number; 0 for a run that does not say what it was trained on.
    """
    if not (folder / FILE).is_file():
        return 0
    with np.load(folder / FILE, allow_pickle=False) as stored:
        return int(np.isin(stored[TRAINING], digests, invert=True).sum())


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


def marked_records(
    collection: Collection, digests: np.ndarray, used: list[str | None] | None
) -> Iterator[dict[str, Any]]:
    """The records of a collection, each with the digest of its item as "content".

    Those of items that a run has used say "used": "training" or "calibration".

    Args:
        collection: The items.
        digests: Those of the items, shape (N,).
        used: From `used_as`.

    Yields:
        The record of each item.
    """
    rows = zip(collection.records(), digests.tolist(), used or [None] * len(collection), strict=True)
    for record, number, use in rows:
        yield record | {"content": content_text(number)} | ({} if use is None else {"used": use})
