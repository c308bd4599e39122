"""What the items of a collection are: a digest of the whole content of each, and of their names."""

import hashlib
from typing import Any

import numpy as np

from aleator.foundation import CountBar, digest
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.object_store import open_file
from aleator.own_data.collection.reading_ahead import prefetched, spans

_AT_ONCE = {"images": 32, "features": 4096, "text": 4096}
_READERS = 4


def item_digests(collection: Collection, progress: bool | None = False) -> np.ndarray:
    """A number for each item that says what it is: equal items have equal numbers, under any name.

    Image files, texts and features count whole. A file that cannot be read is like no other.

    Args:
        collection: The items.
        progress: Whether to show a progress bar. None: on a terminal.

    Returns:
        Digests, shape (N,), uint64.
    """

    def read(span: tuple[int, int]) -> bytes:
        return b"".join(_digest(item, collection.kind) for item in collection.raw(*span))

    parts = []
    with CountBar("looking for changes", len(collection), 0, progress, progress is not False) as bar:
        todo = spans(0, len(collection), _AT_ONCE[collection.kind])
        # Threads wait for files; rows and texts are at hand.
        for part in prefetched(read, todo, _READERS) if collection.kind == "images" else map(read, todo):
            parts.append(part)
            bar.advance(len(part) // 8)
    return np.frombuffer(b"".join(parts), "<u8").astype(np.uint64)


def _digest(item: Any, kind: str) -> bytes:
    """The digest of a row of features, a text, or a whole file."""
    total = hashlib.blake2b(digest_size=8)
    if kind == "features":
        total.update(np.ascontiguousarray(item, np.float32).tobytes())
    elif kind == "text":
        total.update(item.encode())
    else:
        try:
            with open_file(item) as file:
                while block := file.read(1 << 20):
                    total.update(block)
        except ConnectionError:  # a store that does not answer says nothing about the item
            raise
        except OSError:  # whoever reads the image tells of it
            total.update(str(item).encode())
    return total.digest()


def content_text(number: int) -> str:
    """How records and tables write the digest of an item, as "content": 16 hexadecimal digits."""
    return f"{number:016x}"


def items_made_from(collection: Collection, digests: np.ndarray) -> dict[str, str]:
    """The digests of the sources "names" and "contents" of whatever is made from a collection; see `digest`.

    Args:
        collection: The items.
        digests: Those of the items, shape (N,).
    """
    return {"names": digest(collection.kind, collection.ids()), "contents": digest(digests)}
