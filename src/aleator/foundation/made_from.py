"""The one rule for everything that is made from something.

What a thing was made from is part of its identity: a digest of each source is written with it, be it finished or not.
Whoever meets the thing again compares them with the sources as they are now. What changed is made again where it
changed, or refused by its name. So nothing that was derived is taken for current when it is not.

    model      all that decides an answer about an item: weights, preparation, calibration
    names      ids of the items, their number and order
    contents   the whole content of every item
    labels     labels of the items, or other facts about them
    settings   settings that decide the answer
    index      the items of an index

`digest` makes the digests and `changed_sources` compares them. A thing that does not say what it was made from was made
from something else.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from aleator.foundation.checks import require

# What an error says of a source that changed.
_CHANGED = {
    "model": "another run",
    "names": "other items, or items in another order",
    "contents": "items that have changed since",
    "labels": "other labels",
    "settings": "other settings",
    "index": "an index that has changed since",
}


def digest(*parts: Any) -> str:
    """A digest of some parts, each of which counts whole.

    Args:
        *parts: Texts, bytes, arrays of numpy, and whatever JSON can store.

    Returns:
        32 hexadecimal digits.

    Examples:
        >>> digest("a", "bc") == digest("ab", "c"), digest("a", {"n": 1}) == digest("a", {"n": 1})
        (False, True)
    """
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, bytes):
            kind, data = "bytes", part
        elif hasattr(part, "tobytes"):
            kind, data = f"{part.dtype.str} {part.shape}", part.tobytes()
        else:
            kind, data = "json", json.dumps(part, sort_keys=True).encode()
        total.update(f"{kind} {len(data)} ".encode() + data)
    return total.hexdigest()


def changed_sources(before: object, now: Mapping[str, str]) -> list[str] | None:
    """Which sources of a thing are no longer what it was made from.

    Args:
        before: The digests that were written with the thing, by the name of the source.
        now: The digests of the sources as they are.

    Returns:
        Names of the sources that changed, in the order of `now`. None if the thing does not say what it was made from.

    Examples:
        >>> changed_sources({"model": "a", "names": "b"}, {"model": "a", "names": "c"})
        ['names']
    """
    if not isinstance(before, Mapping) or not before.keys() >= now.keys():
        return None
    found = [name for name, value in now.items() if before[name] != value]
    return [name for name in found if name != "contents" or "names" not in found]  # which item changed is not known


def require_made_from(before: object, now: Mapping[str, str], argument: str, value: Any, way_out: str) -> None:
    """Raise unless a thing was made from the sources as they are now. The error names those that changed.

    Args:
        before: The digests that were written with the thing, by the name of the source.
        now: The digests of the sources as they are.
        argument: The argument that names the thing.
        value: Its value.
        way_out: What the user can do.

    Raises:
        ValueError: If a source changed, or the thing does not say what it was made from.

    Examples:
        >>> require_made_from({"model": "a"}, {"model": "b"}, "output", "x.safetensors", "name another")
        Traceback (most recent call last):
        aleator.foundation.checks.BadArgumentError: output = 'x.safetensors': was made from another run; name another
    """
    found = changed_sources(before, now)
    require(found is not None, argument, value, "holds something else", way_out)
    require(not found, argument, value, f"was made from {' and '.join(_CHANGED[n] for n in found or ())}", way_out)
