"""Outputs of a network for a whole collection, streamed to a file of rows.

Memory use does not grow with the collection, and work that was stopped is resumed. A `RowFile` only grows. Whenever a
process is killed, the file holds complete rows and at most a part of one more, which the next process removes.
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
from aleator.foundation import CountBar
from aleator.own_data.collection import Collection

_Item = TypeVar("_Item")
_Loaded = TypeVar("_Loaded")
_SYNC_SECONDS = 5.0  # a power failure costs at most this much work


class RowFile:
    """Rows (width,) of float32, appended to a file.

    The file is not written atomically, because it is resumed under its own name.

    Args:
        path: The file. If it exists, new rows follow its complete rows.
        width: Length of a row.
    """

    def __init__(self, path: Path, width: int):
        row_bytes = 4 * width
        path.touch()
        self.done = path.stat().st_size // row_bytes
        os.truncate(path, self.done * row_bytes)
        self.file = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        self.synced = time.monotonic()

    def append(self, rows: np.ndarray) -> None:
        """Append rows (n, width)."""
        self.file.write(np.ascontiguousarray(rows, dtype=np.float32).tobytes())
        self.file.flush()
        if time.monotonic() - self.synced > _SYNC_SECONDS:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()
        self.done += len(rows)

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(path: Path, width: int, at_once: int = 65_536) -> Iterator[np.ndarray]:
    """Read the rows of a `RowFile`, in blocks (n, width) of at most `at_once` rows."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, np.float32, at_once * width)):
            yield block.reshape(-1, width)


def prefetched(load: Callable[[_Item], _Loaded], items: Iterable[_Item], threads: int = 2) -> Iterator[_Loaded]:
    """Yield load(item) for each item, in order. Threads load a few items ahead.

    Threads help because image decoders and file reads release Python's global lock.
    """
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
    """Cut a range into spans (first, last + 1) of `step` numbers; the last span may be shorter."""
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


@torch.inference_mode()
def stream_rows(
    path: Path,
    width: int,
    network: nn.Module,
    as_rows: Callable[[Any], Tensor],
    inputs: Inputs,
    collection: Collection,
    span: tuple[int, int],
    *,
    title: str,
    batch_size: int,
    device: torch.device,
    threads: int = 2,
    progress: bool | None = None,
    speaks: bool = True,
) -> None:
    """Run items through a network and append its outputs to a `RowFile`; rows that are there already are kept.

    Args:
        path: The row file.
        width: Length of a row.
        network: The network. It is moved to the device.
        as_rows: Turns outputs of the network into rows (B, width).
        inputs: How items are prepared for the network.
        collection: The items.
        span: First item, and one past the last item.
        title: Title of the progress bar.
        batch_size: Number of items in a batch.
        device: Where the network runs.
        threads: Number of threads that load items ahead.
        progress: Whether to show a progress bar. None: on a terminal.
        speaks: Whether this process is the one that shows it.
    """

    def load(batch: tuple[int, int]) -> Any:
        return inputs.prepare(collection.raw(*batch))

    network.to(device).eval()
    if inputs.kind == "images":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first, last = span
    with (
        RowFile(path, width) as rows,
        CountBar(title, last - first, rows.done, progress, speaks) as bar,
    ):
        for batch in prefetched(load, spans(first + rows.done, last, batch_size), threads):
            output = as_rows(network(batch.to(device) if isinstance(batch, Tensor) else batch))
            rows.append(output.float().cpu().numpy())
            bar.advance(len(output))
