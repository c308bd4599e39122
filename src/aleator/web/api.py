"""The routes of the JSON API. `service.py` does the work."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from aleator.web.guard import HEALTH_PATH, METRICS_PATH, UPLOAD_PATH
from aleator.web.json_response import AsciiJSONResponse
from aleator.web.metrics import CONTENT_TYPE
from aleator.web.models import (
    Answer,
    CollectionInfo,
    FeaturesQuestion,
    Finding,
    FindingPage,
    Health,
    ItemPage,
    ItemView,
    Order,
    PosteriorQuestion,
    Problem,
    RejectCurve,
    SearchOptions,
    TextQuestion,
)
from aleator.web.problems import ProblemError
from aleator.web.served import Served
from aleator.web.service import Service

LONGEST_ID = 2048
_PIECE = 2**18  # bytes of a file that are in memory at a time
_ID = "Id of an item, as plain text or as the `key` of the item."
ItemId = Annotated[str, Query(max_length=LONGEST_ID, description=_ID)]

_REASONS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    404: "The collection does not have this.",
    408: "The body took too long to arrive.",
    409: "No model is loaded, it takes another kind of input, or the index makes no promise.",
    413: "The body, or the image in it, is too large.",
    415: "The body is not an image.",
    421: "The server has another name.",
    422: "A value is not valid.",
    429: "Too many wrong tokens came from this address. Try again after the seconds in Retry-After.",
    503: "The server is busy, or the index cannot be reached, is damaged or was replaced. Retry-After has seconds.",
}
_ALWAYS = (400, 401, 408, 413, 421, 422, 429, 503)


def _problems(*others: int) -> dict[int | str, dict[str, Any]]:
    codes = sorted({*_ALWAYS, *others})
    return {code: {"model": Problem, "description": _REASONS[code]} for code in codes}


class ItemSearchOptions(SearchOptions):
    """How to search, and about which item."""

    id: str = Field(max_length=LONGEST_ID, description=_ID)


Options = Annotated[SearchOptions, Query()]


class FileResponse(StreamingResponse):
    """Sends an open file piece by piece, and closes it: what a client does not read stays on the disk."""

    def __init__(self, file: BinaryIO, media_type: str, headers: dict[str, str]):
        self._file, left = file, file.seek(0, os.SEEK_END)
        file.seek(0)

        def pieces() -> Iterator[bytes]:
            nonlocal left
            while left > 0 and (piece := file.read(min(left, _PIECE))):
                left -= len(piece)
                yield piece

        super().__init__(pieces(), media_type=media_type, headers={**headers, "Content-Length": str(left)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def make_router(service: Service) -> APIRouter:
    """The routes. Their docstrings are the descriptions in OpenAPI."""
    router = APIRouter()
    work = service.work

    def place_of(id: str) -> tuple[Served, int]:
        """The collection of this moment, and the position of an item in it."""
        served = service.served
        position = served.collection.find(id)
        if position is None:
            problem = f"no item has the id {id[:200]!r}; an item that was added is known after a few seconds"
            raise ProblemError(404, problem)
        return served, position

    async def reply(task: Callable[..., BaseModel], *args: Any, bad: int = 422) -> Response:
        """Run a task in a worker thread, and make JSON of its result there: a long answer must not delay others."""
        try:
            return await work(lambda: AsciiJSONResponse(task(*args).model_dump()))
        except ValueError as problem:
            raise ProblemError(bad, str(problem)) from None

    async def answer(question: Awaitable[Answer]) -> Response:
        """Wait for an answer, and make JSON of it in a worker thread."""
        try:
            answered = await question
        except ValueError as problem:
            raise ProblemError(422, str(problem)) from None
        return await work(lambda: AsciiJSONResponse(answered.model_dump()))

    @router.get(HEALTH_PATH, tags=["server"])
    async def health() -> Health:
        """Whether the server runs. Needs no token, and is answered under any load."""
        return Health()

    @router.get(METRICS_PATH, include_in_schema=False)
    async def metrics() -> Response:
        """Numbers about the server, for Prometheus."""
        return Response(await asyncio.to_thread(service.metrics.render), media_type=CONTENT_TYPE)

    @router.get("/api/collection", tags=["collection"], responses=_problems())
    async def collection_info() -> CollectionInfo:
        """Size, labels and certainties of the collection, and what the model takes."""
        return await asyncio.to_thread(service.info)

    @router.get("/api/items", response_model=ItemPage, tags=["collection"], responses=_problems())
    async def items(
        order: Order = "surest",
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 48,
        label: Annotated[str | None, Query(max_length=1000)] = None,
        find: Annotated[str | None, Query(max_length=1000, description="Part of an id, in any case.")] = None,
    ) -> Response:
        """Items in order of their certainty, or as they were added, page by page."""
        served = service.served
        return await reply(served.collection.page, order, offset, limit, label, served.images, find)

    @router.get("/api/item", tags=["collection"], responses=_problems(404))
    async def item(id: ItemId) -> ItemView:
        """One item."""
        return service.item(*place_of(id))

    pictures: dict[int | str, dict[str, Any]] = {
        200: {"content": {"image/*": {}}, "description": "The picture."},
        304: {"description": "The picture that If-None-Match names is the present one."},
    }

    @router.get("/api/image", tags=["collection"], response_class=Response, responses={**_problems(404), **pictures})
    async def image(
        request: Request,
        id: ItemId,
        size: Annotated[
            int | None, Query(ge=16, le=1024, description="Longest side in pixels, for a small version.")
        ] = None,
    ) -> Response:
        """The picture of an item: the file in the root folder that its metadata name as `path`."""
        try:
            picture = await work(service.picture, *place_of(id), size, request.headers.get("if-none-match"))
        except ValueError as problem:
            raise ProblemError(404, f"no picture: {problem}") from None
        caching = {"Cache-Control": "private, max-age=3600", "ETag": picture.etag}
        if picture.data is None:  # the client has it
            return Response(status_code=304, headers=caching)
        if isinstance(picture.data, bytes):
            return Response(picture.data, media_type=picture.media_type, headers=caching)
        return FileResponse(picture.data, picture.media_type, caching)

    @router.get("/api/reject-curve", response_model=RejectCurve, tags=["collection"], responses=_problems(404))
    async def reject_curve() -> Response:
        """How often the nearest neighbour has the same label, for the most certain items."""
        return await reply(service.served.collection.reject_curve, bad=404)

    @router.get("/api/findings", response_model=FindingPage, tags=["collection"], responses=_problems(404))
    async def findings(
        kind: Finding = "label-errors",
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 48,
    ) -> Response:
        """What an audit found, the worst first, page by page."""
        return await reply(service.findings, service.served, kind, offset, limit, bad=404)

    @router.get("/api/query/item", response_model=Answer, tags=["questions"], responses=_problems(404))
    async def query_item(options: Annotated[ItemSearchOptions, Query()]) -> Response:
        """Find the other items that an item could be."""
        return await answer(service.ask_about_item(*place_of(options.id), options))

    @router.post("/api/query/posterior", response_model=Answer, tags=["questions"], responses=_problems(409))
    async def query_posterior(posterior: PosteriorQuestion, options: Options) -> Response:
        """Find the items that a posterior could be."""
        return await answer(service.ask_about_posterior(posterior, options))

    @router.post("/api/query/text", response_model=Answer, tags=["questions"], responses=_problems(409))
    async def query_text(text: TextQuestion, options: Options) -> Response:
        """Find the items that a text could be. Needs a model that takes text."""
        return await answer(service.ask_about_raw("text", text.text, options))

    @router.post("/api/query/features", response_model=Answer, tags=["questions"], responses=_problems(409))
    async def query_features(features: FeaturesQuestion, options: Options) -> Response:
        """Find the items that features could be. Needs a model that takes features."""
        return await answer(service.ask_about_raw("features", features.features, options))

    binary = {"schema": {"type": "string", "format": "binary"}}
    upload = {
        "required": True,
        "content": {media_type: binary for media_type in ("application/octet-stream", "image/*")},
    }

    @router.post(
        UPLOAD_PATH,
        response_model=Answer,
        tags=["questions"],
        responses=_problems(409, 415),
        openapi_extra={"requestBody": upload},
    )
    async def query_image(request: Request, options: Options) -> Response:
        """Find the items that an image could be. The body is the image file. Needs a model that takes images."""
        return await answer(service.ask_about_raw("images", await request.body(), options))

    return router
