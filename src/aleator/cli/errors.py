"""How the command line reports errors."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.text import Text

from aleator.foundation import redacted


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Print errors about arguments and files as one line on standard error, without a traceback; exit with code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(Text(redacted(str(error)), style="red"))
        raise typer.Exit(2) from None
