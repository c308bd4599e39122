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

if TYPE_CHECKING:
    from aleator.retrieval import CredibleIndex


def serve(
    location: Annotated[
        str,
        typer.Argument(help="the index: a folder, lance:folder/, s3://bucket/name, or postgresql://host/database#name"),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            help="run folder of `aleator train`; with it you can ask about your own images, texts or features"
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="folder of the images; the paths of the items are relative to it")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="folder of `aleator audit` for these items; its findings are shown")
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; clients need a token unless it is a loopback address")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ALEATOR_TOKEN", help="token that clients must send; if one is needed, it is made and printed"
        ),
    ] = None,
) -> None:
    """Serve a web page and a JSON API for an index.

    Example: aleator serve gallery/ --model run/ --root photos/

    /api/openapi.json describes the API.
    """
    with plain_errors(), contextlib.ExitStack() as opened:
        from aleator.foundation import require
        from aleator.own_data import load_run
        from aleator.web import create_app

        require(0 <= port <= 65535, "port", port, "is not a port", "pass a number from 0 to 65535")
        listener = opened.enter_context(_listen(host, port))
        local = _is_loopback(host)
        if token is None and not local:
            token = secrets.token_urlsafe(24)
        run = None if model is None else load_run(model)
        fingerprint = None if run is None else run.fingerprint
        index = opened.enter_context(_open(location, fingerprint))
        names = {"localhost", "127.0.0.1", "::1", host.lower()} if local and token is None else None
        app = create_app(index, run=run, root=root, audit=audit, token=token, hosts=names)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
        console = Console(soft_wrap=True)
        console.print(Text.assemble(f"{len(index)} items at ", (address, "bold"), "  (Ctrl-C stops)"))
        _run(app, listener)


def _open(location: str, fingerprint: str | None) -> "CredibleIndex":
    from aleator.retrieval import CredibleIndex

    return CredibleIndex.open(location, fingerprint=fingerprint)


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the address. This comes before everything is loaded, so that a port in use is reported at once."""
    from aleator.foundation import reject

    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        reject(
            "host",
            host,
            f"is not an address of this machine ({error.strerror})",
            "try 127.0.0.1, or 0.0.0.0 for all interfaces",
        )
    listener = socket.socket(family, socket_type, protocol)
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

    from aleator.web import MOST_CONNECTIONS, PatientProtocol

    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        log_level="warning",
        server_header=False,
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        limit_concurrency=MOST_CONNECTIONS,  # requests have a lower limit
        h11_max_incomplete_event_size=32_768,  # bytes of headers
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn stops first, and then raises the signal again
        uvicorn.Server(config).run(sockets=[listener])
