"""Numbers about a server, in the text format of Prometheus.

Several worker processes share a folder. Each writes its numbers there every second and before it answers. An answer
sums the files, so every worker gives the same numbers, and counters never go back. The file of a worker that died
stays: its requests were answered.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32)
# Each family with its kind, the limits of its buckets, and its help.
FAMILIES: dict[str, tuple[str, tuple[float, ...], str]] = {
    "aleator_requests_total": ("counter", (), "Requests that were answered."),
    "aleator_request_seconds": (
        "histogram",
        _SECONDS,
        "Seconds from the headers of a request to the end of its answer.",
    ),
    "aleator_requests_in_progress": ("gauge", (), "Requests that are being answered."),
    "aleator_batch_size": ("histogram", _SIZES, "Questions that were encoded or searched for in one call."),
    "aleator_pictures_total": ("counter", (), "Small pictures, from the cache or made."),
    "aleator_collection_reads_total": ("counter", (), "How often the collection was read."),
    "aleator_collection_read_seconds_total": ("counter", (), "Seconds spent on reading the collection."),
    "aleator_items": ("gauge", (), "Items of the collection."),
    "aleator_workers": ("gauge", (), "Worker processes that run."),
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, histograms and gauges of one process.

    Args:
        folder: Folder that the workers of one server share; None for a server of one process.

    Examples:
        >>> from aleator.web.metrics import Metrics
        >>> metrics = Metrics()
        >>> metrics.count("aleator_requests_total", status="200")
        >>> print(metrics.render())
        # HELP aleator_requests_total Requests that were answered.
        # TYPE aleator_requests_total counter
        aleator_requests_total{status="200"} 1
        # HELP aleator_workers Worker processes that run.
        # TYPE aleator_workers gauge
        aleator_workers 1
        <BLANKLINE>
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, family: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._add(_series(family, labels), by)

    def observe(self, family: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            for edge in FAMILIES[family][1]:
                self._add(_series(f"{family}_bucket", {**labels, "le": f"{edge:g}"}), value <= edge)
            self._add(_series(f"{family}_bucket", {**labels, "le": "+Inf"}), 1)
            self._add(_series(f"{family}_sum", labels), value)
            self._add(_series(f"{family}_count", labels), 1)

    def gauge(self, family: str, read: Callable[[], float]) -> None:
        """Read a gauge whenever the numbers are asked for."""
        self._gauges[family] = read

    def write(self) -> None:
        """Write the numbers for the other workers."""
        if self._folder is not None:
            name = f"{os.getpid()}.json"
            with self._lock:  # one thread at a time, also for the file
                partial = self._folder / f".{name}"  # gone with the server: it need not be on the disk
                with contextlib.suppress(OSError):  # the server ends, or the disk is full: the next second tries again
                    partial.write_text(json.dumps({"counts": self._counts, "gauges": self._read_gauges()}))
                    partial.replace(self._folder / name)

    def render(self) -> str:
        """The numbers of all workers as text."""
        self.write()
        counts: dict[str, float] = {}
        own = {"aleator_workers": 1.0, **self._read_gauges()}
        if self._folder is None:
            counts = dict(self._counts)
        else:
            own |= {"aleator_workers": 0.0, "aleator_requests_in_progress": 0.0}
            for path in self._folder.glob("[0-9]*.json"):
                theirs = json.loads(path.read_text())
                for series, value in theirs["counts"].items():
                    counts[series] = counts.get(series, 0) + value
                if _runs(int(path.stem)):
                    own["aleator_workers"] += 1
                    own["aleator_requests_in_progress"] += theirs["gauges"].get("aleator_requests_in_progress", 0)
        return _text({**counts, **own})

    def _add(self, series: str, by: float) -> None:
        self._counts[series] = self._counts.get(series, 0) + by

    def _read_gauges(self) -> dict[str, float]:
        return {family: read() for family, read in self._gauges.items()}


def _series(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    named = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{named}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _text(values: dict[str, float]) -> str:
    lines = []
    for family, (kind, _, help) in FAMILIES.items():
        names = {family} | (
            {f"{family}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else set()
        )
        found = [f"{series} {value:.10g}" for series, value in values.items() if series.partition("{")[0] in names]
        if found:
            lines += [f"# HELP {family} {help}", f"# TYPE {family} {kind}", *found]
    return "\n".join(lines) + "\n"
