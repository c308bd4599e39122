"""What a client is told when its request cannot be answered."""


class ProblemError(Exception):
    """A status, a sentence with the way out, and headers for HTTP."""

    def __init__(self, status: int, detail: str, **headers: str):
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def busy(detail: str) -> ProblemError:
    """The one answer of the 500s that a client may get: try again."""
    return ProblemError(503, f"{detail}; try again in a second", retry_after="1")
