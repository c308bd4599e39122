"""Logs of a server: lines of text or of JSON on standard error, few of each kind."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from aleator.foundation import redacted, visible

LogFormat = Literal["text", "json"]
REQUESTS = logging.getLogger("aleator.web.requests")
_LOGGERS = ("aleator", "uvicorn")
_MOST_LINES, _WINDOW = 20, 3600.0  # of one kind, in so many seconds
_MOST_KINDS = 1000


class FewOfEachKind(logging.Filter):
    """Lets a number of lines of one kind pass in each window of time. The next window says how many were left out.

    So a client that sends nonsense, or a database that is away, does not fill the disk. Lines that differ in their
    arguments are of one kind. Lines of requests all pass: who turns them on wants them.

    Args:
        most: Lines of one kind in a window.
        window: Length of the window, in seconds.
        clock: The time in seconds.
    """

    def __init__(self, most: int = _MOST_LINES, window: float = _WINDOW, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._most, self._window, self._clock = most, window, clock
        self._seen: dict[tuple[str, str], list[float]] = {}  # start of the window, number of lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == REQUESTS.name:
            return True
        kind, now = (record.name, str(record.msg)[:200]), self._clock()
        if kind not in self._seen and len(self._seen) >= _MOST_KINDS:
            self._seen.clear()
        entry = self._seen.setdefault(kind, [now, 0])
        if now - entry[0] >= self._window:
            left_out = int(entry[1] - self._most)
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
                record.args = ()
            entry[:] = [now, 0]
        entry[1] += 1
        if entry[1] == self._most:
            record.msg = f"{record.getMessage()} (more like this are left out for {self._window / 60:.0f} minutes)"
            record.args = ()
        return entry[1] <= self._most


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, logger, message, and what `extra={"fields": ...}` adds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(redacted(super().format(record)))


def set_up_logs(format: LogFormat) -> None:
    """Send warnings to standard error. With "json" also a line for each request.

    Args:
        format: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else _Text("%(levelname)s: %(message)s"))
    handler.addFilter(FewOfEachKind())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.handlers = [handler]
    REQUESTS.setLevel(logging.INFO if format == "json" else logging.WARNING)
