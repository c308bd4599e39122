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
from aleator.own_data.left_out import prepare_readable, unreadable_items
from aleator.own_data.problems import Problem, stop_at

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
    strict: bool = True,
) -> dict[int, Problem]:
    """Run items through a network and append its outputs to a `RowFile`; rows that are there already are kept.

    The row of an item that cannot be read is NaN. It is tried again when the work is resumed.

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
        strict: Whether items that cannot be read are an error. The rest is then read to the end, but not computed.

    Returns:
        What is wrong with the items that cannot be read, by their number.

    Raises:
        ValueError: If an item cannot be read and `strict` is set. The error lists all such items.
    """

    def load(batch: tuple[int, int]) -> tuple[Any, np.ndarray, dict[int, Problem]]:
        return prepare_readable(inputs, collection, *batch)

    def compute(batch: Any) -> np.ndarray:
        return as_rows(network(batch.to(device) if isinstance(batch, Tensor) else batch)).float().cpu().numpy()

    network.to(device).eval()
    if inputs.kind == "images":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first, last = span
    with (
        RowFile(path, width) as rows,
        CountBar(title, last - first, rows.done, progress, speaks) as bar,
    ):
        problems = _mend_rows(path, width, inputs, collection, (first, first + rows.done), compute)
        todo = list(spans(first + rows.done, last, batch_size))
        for (start, stop), (batch, numbers, bad) in zip(todo, prefetched(load, todo, threads), strict=True):
            problems |= bad
            bar.advance(stop - start)
            if strict and problems:
                continue
            block = np.full((stop - start, width), np.nan, np.float32)
            if batch is not None:
                block[numbers - start] = compute(batch)
            rows.append(block)
    if strict:
        stop_at(list(problems.values()), len(collection))
    return problems


def _mend_rows(
    path: Path,
    width: int,
    inputs: Inputs,
    collection: Collection,
    span: tuple[int, int],
    compute: Callable[[Any], np.ndarray],
) -> dict[int, Problem]:
    """Try again the items of rows that are NaN, which could not be read before; returns what is still wrong."""
    first, last = span
    if first == last:
        return {}
    rows = np.memmap(path, np.float32, "r+", shape=(last - first, width))
    numbers = first + np.flatnonzero(np.isnan(rows[:, 0]))
    problems = unreadable_items(inputs, collection, numbers)
    for i in numbers.tolist():
        if i not in problems:
            rows[i - first] = compute(inputs.prepare([collection.raw(i, i + 1)[0]]))[0]
    rows.flush()
    return problems
