"""Limits on what a server accepts at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on requests, images and waiting times of one server.

    Args:
        upload_bytes: Largest upload. A larger one is answered with 413.
        body_bytes: Largest body of any other request, which is JSON. A larger one is answered with 413.
        pixels: Most pixels of an uploaded or stored image; 25 megapixels take 75 MB when decoded.
        stored_bytes: Largest file of an image in the collection.
        requests: Most requests at a time. Further ones are answered with 503 and `Retry-After`.
        uploads: Most uploads at a time, likewise.
        workers: Threads that search, and as many that decode and describe.
        batch: Most questions that are encoded or searched for in one call.
        window: Seconds that a question waits for others before it is encoded.
        refresh: Seconds between two looks at the index for items that were added or removed.
        patience: Seconds within which the body of a request must arrive. Later it is answered with 408.

    Examples:
        >>> from aleator.web import Limits
        >>> Limits(upload_bytes=4 * 2**20).upload_bytes
        4194304
    """

    upload_bytes: int = 16 * 2**20
    body_bytes: int = 2**20
    pixels: int = 25_000_000
    stored_bytes: int = 64 * 2**20
    requests: int = 128
    uploads: int = 16
    workers: int = 2
    batch: int = 16
    window: float = 0.002
    refresh: float = 2.0
    patience: float = 30.0
