"""How much one server takes on at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Beyond `requests` or `uploads` under way at once, a server answers 503 and asks to try again."""

    upload_bytes: int = 16 * 2**20
    body_bytes: int = 2**20  # of JSON
    pixels: int = 25_000_000  # of an image; 75 MB when decoded
    stored_bytes: int = 64 * 2**20  # of an image of the collection
    requests: int = 128
    uploads: int = 8
    workers: int = 2  # threads that search, embed and decode
    patience: float = 30.0  # seconds for a body to arrive
