"""Outputs of a network for a whole collection, streamed to a file of rows.

Memory use does not grow with the collection, and work that was stopped is resumed. Each row of a `RowFile` is sealed
with the item that it was made from. Whenever a process is killed, and whatever happens to the items or to the file
meanwhile, the next process makes again the batches of those rows whose seal does not hold.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.foundation import CountBar, naming_file
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.problems import Problem, stop_at
from aleator.own_data.collection.reading_ahead import prefetched, spans
from aleator.own_data.embedding.readable import prepare_readable, unreadable_items

Blocks = Iterator[tuple[np.ndarray | None, dict[int, Problem]]]
_SYNC_SECONDS = 5.0  # a power failure costs at most this much work
_AT_ONCE = 65_536  # rows read at a time


class RowFile:
    """Rows (width,) of float32 in a file, each with a seal: a hash of the row and of the digest of its item.

    The file is not written atomically, because it is resumed under its own name. So a row counts only if its seal
    holds. It does not if the row was cut short or altered, or if its item is another one by now.

    Args:
        path: The file. If it exists, new rows follow its whole rows.
        width: Length of a row.
    """

    def __init__(self, path: Path, width: int):
        self.path, self.width, self.size = path, width, _sealed(width).itemsize
        path.touch()
        self.keep(path.stat().st_size // self.size)
        self.file = open(path, "r+b")  # noqa: SIM115 (closed by `close`)
        self.synced = time.monotonic()

    def keep(self, count: int) -> None:
        """Cut off what follows the first rows."""
        os.truncate(self.path, count * self.size)
        self.done = count

    def broken(self, digests: np.ndarray) -> np.ndarray:
        """Which rows (done,) do not hold: their seals are not of these digests (n,) of the items, n >= done."""
        broken = np.zeros(self.done, bool)
        with open(self.path, "rb") as file:
            for start, stop in spans(0, self.done, _AT_ONCE):
                records = np.fromfile(file, _sealed(self.width), stop - start)
                broken[start:stop] = records["seal"] != _seals(records["row"], digests[start:stop])
        return broken

    def append(self, rows: np.ndarray, digests: np.ndarray) -> None:
        """Append rows (n, width) of the items with these digests (n,)."""
        self.write(self.done, rows, digests)
        self.done += len(rows)

    def write(self, start: int, rows: np.ndarray, digests: np.ndarray) -> None:
        """Write rows (n, width) of the items with these digests (n,), from the row `start` on."""
        records = np.empty(len(rows), _sealed(self.width))
        records["row"], records["seal"] = rows, _seals(rows, digests)
        with naming_file(self.path):
            self.file.seek(start * self.size)
            self.file.write(records.tobytes())
            self.file.flush()
        if time.monotonic() - self.synced > _SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        with naming_file(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        self.synced = time.monotonic()

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        try:
            self._sync()
        finally:
            with suppress(OSError):  # everything is on the disk, or `_sync` has said why not
                self.file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sealed(width: int) -> np.dtype:
    return np.dtype([("row", "<f4", (width,)), ("seal", "<u8")])


def _seals(rows: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """The seal (n,) of each row (n, width), made from the item with its digest (n,)."""
    whole = np.empty(len(rows), [("row", "<f4", (rows.shape[1],)), ("item", "<u8")])
    whole["row"], whole["item"] = rows, digests
    data, size = whole.tobytes(), whole.itemsize
    hashes = (hashlib.blake2b(data[i : i + size], digest_size=8).digest() for i in range(0, len(data), size))
    return np.frombuffer(b"".join(hashes), "<u8")


def map_rows(path: Path, width: int) -> np.ndarray:
    """The rows (n, width) of a `RowFile`, mapped: what is written to them stays in memory."""
    return np.memmap(path, _sealed(width), "c")["row"]


def read_rows(path: Path, width: int, at_once: int = _AT_ONCE) -> Iterator[np.ndarray]:
    """Read the rows of a `RowFile`, in blocks (n, width) of at most `at_once` rows."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, _sealed(width), at_once)):
            yield block["row"]


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
    digests: np.ndarray,
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

    Rows of items that have changed since are made again, with their batch. The row of an item that cannot be read is
    NaN. It is tried again when the work is resumed.

    Args:
        path: The row file.
        width: Length of a row.
        network: The network. It is moved to the device.
        as_rows: Turns outputs of the network into rows (B, width).
        inputs: How items are prepared for the network.
        collection: The items.
        span: First item, and one past the last item.
        digests: Those of all items, shape (N,), from before any of them is read: an item that changes later is then
            known to have changed.
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
    with RowFile(path, width) as rows:
        if rows.done < last - first:
            rows.keep(rows.done - rows.done % batch_size)  # so that the batches are those of work in one go
        done = first + rows.done
        again, problems = _to_be_made_again(rows, inputs, collection, digests, first)
        redone = [(start, stop) for start, stop in spans(first, done, batch_size) if again[start:stop].any()]
        count = sum(stop - start for start, stop in redone)
        if rows.done and speaks:
            log(f"goes on: {rows.done - count:,} of {last - first:,} items are done")
            if changed := int(again.sum()):
                log(f"{changed:,} items have changed since, or their rows are damaged: their batches are made again")
        todo, only_read = [*redone, *spans(done, last, batch_size)], strict and bool(problems)
        blocks = maker.blocks(collection, todo, strict, only_read) if elsewhere is None else elsewhere(todo, only_read)
        with CountBar(title, last - first, rows.done - count, progress, speaks) as bar:
            for (start, stop), (block, bad) in zip(todo, blocks, strict=True):
                problems |= bad
                bar.advance(stop - start)
                if block is not None and not (strict and problems):
                    write = rows.append if start >= done else partial(rows.write, start - first)
                    write(block, digests[start:stop])
    if strict:
        stop_at(list(problems.values()), len(collection))
    return problems


def _to_be_made_again(
    rows: RowFile, inputs: Inputs, collection: Collection, digests: np.ndarray, first: int
) -> tuple[np.ndarray, dict[int, Problem]]:
    """Which items (N,) have rows that must be made again, and what is wrong with those that still cannot be read.

    They have changed, or could not be read before and can be now. The file starts with the item `first`.
    """
    again = np.zeros(len(collection), bool)
    own = again[first : first + rows.done]
    own |= rows.broken(digests[first:])
    missing = [np.isnan(block[:, 0]) for block in read_rows(rows.path, rows.width)]
    numbers = first + np.flatnonzero(np.concatenate(missing) & ~own) if missing else np.empty(0, np.int64)
    problems = unreadable_items(inputs, collection, numbers)
    again[[i for i in numbers.tolist() if i not in problems]] = True
    return again, problems
