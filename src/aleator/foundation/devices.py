"""Which device a name means, and what can be used on it."""

import contextlib
from collections.abc import Iterator

import torch

from aleator.foundation.checks import require
from aleator.foundation.distributed import launched_process

_KNOWN = 'pass "cpu", "cuda", "cuda:1" or "auto"'


def resolve_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one, each process of a machine its own."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = f"cuda:{launched_process().local_rank % gpus}" if gpus else "cpu"
    kind, _, index = name.partition(":")
    number_fits = not index or (kind == "cuda" and index.isdecimal())
    require(kind in ("cpu", "cuda") and number_fits, "device", name, "not known", _KNOWN)
    require(kind == "cpu" or gpus > 0, "device", name, "there is no GPU that torch can use", 'pass "cpu"')
    require(not index or int(index) < gpus, "device", name, f"the last GPU here is cuda:{gpus - 1}", _KNOWN)
    return torch.device(name)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Networks as small as these spend their time in waking threads, the more so where other work is running."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
