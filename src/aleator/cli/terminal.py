"""The only place that prints. Names and labels come from files: what would steer the terminal is shown as text."""

import io
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from aleator.foundation import visible, write_csv


def print_line(text: str = "") -> None:
    """Print a result on standard output."""
    print(visible(text))


def print_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table on standard output, whose cells stay as they are unless it is a terminal."""
    text = io.StringIO(newline="")
    write_csv(text, columns, rows)
    sys.stdout.write(visible(text.getvalue()) if sys.stdout.isatty() else text.getvalue())


def say(line: str, style: str = "") -> None:
    """Print a line on standard error."""
    Terminal(stderr=True, soft_wrap=True).print(Text(line, style=style))


class Terminal(Console):
    """A console of rich for tables and styled lines. Everything it shows is `visible` text."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and renderable.plain != (plain := visible(renderable.plain)):
            renderable = Text(plain, renderable.style, justify=renderable.justify, overflow=renderable.overflow)
        return super().render(renderable, options)
