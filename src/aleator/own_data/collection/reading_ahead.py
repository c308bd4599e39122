"""Go through many items a span at a time, while threads load what comes next."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

BATCH_SIZES = {"images": 64, "features": 4096, "text": 64}  # items of each kind that go through a network together

_Item = TypeVar("_Item")
_Loaded = TypeVar("_Loaded")


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
