"""Times of several ways to do one thing, taken in turn within one run, so that their ratios mean something."""

import statistics
import time
from collections.abc import Callable


def interleaved(ways: dict[str, Callable[[], object]], repeats: int = 7, warm_up: int = 1) -> dict[str, float]:
    """The median seconds of each way. Taking turns spreads a busy spell of the machine over all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(warm_up + repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if i >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(title: str, seconds: dict[str, float], floor: str) -> dict[str, float]:
    """Print each median beside its ratio to the floor, and return the ratios."""
    ratios = {name: value / seconds[floor] for name, value in seconds.items()}
    print(title)
    for name, value in seconds.items():
        print(f"  {name:34} {value * 1e3:9.1f} ms  {ratios[name]:6.2f} x")
    return ratios
