"""The application: the API, the page, and the middleware before them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import aleator
from aleator.foundation import require
from aleator.retrieval import CredibleIndex
from aleator.web.api import make_router
from aleator.web.guard import COOKIE, HEALTH_PATH, Guard
from aleator.web.json_response import AsciiJSONResponse
from aleator.web.limits import Limits
from aleator.web.metrics import Metrics
from aleator.web.problems import ProblemError
from aleator.web.service import Service
from aleator.web.watching import Watching

if TYPE_CHECKING:
    from aleator.own_data import Run

SHORTEST_TOKEN = 16
_DESCRIPTION = """Search a collection of items whose embeddings know how certain they are.

A query and every item has a posterior: a direction `mu` on the sphere and a certainty `kappa`. A query is answered with
the items that it could be, each with the probability that both show the same.

An error is `{"detail": "what is wrong; how to solve it"}`. An overloaded server answers 503 with `Retry-After`."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def create_app(
    index: CredibleIndex,
    *,
    run: "Run | None" = None,
    root: str | Path | None = None,
    audit: str | Path | None = None,
    token: str | None = None,
    hosts: Iterable[str] | None = None,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """Make the web application for an index: the page and the JSON API.

    The items are read here, and again within a few seconds when items were added or removed, by this process or by
    another, as long as the application runs.

    Args:
        index: The index. It stays open; close it when the application ends.
        run: A trained model from `load_run`. It embeds uploaded images, texts or features.
        root: Folder of the images that the items' metadata name as `path`. None: no pictures.
        audit: Folder of an audit of these items, whose findings are shown. None: no findings.
        token: Token that clients must send: letters, digits, - and _, at least 16 characters. None: no token.
        hosts: Names of this server that a request may use; None for any.
        limits: Limits on requests. Default: `Limits()`.
        metrics: Where requests are counted, which `/metrics` shows. Default: numbers of this application alone.

    Returns:
        An ASGI application, for uvicorn for example.

    Raises:
        ValueError: If the model and the index have different dimensions, if there is no folder `root`, if `audit` is
            not a finished audit, or if the token is too short.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.web import create_app
        >>> from fastapi.testclient import TestClient
        >>> index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
        >>> client = TestClient(create_app(index))  # or uvicorn.run(create_app(index))
        >>> client.get("/api/item", params={"id": "x"}).json()["kappa"]
        5.0
    """
    if token is not None:
        safe = len(token) >= SHORTEST_TOKEN and token.isascii() and token.replace("-", "").replace("_", "").isalnum()
        way_out = f"use at least {SHORTEST_TOKEN} letters, digits, - and _"
        require(safe, "token", f"{len(token)} characters", "too short, or not safe in an address", way_out)
    limits = limits or Limits()
    metrics = metrics or Metrics()
    folders = [None if folder is None else Path(folder) for folder in (root, audit)]
    service = Service(index, run, folders[0], limits, folders[1], metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(service.keep_fresh())
        yield
        watch.cancel()
        service.close()

    app = FastAPI(
        title="aleator",
        version=aleator.__version__,
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its scripts come from another host
        redoc_url=None,
        default_response_class=AsciiJSONResponse,
        lifespan=lifespan,
    )
    router = make_router(service)
    app.include_router(router)
    _add_page(app)
    _add_errors(app)
    _describe_security(app, token is not None)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Guard, limits=limits, token=token, hosts=hosts)
    paths = {str(getattr(route, "path", "")) for route in (*app.routes, *router.routes)}
    app.add_middleware(Watching, metrics=metrics, paths={path for path in paths if path and "{" not in path})
    return app


class HeadAsGet:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_without_body)


def _describe_security(app: FastAPI, token: bool) -> None:
    """Say in the OpenAPI description that every route but health needs the token, if there is one."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        if not token or "security" in description:
            return description
        description.setdefault("components", {})["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "The token that `aleator serve` printed."},
            "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "Set by opening /?token=."},
        }
        description["security"] = [{"bearer": []}, {"cookie": []}]
        description["paths"][HEALTH_PATH]["get"]["security"] = []
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _add_page(app: FastAPI) -> None:
    folder = resources.files("aleator.web") / "static"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES}

    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        media_type = _TYPES[Path(name).suffix]
        return Response(files[name], media_type=media_type, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return file("page.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return file(name)


def _add_errors(app: FastAPI) -> None:
    """Answer every error with one sentence."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return AsciiJSONResponse({"detail": "the body is not JSON"}, 400)
        if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", ""):
            problem = "the body is not read as JSON; send it with the header Content-Type: application/json"
            return AsciiJSONResponse({"detail": problem}, 422)
        # pydantic also names the kinds of a union that it has tried, which are no names of fields.
        steps = [str(step) for step in first["loc"][1:] if isinstance(step, int) or step.isidentifier()]
        where, given = ".".join(steps)[:200] or "the request", first.get("input")
        shown = f" = {given!r}" if isinstance(given, str | int | float) and len(repr(given)) <= 100 else ""
        return AsciiJSONResponse({"detail": f"{where}{shown}: {first['msg']}"}, 422)

    @app.exception_handler(StarletteHTTPException)
    async def not_there(request: Request, error: StarletteHTTPException) -> Response:
        way_out = "/api/openapi.json lists the addresses and their methods"
        problems = {404: "there is no such address", 405: f"this address does not take {request.method}"}
        problem = problems.get(error.status_code)
        return AsciiJSONResponse(
            {"detail": f"{problem}; {way_out}" if problem else error.detail}, error.status_code, error.headers
        )

    @app.exception_handler(ProblemError)
    async def refused(_: Request, error: ProblemError) -> Response:
        return AsciiJSONResponse({"detail": error.detail}, error.status, error.headers)
