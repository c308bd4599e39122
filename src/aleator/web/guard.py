"""Middleware before the API: tokens, host names, limits, and security headers."""

import asyncio
import hmac
import json
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.web.failed_tokens import FailedTokens
from aleator.web.limits import Limits
from aleator.web.problems import ProblemError, busy

COOKIE = "aleator_token"
UPLOAD_PATH = "/api/query/image"
HEALTH_PATH = "/api/health"
METRICS_PATH = "/metrics"
# The page loads everything from this server. It may not be framed, run inline scripts or send data elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Guard:
    """ASGI middleware that checks requests before any work is done for them.

    It reads the body of a request, up to a limit and in limited time. So the limits bound the memory, whatever clients
    send.

    Args:
        app: The application behind it.
        limits: Limits on requests.
        token: What a client must send, as `Authorization: Bearer` or as the cookie that `/?token=` sets. None: nothing.
        hosts: Names of this server that a request may use; None for any. A server without a token must set them.
            Otherwise a web page could reach it under a domain name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None = None, hosts: Iterable[str] | None = None):
        self._app = app
        self._limits = limits
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else frozenset(hosts)
        self._requests = self._uploads = 0
        self._failed_tokens = FailedTokens()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            await self._admit(scope, receive, send_with_headers)
        except ProblemError as problem:
            if not started:
                await _answer(send_with_headers, scope["path"], problem)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value for name, value in scope["headers"]}
        if self._hosts is not None and _host(headers.get(b"host", b"")) not in self._hosts:
            raise ProblemError(421, "this server has another name; use the address that `aleator serve` printed")
        if scope["path"] == HEALTH_PATH:
            return await self._app(scope, receive, send)
        self._require_token(scope, headers)
        if scope["path"] == METRICS_PATH:  # answered under any load, which is when it is needed
            return await self._app(scope, receive, send)
        limits, upload = self._limits, scope["path"] == UPLOAD_PATH
        if self._requests >= limits.requests or (upload and self._uploads >= limits.uploads):
            raise busy("the server is busy")
        self._requests += 1
        self._uploads += upload
        try:
            body = await self._read(receive, headers, limits.upload_bytes if upload else limits.body_bytes)
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._requests -= 1
            self._uploads -= upload

    def _require_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            return
        address = (scope.get("client") or ("",))[0]
        wait = self._failed_tokens.seconds_to_wait(address)
        if wait:
            raise ProblemError(429, "too many wrong tokens from this address; try again later", retry_after=str(wait))
        try:
            self._compare_token(scope, headers)
        except ProblemError as problem:
            if problem.status == 401 and self._has_token(scope, headers):
                self._failed_tokens.failed(address)
            elif problem.status == 303:
                self._failed_tokens.succeeded(address)
            raise
        self._failed_tokens.succeeded(address)

    @staticmethod
    def _has_token(scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether a request has a token at all. One without is no guess."""
        named = b"token=" in scope["query_string"] or COOKIE.encode() in headers.get(b"cookie", b"")
        return named or b"authorization" in headers

    def _compare_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise unless the request has the right token."""
        assert self._token is not None
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(bearer.strip(), self._token):
            return
        if hmac.compare_digest(_cookie(headers.get(b"cookie", b"")), self._token):
            return
        if scope["path"] == "/":
            in_address = parse_qs(scope["query_string"].decode("latin-1"), errors="replace").get("token", [""])[0]
            if hmac.compare_digest(in_address.encode("utf-8", "replace"), self._token):
                cookie = f"{COOKIE}={self._token.decode()}; Path=/; HttpOnly; SameSite=Lax"
                # Redirect, so that the browser's history holds the address without the token.
                raise ProblemError(303, "", location="/", set_cookie=cookie)
        way_out = "open the address with ?token= that `aleator serve` printed, or send Authorization: Bearer"
        raise ProblemError(401, f"the token is missing or wrong; {way_out}", www_authenticate="Bearer")

    async def _read(self, receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
        content_length = headers.get(b"content-length", b"0")
        too_large = ProblemError(413, f"the request has more than {most} bytes; send less", connection="close")
        if content_length.isdigit() and int(content_length[:20]) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ProblemError(400, "the connection closed before the request was complete")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ProblemError(408, "the request took too long to arrive", connection="close") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body as one message, and then further messages of the connection."""
    returned = False

    async def receive_again() -> Message:
        nonlocal returned
        if returned:
            return await receive()
        returned = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _answer(send: Send, path: str, problem: ProblemError) -> None:
    """Send an error: JSON for the API, plain text for the page."""
    api = path.startswith("/api/")
    content = json.dumps({"detail": problem.detail}) if api else problem.detail
    body = content.encode()
    content_type = b"application/json" if api else b"text/plain; charset=utf-8"
    own = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *own]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _host(header: bytes) -> str:
    """The name in a Host header, without the port; an IPv6 address without its brackets."""
    name = header.decode("latin-1").lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _cookie(header: bytes) -> bytes:
    """The token in a Cookie header; empty if there is none.

    `http.cookies` would stop at a cookie that it cannot read, and other applications on this host may set such cookies.
    """
    for part in header.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return value.strip(b'"')
    return b""
