"""Several processes under torchrun: who this one is, how it waits for the others, and which device is its own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Processes:
    """This process's number, how many there are, and a function that waits for all of them."""

    rank: int
    count: int
    wait: Callable[[], object]

    @property
    def first(self) -> bool:
        return self.rank == 0


@contextmanager
def processes() -> Iterator[Processes]:
    """One process, or those that torchrun started."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(0, 1, lambda: None)
        return
    import torch.distributed as dist

    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Processes(dist.get_rank(), count, dist.barrier)
    finally:
        if ours:
            dist.destroy_process_group()
