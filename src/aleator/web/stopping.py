"""Running the application with uvicorn, and stopping it: requests under way are answered, new ones are refused."""

import contextlib
import socket
import threading
from typing import Any

import uvicorn

from aleator.foundation import raised_on_sigterm
from aleator.web.connections import MOST_CONNECTIONS, PatientProtocol, StoppableState

_BACKLOG = 1024  # connections that wait for a worker
_GRACE = 30  # seconds for requests under way; a busy server has many that wait for their turn


class _Server(uvicorn.Server):
    """Takes one connection at a time from a listener that it shares: a busy worker leaves the rest to others."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.server_state: StoppableState = StoppableState()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)  # uvicorn's number is that of connections it takes in one turn

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.server_state.stopping = True
        await super().shutdown(sockets)


def run_server(app: Any, listener: socket.socket, stop: threading.Event | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and return when all requests under way are answered.

    Args:
        app: The application.
        listener: A socket that listens.
        stop: The server also stops once this is set.
    """
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        log_config=None,
        access_log=False,  # `Watching` logs requests, without what must not be logged
        log_level="warning",
        server_header=False,
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=MOST_CONNECTIONS,  # requests have a lower limit
        h11_max_incomplete_event_size=32_768,  # bytes of headers
        backlog=1,
    )
    server = _Server(config)
    if stop is not None:
        threading.Thread(target=_stop_after, args=(stop, server), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn stops first, and then raises the signal again
        server.run(sockets=[listener])


def _stop_after(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True


def terminated_like_interrupted() -> contextlib.AbstractContextManager[None]:
    """SIGTERM as KeyboardInterrupt, so that a server that was told to stop ends like one after Ctrl-C: with code 0."""
    return raised_on_sigterm(KeyboardInterrupt())
