"""What a user sees of a mistake."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.text import Text


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """A bad argument, or a file that cannot be read or written, is a line on standard error, not a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
        raise typer.Exit(2) from None
