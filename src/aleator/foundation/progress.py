"""Progress on standard error: a bar on a terminal, a line now and then elsewhere, such as in the log of a server."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_FIRST_LINE = 10.0  # seconds of work before the first line: short work is not worth one
_GROWTH = 1.5  # each line comes this many times later than the one before, so that a long log stays short
_LONGEST_WAIT = 300.0  # seconds between two lines


def progress_bar(
    show: bool | None, writing: bool = True, *, bytes: bool = False, loss: bool = False, elapsed: bool = False
) -> "Progress":
    """A progress bar: description, bar, amount, time left.

    Args:
        show: Whether to show it. None: on a terminal.
        writing: Whether this process shows progress. Of several processes, only the first should.
        bytes: Whether the amount is in bytes. Default: a count.
        loss: Whether to show the task field `loss`.
        elapsed: Whether to show the time since the start.

    Returns:
        A bar of rich. Its attribute `disable` is True if it is not shown.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    visible = writing and (console.is_terminal if show is None else show)
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    columns.append(DownloadColumn() if bytes else MofNCompleteColumn())
    if loss:
        columns.append(TextColumn("loss {task.fields[loss]}"))
    if elapsed:
        columns.append(TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not visible)


class ProgressLines:
    """Progress where there is no terminal: a line after ten seconds, and then less and less often.

    Args:
        what: Description of the work, such as "embedding".
        total: Number of items.
        done: Number of items that are done already.
        show: None: if there is no terminal. True and False are for bars, and mean no lines.
        writing: Whether this process shows progress.
        clock: Seconds, such as `time.monotonic`.
    """

    def __init__(
        self,
        what: str,
        total: int,
        done: int,
        show: bool | None,
        writing: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.visible = writing and show is None and not sys.stderr.isatty()
        self.what, self.total, self.first, self.clock = what, total, done, clock
        self.began = clock()
        self.wait, self.due = _FIRST_LINE, self.began + _FIRST_LINE

    def at(self, done: int, more: str = "") -> None:
        """Say how much is done, if a line is due.

        Args:
            done: Number of items that are done.
            more: More words, such as the loss.
        """
        now = self.clock()
        if not self.visible or now < self.due:
            return
        self.wait = min(_GROWTH * self.wait, _LONGEST_WAIT)
        self.due = now + self.wait
        rate = (done - self.first) / (now - self.began)
        left = f", about {duration((self.total - done) / rate)} left" if rate > 0 else ""
        share = f"{done / max(1, self.total):.0%}".replace("%", " %")
        print(f"{self.what}: {done:,} of {self.total:,} ({share}){more}{left}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time in words: "40 s", "12 min" or "3.5 h".

    Args:
        seconds: The time.

    Returns:
        The words.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class CountBar:
    """Progress of a number of items, as a context manager: a bar on a terminal, lines elsewhere.

    Args:
        what: Description of the work, such as "embedding".
        total: Number of items.
        done: Number of items that are done already.
        show: Whether to show it. None: yes, but lines only of work that takes longer than ten seconds.
        writing: Whether this process shows progress.
    """

    def __init__(self, what: str, total: int, done: int, show: bool | None, writing: bool = True):
        self.progress = progress_bar(show, writing)
        self.task = self.progress.add_task(what, total=total, completed=done)
        self.lines = ProgressLines(what, total, done, show, writing)
        self.done = done

    def __enter__(self) -> "CountBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, count: int) -> None:
        """Count `count` more items as done."""
        self.done += count
        self.progress.advance(self.task, count)
        self.lines.at(self.done)
