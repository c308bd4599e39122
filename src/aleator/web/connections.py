"""Connections that wait: a client that opens many, sends its headers slowly or does not read, does not keep others out.

Uvicorn waits for the headers of a request, and for an answer to be read, as long as the client likes, and refuses new
connections when there are too many. Here headers must arrive and answers must be read in limited time, and when there
are many connections, the one that has waited longest for its client makes room.
"""

import asyncio
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

LINGER_SECONDS = 0.5  # when the server stops, for requests that are on their way on connections that wait
HEADER_SECONDS = 10.0  # for the headers of a request, from the first connection or the first byte
MOST_CONNECTIONS = 512
WRITE_SECONDS = 10.0  # in each such time a client must read a part of its answer, if there is something to read
_LEAST_READ = 32_768  # bytes of that part
_SENDING = 2**18  # bytes of answers that the system holds for a connection; its own limit is 4 MB
_CROWD = 384  # with more connections than this, waiting ones make room
_MOST_UNREAD = 64  # answers that wait to be read; below the requests at a time (`Limits`), so that some are left
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: the system too forgets what was not sent


class StoppableState(ServerState):
    """What the connections of a server share, with whether it stops.

    Uvicorn tells those that it has at that moment. One that was accepted just before is made afterwards.
    """

    stopping = False


class PatientProtocol(H11Protocol):
    """HTTP/1.1 for uvicorn: `uvicorn.Config(http=PatientProtocol)`."""

    header_seconds, write_seconds = HEADER_SECONDS, WRITE_SECONDS
    crowd, most_unread = _CROWD, _MOST_UNREAD
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _since: float = 0.0
    _stopping = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing pauses as soon as something is left to be read
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)
        self._since = self.loop.time()
        self._watch()
        waiting = [one for one in self._others() if one._waits() or one._unread()]
        self._make_room(waiting, len(self.connections) - self.crowd)
        if isinstance(self.server_state, StoppableState) and self.server_state.stopping:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stop_write_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._since = self.loop.time()
        self._expect_reading()
        unread = [one for one in self._others() if one._unread()]
        self._make_room(unread, len(unread) + 1 - self.most_unread)

    def resume_writing(self) -> None:
        self._stop_write_deadline()
        self._since = self.loop.time()
        super().resume_writing()

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

    def _unread(self) -> bool:
        """Whether a part of an answer waits for the client to read."""
        return self._write_deadline is not None

    def _expect_reading(self) -> None:
        left = self.transport.get_write_buffer_size() - _LEAST_READ
        self._write_deadline = self.loop.call_later(self.write_seconds, self._check_reading, left)

    def _check_reading(self, most: int) -> None:
        if self.transport.get_write_buffer_size() <= most:
            self._expect_reading()
        else:
            self._close()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _others(self) -> "list[PatientProtocol]":
        return [one for one in self.connections if isinstance(one, PatientProtocol) and one is not self]

    @staticmethod
    def _make_room(waiting: "list[PatientProtocol]", count: int) -> None:
        for one in sorted(waiting, key=lambda one: one._since)[: max(0, count)]:
            one._close()

    def _close(self) -> None:
        # At once, not when the loop comes to it: many may arrive in one turn, and uvicorn answers 503 above its limit.
        self.connections.discard(self)
        if self._unread():
            self._stop_write_deadline()
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
