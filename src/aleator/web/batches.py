"""Requests that arrive together are answered together: one pass of the encoder, one search, for many of them."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class _Waiting:
    key: Hashable
    item: Any
    future: "Future[Any]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batches:
    """Answers items in batches, each in one call. While a batch is answered, the next one gathers.

    Args:
        answer: Takes a key and a list of items that were submitted with it, and returns a result for each.
        most: Most items of a batch.
        window: Seconds that the first item waits for others.
        threads: Batches that are answered at a time.
        note: Called with the number of items of each batch.

    Examples:
        >>> from aleator.web.batches import Batches
        >>> batches = Batches(lambda power, numbers: [number**power for number in numbers])
        >>> batches.submit(2, 3).result()
        9
        >>> batches.close()
    """

    def __init__(
        self,
        answer: Callable[[Any, list[Any]], Sequence[Any]],
        most: int = 16,
        window: float = 0.0,
        threads: int = 1,
        note: Callable[[int], None] = lambda size: None,
    ):
        self._answer, self._most, self._window, self._threads, self._note = answer, most, window, threads, note
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._running = 0
        self._pool = self._new_pool()

    def submit(self, key: Hashable, item: Any) -> "Future[Any]":
        """Put an item into the next batch of this key.

        Args:
            key: Items of one batch have equal keys.
            item: What `answer` takes.

        Returns:
            The result of the item, later.
        """
        one = _Waiting(key, item)
        with self._changed:
            self._waiting.append(one)
            self._changed.notify_all()
            if self._running < self._threads:
                self._running += 1
                self._pool.submit(self._work)
        return one.future

    def close(self) -> None:
        """Cancel what waits. The object can be used again."""
        with self._changed:
            for one in self._waiting:
                one.future.cancel()
            self._waiting.clear()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            self._running, self._pool = 0, self._new_pool()

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="aleator-batches")

    def _work(self) -> None:
        """Answer batches until nothing waits."""
        pool = self._pool
        while True:
            with self._changed:
                batch = self._take()
                if not batch:
                    self._running -= pool is self._pool  # after `close` others count
                    return
            self._answer_all([one for one in batch if one.future.set_running_or_notify_cancel()])

    def _take(self) -> list[_Waiting]:
        """The item that has waited longest, and those with the same key; with the lock."""
        while self._waiting:
            first = self._waiting[0]
            batch = [one for one in self._waiting if one.key == first.key][: self._most]
            left = first.since + self._window - time.monotonic()
            if len(batch) == self._most or left <= 0:
                taken = set(map(id, batch))
                self._waiting = [one for one in self._waiting if id(one) not in taken]
                return batch
            self._changed.wait(left)
        return []

    def _answer_all(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            results = self._answer(batch[0].key, [one.item for one in batch])
        except BaseException as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:  # one of them may be at fault: each for itself
                for one in batch:
                    self._answer_all([one])
            return
        self._note(len(batch))
        for one, result in zip(batch, results, strict=True):
            one.future.set_result(result)
