"""The command line: the only place that parses arguments and prints."""

import typer

from .quickstart import quickstart
from .retrieval import index_app, query

app = typer.Typer(no_args_is_help=True, help="Embeddings that know what they do not know.")
app.command("quickstart")(quickstart)
app.add_typer(index_app, name="index")
app.command("query")(query)


def main() -> None:
    """The entry point of the installed command."""
    app()
