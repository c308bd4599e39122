"""Outputs of a network for a whole collection, streamed to a file of rows.

Memory use does not grow with the collection, and work that was stopped is resumed. A `RowFile` only grows. Whenever a
process is killed, the file holds whole blocks of rows and at most a part of one more, which the next process removes.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.foundation import CountBar, naming_file
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.problems import Problem, stop_at
from aleator.own_data.collection.reading_ahead import prefetched, spans
from aleator.own_data.embedding.readable import prepare_readable, unreadable_items

_Item = TypeVar("_Item")
_Loaded = TypeVar("_Loaded")
Blocks = Iterator[tuple[np.ndarray | None, dict[int, Problem]]]
_SYNC_SECONDS = 5.0  # a power failure costs at most this much work
_CHUNK = 1 << 24  # bytes read at a time
_SUM = struct.Struct("<QI")  # length and CRC-32 of a block of rows


class RowFile:
    """Rows (width,) of float32, appended to a file.

    The file is not written atomically, because it is resumed under its own name. A second file beside it (.sums) has
    the length and the checksum of each block that was appended. What does not match is cut off and made again.

    Args:
        path: The file. If it exists, new rows follow its whole blocks.
        width: Length of a row.
    """

    def __init__(self, path: Path, width: int):
        self.done = _whole_rows(path, 4 * width)
        self.file = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        self.sums = open(_sums_of(path), "ab")  # noqa: SIM115
        self.synced = time.monotonic()

    def append(self, rows: np.ndarray) -> None:
        """Append rows (n, width)."""
        data = np.ascontiguousarray(rows, dtype=np.float32).tobytes()
        for file, part in ((self.file, data), (self.sums, _SUM.pack(len(data), zlib.crc32(data)))):
            with naming_file(file.name):
                file.write(part)
                file.flush()
        if time.monotonic() - self.synced > _SYNC_SECONDS:
            self._sync()
        self.done += len(rows)

    def _sync(self) -> None:
        for file in (self.file, self.sums):
            with naming_file(file.name):
                file.flush()
                os.fsync(file.fileno())
        self.synced = time.monotonic()

    def close(self) -> None:
        """Write everything to the disk and close the files."""
        try:
            self._sync()
        finally:
            for file in (self.file, self.sums):
                with suppress(OSError):  # everything is on the disk, or `_sync` has said why not
                    file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sums_of(path: Path) -> Path:
    return path.with_suffix(".sums")


def _whole_rows(path: Path, row_bytes: int) -> int:
    """Number of rows in the whole blocks of a row file. Whatever follows them is cut off, in both files."""
    path.touch()
    size, sums = path.stat().st_size, _sums_of(path)
    if not sums.exists() and size:  # of an older release: without checksums
        whole = size // row_bytes * row_bytes
        _renew_sums(path, whole)
        os.truncate(path, whole)
        return whole // row_bytes
    end, blocks = 0, 0
    recorded = sums.read_bytes() if sums.exists() else b""
    with open(path, "rb") as file:
        for length, crc in _SUM.iter_unpack(recorded[: len(recorded) // _SUM.size * _SUM.size]):
            if length % row_bytes or length > size - end or zlib.crc32(file.read(length)) != crc:
                break
            end, blocks = end + length, blocks + 1
    sums.touch()
    os.truncate(path, end)
    os.truncate(sums, blocks * _SUM.size)
    return end // row_bytes


def _renew_sums(path: Path, length: int) -> None:
    """Record the first bytes of a row file as one whole block, after a change in place."""
    with open(path, "rb") as file:
        crc = 0
        for start in range(0, length, _CHUNK):
            crc = zlib.crc32(file.read(min(_CHUNK, length - start)), crc)
    sums = _sums_of(path)
    sums.write_bytes(_SUM.pack(length, crc) if length else b"")  # in place: a `RowFile` appends to it


def read_rows(path: Path, width: int, at_once: int = 65_536) -> Iterator[np.ndarray]:
    """Read the rows of a `RowFile`, in blocks (n, width) of at most `at_once` rows."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, np.float32, at_once * width)):
            yield block.reshape(-1, width)


class RowMaker:
    """Runs items through a network, batch by batch: what `stream_rows` writes, here or on another machine.

    Args:
        network: The network. It is moved to the device.
        as_rows: Turns outputs of the network into rows (B, width).
        width: Length of a row.
        inputs: How items are prepared for the network.
        device: Where the network runs.
        threads: Number of threads that load items ahead.
    """

    def __init__(
        self,
        network: nn.Module,
        as_rows: Callable[[Any], Tensor],
        width: int,
        inputs: Inputs,
        device: torch.device,
        threads: int = 2,
    ):
        network.to(device).eval()
        if inputs.kind == "images":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.as_rows, self.width = network, as_rows, width
        self.inputs, self.device, self.threads = inputs, device, threads

    @torch.inference_mode()
    def compute(self, batch: Any) -> np.ndarray:
        """Rows (B, width) of a batch of prepared items."""
        outputs = self.network(batch.to(self.device) if isinstance(batch, Tensor) else batch)
        return self.as_rows(outputs).float().cpu().numpy()

    def blocks(self, collection: Collection, todo: list[tuple[int, int]], strict: bool, only_read: bool) -> Blocks:
        """Rows of spans of items, one block for each span, in order.

        Args:
            collection: The items.
            todo: Spans, each a batch: the first item, and one past the last one.
            strict: Whether nothing is computed after an item that cannot be read.
            only_read: Whether nothing is computed at all.

        Yields:
            For each span its rows (n, width), or None if they were not computed; and what is wrong with items that
            cannot be read, by their number. The row of such an item is NaN.
        """

        def load(batch: tuple[int, int]) -> tuple[Any, np.ndarray, dict[int, Problem]]:
            return prepare_readable(self.inputs, collection, *batch)

        for (start, stop), (batch, numbers, bad) in zip(todo, prefetched(load, todo, self.threads), strict=True):
            only_read = only_read or (strict and bool(bad))
            if only_read:
                yield None, bad
                continue
            block = np.full((stop - start, self.width), np.nan, np.float32)
            if batch is not None:
                block[numbers - start] = self.compute(batch)
            yield block, bad


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
    log: Callable[[str], None] = lambda line: None,
    elsewhere: Callable[[list[tuple[int, int]], bool], Blocks] | None = None,
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
        log: Called with a line if earlier work is continued.
        elsewhere: Computes the blocks on other machines: like `RowMaker.blocks`, of the spans and `only_read`.

    Returns:
        What is wrong with the items that cannot be read, by their number.

    Raises:
        ValueError: If an item cannot be read and `strict` is set. The error lists all such items.
    """

    maker = RowMaker(network, as_rows, width, inputs, device, threads)
    first, last = span
    with (
        RowFile(path, width) as rows,
        CountBar(title, last - first, rows.done, progress, speaks) as bar,
    ):
        if rows.done and speaks:
            log(f"goes on: {rows.done:,} of {last - first:,} items are done")
        problems = _mend_rows(path, width, inputs, collection, (first, first + rows.done), maker.compute)
        todo, only_read = list(spans(first + rows.done, last, batch_size)), strict and bool(problems)
        blocks = maker.blocks(collection, todo, strict, only_read) if elsewhere is None else elsewhere(todo, only_read)
        for (start, stop), (block, bad) in zip(todo, blocks, strict=True):
            problems |= bad
            bar.advance(stop - start)
            if block is not None and not (strict and problems):
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
    if len(numbers) > len(problems):
        _renew_sums(path, rows.nbytes)
    return problems
