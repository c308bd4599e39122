"""Processes of one group, for tests of several ranks."""

import multiprocessing
from collections.abc import Callable

import torch.multiprocessing


def run_ranks(work: Callable[[int, str], None], folder: str, count: int) -> None:
    """Call `work(rank, folder)` in `count` processes and wait for them; an error in one of them is raised here.

    They are copies of a server process that has imported torch once. It never computes, so its copies may.
    """
    multiprocessing.set_forkserver_preload(["aleator.losses", "pytest"])
    torch.multiprocessing.start_processes(work, (folder,), nprocs=count, start_method="forkserver")
