"""`aleator serve`: a web page and a JSON API for an index."""

import contextlib
import dataclasses
import ipaddress
import secrets
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text

from aleator.cli.errors import plain_errors
from aleator.cli.terminal import Terminal

if TYPE_CHECKING:
    from aleator.retrieval import CredibleIndex
    from aleator.web import LogFormat


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
    workers: Annotated[int, typer.Option(help="worker processes; each reads the index and the model")] = 1,
    device: Annotated[
        str, typer.Option(help="where the model runs: cpu, cuda, or auto for a GPU if there is one")
    ] = "cpu",
    log_format: Annotated[
        str, typer.Option(help="text (warnings only), or json (warnings and one line for each request)")
    ] = "text",
) -> None:
    """Serve a web page and a JSON API for an index.

    Example: aleator serve gallery/ --model run/ --root photos/

    /api/openapi.json describes the API, and /metrics has numbers for Prometheus.
    """
    with plain_errors(), contextlib.ExitStack() as opened:
        from aleator.foundation import require, require_one_of
        from aleator.web import run_workers, terminated_like_interrupted

        require(0 <= port <= 65535, "port", port, "is not a port", "pass a number from 0 to 65535")
        require(1 <= workers <= 256, "workers", workers, "is not a number of processes", "pass for example 2")
        require_one_of("log_format", log_format, ("text", "json"))
        listener = opened.enter_context(_listen(host, port))
        local = _is_loopback(host)
        if token is None and not local:
            token = secrets.token_urlsafe(24)
        names = ("localhost", "127.0.0.1", "::1", host.lower()) if local and token is None else None
        settings = _Settings(location, model, root, audit, token, names, device, log_format)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")

        def announce(items: int) -> None:
            console = Terminal(soft_wrap=True)
            console.print(Text.assemble(f"{items} items at ", (address, "bold"), "  (Ctrl-C stops)"))

        if workers > 1:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="aleator-serve-"))
            run_workers(_make_app, dataclasses.replace(settings, metrics=Path(folder)), listener, workers, announce)
            return
        with terminated_like_interrupted():
            app, index = _make_app(settings)
            opened.callback(index.close)
            announce(len(index))
            _run(app, listener)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a worker process needs to make the application."""

    location: str
    model: Path | None
    root: Path | None
    audit: Path | None
    token: str | None
    hosts: tuple[str, ...] | None
    device: str
    log_format: str
    metrics: Path | None = None


def _make_app(settings: _Settings) -> "tuple[Any, CredibleIndex]":
    """The application, and its index."""
    from aleator.foundation import require, resolve_device
    from aleator.own_data import load_run
    from aleator.web import Metrics, create_app, set_up_logs

    set_up_logs(cast("LogFormat", settings.log_format))
    there = settings.model is None or settings.model.is_dir()
    require(there, "model", str(settings.model), "there is no such folder", "name one that `aleator train` made")
    run = None if settings.model is None else load_run(settings.model, resolve_device(settings.device))
    index = _open(settings.location, None if run is None else run.fingerprint)
    try:
        app = create_app(
            index,
            run=run,
            root=settings.root,
            audit=settings.audit,
            token=settings.token,
            hosts=settings.hosts,
            metrics=Metrics(settings.metrics),
        )
    except BaseException:
        index.close()
        raise
    return app, index


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
        listener.listen(1024)
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
    from aleator.web import run_server

    run_server(app, listener)
