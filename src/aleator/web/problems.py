"""Errors that a client of the server can get."""


class ProblemError(Exception):
    """A request that cannot be answered.

    Args:
        status: HTTP status.
        detail: One sentence that says what is wrong and how to solve it.
        headers: Further HTTP headers, with _ for -.
    """

    def __init__(self, status: int, detail: str, **headers: str):
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def busy(detail: str) -> ProblemError:
    """The error 503, which asks the client to try again."""
    return ProblemError(503, f"{detail}; try again in a second", retry_after="1")
