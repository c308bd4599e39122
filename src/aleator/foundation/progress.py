"""Progress bars on standard error, shown only on a terminal unless asked for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


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


class CountBar:
    """A progress bar for a number of items, as a context manager.

    Args:
        what: Description of the work, such as "embedding".
        total: Number of items.
        done: Number of items that are done already.
        show: Whether to show it. None: on a terminal.
        writing: Whether this process shows progress.
    """

    def __init__(self, what: str, total: int, done: int, show: bool | None, writing: bool = True):
        self.progress = progress_bar(show, writing)
        self.task = self.progress.add_task(what, total=total, completed=done)

    def __enter__(self) -> "CountBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, count: int) -> None:
        """Count `count` more items as done."""
        self.progress.advance(self.task, count)
