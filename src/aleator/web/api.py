"""The routes of the JSON API. Each says what it takes and gives; `service.py` does the work."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from aleator.web.ascii import Ascii
from aleator.web.guard import HEALTH_PATH, UPLOAD_PATH
from aleator.web.models import (
    Answer,
    Ask,
    CollectionInfo,
    Features,
    Health,
    Item,
    Items,
    Order,
    Posterior,
    Problem,
    RejectCurve,
    Text,
)
from aleator.web.problems import ProblemError
from aleator.web.service import Service

LONGEST_ID = 2048
ItemId = Annotated[str, Query(max_length=LONGEST_ID, description="an id, as it is or as the `key` of an item")]

_REASONS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong",
    404: "there is no such thing in the collection",
    408: "the body took too long to arrive",
    409: "no model is loaded, or it takes another kind of item",
    413: "the body, or the image in it, is too large",
    415: "not an image",
    421: "the server does not go by this name",
    422: "a value makes no sense",
    503: "too much is under way, or the index cannot be reached; try again after the seconds in Retry-After",
}
_ALWAYS = (400, 401, 408, 413, 421, 422, 503)


def _problems(*others: int) -> dict[int | str, dict[str, Any]]:
    codes = sorted({*_ALWAYS, *others})
    return {code: {"model": Problem, "description": _REASONS[code]} for code in codes}


class AskItem(Ask):
    """How to search, and with which item."""

    id: str = Field(max_length=LONGEST_ID, description="an id, as it is or as the `key` of an item")


AskQuery = Annotated[Ask, Query()]


def make_router(service: Service) -> APIRouter:
    router = APIRouter()
    collection, work = service.collection, service.work

    def position_of(id: str) -> int:
        position = collection.find(id)
        if position is None:
            raise ProblemError(404, "no item has this id in the collection that was read when the server started")
        return position

    async def reply(task: Callable[..., BaseModel], *args: Any, bad: int = 422) -> Response:
        """What the task gives. It is written down in the same thread: a long answer must not hold up the others."""
        try:
            return await work(lambda: Ascii(task(*args).model_dump()))
        except ValueError as problem:
            raise ProblemError(bad, str(problem)) from None

    @router.get(HEALTH_PATH, tags=["server"])
    async def health() -> Health:
        """Answers as long as the server runs, without a token and under any load."""
        return Health()

    @router.get("/api/collection", tags=["collection"], responses=_problems())
    async def collection_info() -> CollectionInfo:
        """What the collection holds, and how sure it is of it."""
        return service.info

    @router.get("/api/items", response_model=Items, tags=["collection"], responses=_problems())
    async def items(
        order: Order = "surest",
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 48,
        label: Annotated[str | None, Query(max_length=1000)] = None,
    ) -> Response:
        """Items by certainty, page by page."""
        return await reply(collection.page, order, offset, limit, label, service.images)

    @router.get("/api/item", tags=["collection"], responses=_problems(404))
    async def item(id: ItemId) -> Item:
        """One item."""
        return service.item(position_of(id))

    pictures: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}, "description": "the picture"}}

    @router.get("/api/image", tags=["collection"], response_class=Response, responses={**_problems(404), **pictures})
    async def image(
        id: ItemId,
        size: Annotated[int | None, Query(ge=16, le=1024, description="longest side, for a small version")] = None,
    ) -> Response:
        """The picture of an item: the file that its metadata names as `path`, if it lies in the root folder."""
        try:
            picture = await work(service.picture, position_of(id), size)
        except ValueError as problem:
            raise ProblemError(404, f"no picture: {problem}") from None
        caching = {"Cache-Control": "private, max-age=3600"}
        return Response(picture.data, media_type=picture.media_type, headers=caching)

    @router.get("/api/reject-curve", response_model=RejectCurve, tags=["collection"], responses=_problems(404))
    async def reject_curve() -> Response:
        """How much better the surest items do: the share of them whose nearest neighbour has their label."""
        return await reply(collection.reject_curve, bad=404)

    @router.get("/api/query/item", response_model=Answer, tags=["questions"], responses=_problems(404))
    async def query_item(ask: Annotated[AskItem, Query()]) -> Response:
        """Which other items could this item be?"""
        return await reply(service.ask_about_item, position_of(ask.id), ask)

    @router.post("/api/query/posterior", response_model=Answer, tags=["questions"], responses=_problems())
    async def query_posterior(posterior: Posterior, ask: AskQuery) -> Response:
        """Which items could this posterior be?"""
        return await reply(service.ask_about_posterior, posterior, ask)

    @router.post("/api/query/text", response_model=Answer, tags=["questions"], responses=_problems(409))
    async def query_text(text: Text, ask: AskQuery) -> Response:
        """Which items could this text be? Needs a model of texts."""
        return await reply(service.ask_about_raw, "text", text.text, ask)

    @router.post("/api/query/features", response_model=Answer, tags=["questions"], responses=_problems(409))
    async def query_features(features: Features, ask: AskQuery) -> Response:
        """Which items could these features be? Needs a model of features."""
        return await reply(service.ask_about_raw, "features", features.features, ask)

    binary = {"schema": {"type": "string", "format": "binary"}}
    upload = {"required": True, "content": {kind: binary for kind in ("application/octet-stream", "image/*")}}

    @router.post(
        UPLOAD_PATH,
        response_model=Answer,
        tags=["questions"],
        responses=_problems(409, 415),
        openapi_extra={"requestBody": upload},
    )
    async def query_image(request: Request, ask: AskQuery) -> Response:
        """Which items could this image be? The body is the image file. Needs a model of images."""
        return await reply(service.ask_about_raw, "images", await request.body(), ask)

    return router
