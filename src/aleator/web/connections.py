"""Connections that wait: a client that opens many, or sends its headers slowly, does not keep others out.

Uvicorn waits for the headers of a request as long as the client likes, and refuses new connections when there are too
many. Here headers must arrive in limited time, and when there are many connections, the one that has waited longest
makes room.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

LINGER_SECONDS = 0.5  # when the server stops, for requests that are on their way on connections that wait
HEADER_SECONDS = 10.0  # for the headers of a request, from the first connection or the first byte
MOST_CONNECTIONS = 512
_CROWD = 384  # with more connections than this, waiting ones make room


class StoppableState(ServerState):
    """What the connections of a server share, with whether it stops.

    Uvicorn tells those that it has at that moment. One that was accepted just before is made afterwards.
    """

    stopping = False


class PatientProtocol(H11Protocol):
    """HTTP/1.1 for uvicorn: `uvicorn.Config(http=PatientProtocol)`."""

    header_seconds = HEADER_SECONDS
    crowd = _CROWD
    _deadline: asyncio.TimerHandle | None = None
    _since: float = 0.0
    _stopping = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        if len(self.connections) > self.crowd:
            waiting = [one for one in self.connections if isinstance(one, PatientProtocol) and one._waits()]
            for one in sorted(waiting, key=lambda one: one._since)[: len(self.connections) - self.crowd]:
                if one is not self:
                    one._close()
        if isinstance(self.server_state, StoppableState) and self.server_state.stopping:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False  # this request is the last
        if self._waits():
            self._watch()
        else:
            self._unwatch()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: answer the request under way, or one that comes at once, and close."""
        self._stopping = True
        if self._waits():
            self.loop.call_later(LINGER_SECONDS, self._close_if_waiting)
        else:
            super().shutdown()

    def _close_if_waiting(self) -> None:
        if self._waits() and self.transport is not None and not self.transport.is_closing():
            super().shutdown()

    def _waits(self) -> bool:
        """Whether no request is in progress: the next one has not come, or not its headers."""
        between = self.cycle is None or self.cycle.response_complete
        return between and self.conn.their_state in (h11.IDLE, h11.DONE)

    def _watch(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_seconds, self._too_late)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._waits():
            self._close()

    def _close(self) -> None:
        # At once, not when the loop comes to it: many may arrive in one turn, and uvicorn answers 503 above its limit.
        self.connections.discard(self)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()
