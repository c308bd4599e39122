"""The outermost middleware: it counts, times, names and logs requests."""

import logging
import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.web.logs import REQUESTS
from aleator.web.metrics import Metrics

REQUEST_ID = b"x-request-id"
_SAFE_ID = re.compile(rb"[\w.:-]{1,64}")
_METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"}


class Watching:
    """ASGI middleware. A request has an id: its own `X-Request-ID`, or a new one. The answer has it too.

    Logs and metrics hold the template of a path, never the path as it came or its query: these may hold a token, and
    there would be no end of them.

    Args:
        app: The application behind it.
        metrics: Where to count.
        paths: Paths without parameters that the application has.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Iterable[str]):
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)
        self._in_progress = 0
        metrics.gauge("aleator_requests_in_progress", lambda: self._in_progress)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 0
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        request_id = given if _SAFE_ID.fullmatch(given) else secrets.token_hex(8).encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (REQUEST_ID, request_id)]}
            await send(message)

        self._in_progress += 1
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._in_progress -= 1
            self._note(scope, status, request_id.decode(), time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        path = self._template(scope)
        self._metrics.count("aleator_requests_total", method=method, path=path, status=str(status))
        self._metrics.observe("aleator_request_seconds", seconds, path=path)
        if REQUESTS.isEnabledFor(logging.INFO):
            fields = {
                "request": request_id,
                "method": method,
                "path": path,
                "status": status,
                "milliseconds": round(1e3 * seconds, 2),
            }
            REQUESTS.info("request", extra={"fields": fields})

    def _template(self, scope: Scope) -> str:
        route = scope.get("route")
        if route is not None:
            return route.path
        return scope["path"] if scope["path"] in self._paths else "other"
