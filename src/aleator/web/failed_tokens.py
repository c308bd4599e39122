"""A limit on how often an address may try a wrong token."""

import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_ADDRESSES = 10_000  # remembered at a time


class FailedTokens:
    """Counts wrong tokens by address. An address that knew the token lately is not limited.

    So a guess takes time, and a person who is logged in is not kept out by someone who guesses from the same address.

    Args:
        most: Wrong tokens within the window; further ones are refused without a look.
        window: Length of the window, in seconds.
        trust: For so many seconds after a right token an address is not limited.
        clock: The time in seconds.
    """

    def __init__(
        self, most: int = 20, window: float = 60.0, trust: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ):
        self._most, self._window, self._trust, self._clock = most, window, trust, clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()  # start of the window, count
        self._known: OrderedDict[str, float] = OrderedDict()  # time of the last right token

    def seconds_to_wait(self, address: str) -> int:
        """Seconds until this address may try again; 0 if it may now."""
        now = self._clock()
        if now - self._known.get(address, -float("inf")) < self._trust:
            return 0
        start, count = self._failures.get(address, (now, 0))
        left = start + self._window - now
        return max(1, round(left)) if count >= self._most and left > 0 else 0

    def failed(self, address: str) -> None:
        """A wrong token came from this address."""
        now = self._clock()
        start, count = self._failures.pop(address, (now, 0))
        self._failures[address] = (start, count + 1) if now - start < self._window else (now, 1)
        _shorten(self._failures)

    def succeeded(self, address: str) -> None:
        """The right token came from this address."""
        self._failures.pop(address, None)
        self._known.pop(address, None)
        self._known[address] = self._clock()
        _shorten(self._known)


def _shorten(entries: "OrderedDict[str, object] | OrderedDict") -> None:
    while len(entries) > _MOST_ADDRESSES:
        entries.popitem(last=False)
