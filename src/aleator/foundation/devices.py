"""Devices by name, and the number of threads."""

import contextlib
from collections.abc import Iterator

import torch

from aleator.foundation.checks import require
from aleator.foundation.distributed import launched_process

_KNOWN = 'pass "cpu", "cuda", "cuda:1" or "auto"'


def resolve_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: "cpu", "cuda", "cuda:1", or "auto": a GPU if there is one. Under torchrun, "auto" gives each process of a
            machine its own GPU.

    Returns:
        The device.

    Raises:
        ValueError: If the name is not known, or if torch cannot use such a device here.

    Examples:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = f"cuda:{launched_process().local_rank % gpus}" if gpus else "cpu"
    device_type, _, index = name.partition(":")
    index_fits = not index or (device_type == "cuda" and index.isdecimal())
    require(device_type in ("cpu", "cuda") and index_fits, "device", name, "not known", _KNOWN)
    require(device_type == "cpu" or gpus > 0, "device", name, "there is no GPU that torch can use", 'pass "cpu"')
    require(not index or int(index) < gpus, "device", name, f"the last GPU here is cuda:{gpus - 1}", _KNOWN)
    return torch.device(name)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread inside a block.

    For small networks, handing work to other threads takes longer than the work itself, above all on a busy machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
