"""The application: the API, the page, and what stands before them."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

import aleator
from aleator.foundation import require
from aleator.retrieval import CredibleIndex
from aleator.web.api import make_router
from aleator.web.ascii import Ascii
from aleator.web.guard import Guard
from aleator.web.limits import Limits
from aleator.web.problems import ProblemError
from aleator.web.service import Service

if TYPE_CHECKING:
    from aleator.own_data import Run

SHORTEST_TOKEN = 16
_DESCRIPTION = """A collection of posteriors, and which of its items a question could be.

Errors are `{"detail": "..."}`, with the way out. Under overload the answer is 503 with `Retry-After`."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def create_app(
    index: CredibleIndex,
    *,
    run: "Run | None" = None,
    root: str | Path | None = None,
    token: str | None = None,
    hosts: Iterable[str] | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The page and the API over an index.

    Args:
        run: what `load_run` gives: it embeds uploaded images, typed text and features.
        root: the folder with the images that the items' metadata name as `path`.
        token: what clients must show; None asks for nothing.
        hosts: names by which the server may be called; None for any.
    """
    if token is not None:
        plain = len(token) >= SHORTEST_TOKEN and token.isascii() and token.replace("-", "").replace("_", "").isalnum()
        way_out = f"use at least {SHORTEST_TOKEN} letters, digits, - and _"
        require(plain, "token", f"{len(token)} characters", "too short, or not safe in an address", way_out)
    limits = limits or Limits()
    service = Service(index, run, None if root is None else Path(root), limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="aleator",
        version=aleator.__version__,
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # their scripts come from another host
        redoc_url=None,
        default_response_class=Ascii,
        lifespan=lifespan,
    )
    app.include_router(make_router(service))
    _add_page(app)
    _add_errors(app)
    app.add_middleware(Guard, limits=limits, token=token, hosts=hosts)
    return app


def _add_page(app: FastAPI) -> None:
    folder = resources.files("aleator.web") / "static"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES}

    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        kind = _TYPES[Path(name).suffix]
        return Response(files[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return file("page.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return file(name)


def _add_errors(app: FastAPI) -> None:
    """Every error is one sentence, whatever it came from."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return Ascii({"detail": "the body is not JSON"}, 400)
        where = ".".join(str(step) for step in first["loc"][1:])[:200] or "the request"
        return Ascii({"detail": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(ProblemError)
    async def refused(_: Request, error: ProblemError) -> Response:
        return Ascii({"detail": error.detail}, error.status, error.headers)
