"""The command line: the only place that parses arguments and prints."""

import inspect
import warnings

import typer

from aleator.cli.audit import audit
from aleator.cli.errors import plain_output
from aleator.cli.export import export
from aleator.cli.index import index_app
from aleator.cli.own_data import embed, evaluate, rank, train
from aleator.cli.query import query
from aleator.cli.quickstart import quickstart
from aleator.cli.reproduce import reproduce
from aleator.cli.serve import serve
from aleator.foundation import visible

# Tracebacks of defects must not show the values of variables: a token or a password may be among them.
app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_show_locals=False, help="Embeddings that know what they do not know."
)
app.command("quickstart")(quickstart)
for command in (train, embed, evaluate, rank, audit, export):
    app.command(command.__name__)(command)
app.command("reproduce")(reproduce)
app.add_typer(index_app, name="index")
app.command("query")(query)
app.command("serve")(serve)
for registered in (*app.registered_commands, *index_app.registered_commands):
    # A paragraph is one line, which the terminal wraps: typer would keep the line breaks of the docstring.
    paragraphs = (inspect.getdoc(registered.callback) or "").split("\n\n")
    registered.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def main() -> None:
    """The entry point of the installed command."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {visible(str(message))}\n"
    with plain_output():
        app()
