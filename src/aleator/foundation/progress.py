"""Bars with an amount and the time left; silent unless a person is watching."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(
    show: bool | None, writing: bool = True, *, bytes: bool = False, loss: bool = False, elapsed: bool = False
) -> "Progress":
    """A bar on standard error, `disable`d where nobody would see it.

    Args:
        show: None means on a terminal.
        writing: whether this process is the one that speaks.
        bytes: the amount is in bytes rather than a count.
        loss, elapsed: whether to show a field `loss`, and the time so far.
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
    """Items done out of all."""

    def __init__(self, what: str, total: int, done: int, show: bool | None, writing: bool = True):
        self.progress = progress_bar(show, writing)
        self.task = self.progress.add_task(what, total=total, completed=done)

    def __enter__(self) -> "CountBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, count: int) -> None:
        self.progress.advance(self.task, count)
