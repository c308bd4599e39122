"""`aleator serve`."""

import contextlib
import ipaddress
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from aleator.cli.errors import plain_errors
from aleator.foundation import reject, require

if TYPE_CHECKING:
    from aleator.retrieval import CredibleIndex


def serve(
    location: Annotated[str, typer.Argument(help="a folder, or postgresql://host/database#name")],
    model: Annotated[Path | None, typer.Option(help="a run folder of `aleator train`, to embed questions")] = None,
    root: Annotated[Path | None, typer.Option(help="the folder that the items' paths are relative to")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; any but loopback asks clients for a token")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 takes a free one")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="ALEATOR_TOKEN", help="that clients must show; made and printed where it is needed"),
    ] = None,
) -> None:
    """Look at a collection in the browser, and ask it over a JSON API.

    Example: aleator serve gallery/ --model run/ --root photos/

    Without --model, items of the collection and posteriors can be asked about; with it, also images, texts or features
    of your own. The API describes itself at /api/openapi.json.
    """
    with plain_errors(), contextlib.ExitStack() as opened:
        from aleator.own_data import load_run
        from aleator.web import create_app

        require(0 <= port <= 65535, "port", port, "is not a port", "pass a number up to 65535")
        listener = opened.enter_context(_listen(host, port))
        local = _is_loopback(host)
        if token is None and not local:
            token = secrets.token_urlsafe(24)
        run = None if model is None else load_run(model)
        fingerprint = None if run is None else run.fingerprint
        index = opened.enter_context(_open(location, fingerprint))
        names = {"localhost", "127.0.0.1", "::1", host.lower()} if local and token is None else None
        app = create_app(index, run=run, root=root, token=token, hosts=names)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
        console = Console(soft_wrap=True)
        console.print(Text.assemble(f"{len(index)} items at ", (address, "bold"), "  (Ctrl-C stops)"))
        _run(app, listener)


def _open(location: str, fingerprint: str | None) -> "CredibleIndex":
    from aleator.retrieval import CredibleIndex

    try:
        return CredibleIndex.open(location, fingerprint=fingerprint)
    except ImportError as missing:
        reject("location", "postgresql://...", str(missing), "pip install 'aleator[postgres]'")
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        # The address may hold a password: it is not shown.
        reject(
            "location", "postgresql://...", str(error).splitlines()[0], "check the address, and that the server runs"
        )


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the address, taken before anything is loaded: a port in use is known at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        reject("host", host, f"is no address here ({error.strerror})", "try 127.0.0.1, or 0.0.0.0 for all interfaces")
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reject("port", port, f"cannot be used on {host} ({error.strerror})", "choose another with --port, or 0 for any")
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _run(app: Any, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        limit_concurrency=512,  # connections; requests have their own, lower limit
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn ends its work first, and then passes the signal on
        uvicorn.Server(config).run(sockets=[listener])
