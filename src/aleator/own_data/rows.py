"""Rows of numbers from a network, streamed to a file: flat in memory, and a killed process goes on where it was.

A `RowFile` only grows. Whatever instant a process dies at, the file is a whole number of right rows and perhaps a part
of one more, which the next process cuts off.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.own_data.collection import Collection

_Item = TypeVar("_Item")
_Loaded = TypeVar("_Loaded")
_SAFE_SECONDS = 5.0  # how much work the loss of power may cost


class RowFile:
    """Rows (width,) of float32, appended to a file.

    The file is not written atomically, because it is resumed under its own name.
    """

    def __init__(self, path: Path, width: int):
        self.path, self.width = path, width
        self.row_bytes = 4 * width
        path.touch()
        whole = path.stat().st_size // self.row_bytes
        os.truncate(path, whole * self.row_bytes)
        self.file = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        self.done, self.synced = whole, time.monotonic()

    def append(self, rows: np.ndarray) -> None:
        """rows (n, width)."""
        self.file.write(np.ascontiguousarray(rows, dtype=np.float32).tobytes())
        self.file.flush()
        if time.monotonic() - self.synced > _SAFE_SECONDS:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()
        self.done += len(rows)

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(path: Path, width: int, at_once: int = 65_536) -> Iterator[np.ndarray]:
    """The rows of a finished `RowFile`, block by block."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, np.float32, at_once * width)):
            yield block.reshape(-1, width)


def prefetched(load: Callable[[_Item], _Loaded], items: Iterable[_Item], threads: int = 2) -> Iterator[_Loaded]:
    """load(item) for each item, in order, made ahead by threads; decoders and file reads let go of Python's lock."""
    waiting: deque[Future[_Loaded]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(load, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def spans(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, start + step), ... up to stop."""
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


@torch.inference_mode()
def stream(
    network: nn.Module,
    as_rows: Callable[[Any], Tensor],
    inputs: Inputs,
    collection: Collection,
    rows: RowFile,
    first: int,
    last: int,
    *,
    batch_size: int,
    device: torch.device,
    threads: int = 2,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """as_rows(network(items)) (B, width) for the items first <= i < last, appended to `rows` from where it stands."""

    def load(span: tuple[int, int]) -> Any:
        return inputs.prepare(collection.raw(*span))

    network.to(device).eval()
    if inputs.kind == "images":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for batch in prefetched(load, spans(first + rows.done, last, batch_size), threads):
        values = as_rows(network(batch.to(device) if isinstance(batch, Tensor) else batch))
        rows.append(values.float().cpu().numpy())
        advance(len(values))
