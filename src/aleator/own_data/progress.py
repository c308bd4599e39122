"""A bar with a count and the time left, for work whose length is known."""


class CountBar:
    """Items done out of all; silent unless a person is watching."""

    def __init__(self, what: str, total: int, done: int, show: bool | None, writing: bool = True):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        visible = writing and (console.is_terminal if show is None else show)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not visible)
        self.task = self.progress.add_task(what, total=total, completed=done)

    def __enter__(self) -> "CountBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, count: int) -> None:
        self.progress.advance(self.task, count)
