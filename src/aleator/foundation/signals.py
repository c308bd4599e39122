"""SIGTERM: what a process does when it is told to stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def raised_on_sigterm(error: BaseException) -> Iterator[None]:
    """SIGTERM as an exception, so that everything that was started is ended on the way out.

    Only the main thread may decide what a signal does. In another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
