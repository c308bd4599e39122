"""Work in several processes at the same time, which share a GPU if there is one and end with the process that asked.

A run of an experiment is many small operations. One run leaves most of a GPU idle, and uses one core of a CPU.
"""

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

import torch

from aleator.foundation import raised_on_sigterm

T = TypeVar("T")
_LOG = logging.getLogger("aleator.experiments")


def side_by_side(
    work: Callable[[T], object], items: Sequence[T], device: str, jobs: int
) -> Iterator[tuple[T, BaseException | None]]:
    """Call `work` with each item, `jobs` at a time; one job works in this process.

    Args:
        work: Can be pickled, as its items can, if there are several jobs. What it returns is not used.
        items: What to call it with, in this order.
        device: Such as "cpu" or "cuda". Several jobs on a GPU use it at the same time.
        jobs: How many at a time.

    Yields:
        Each item when its call ends, with the error that the call raised, or None. If the loop is left early, the
        workers are stopped at once.
    """
    return _in_turn(work, items) if jobs == 1 else _in_parallel(work, items, device, jobs)


def _in_turn(work: Callable[[T], object], items: Sequence[T]) -> Iterator[tuple[T, BaseException | None]]:
    for item in items:
        try:
            work(item)
        except Exception as error:
            yield item, error
        else:
            yield item, None


def _in_parallel(
    work: Callable[[T], object], items: Sequence[T], device: str, jobs: int
) -> Iterator[tuple[T, BaseException | None]]:
    stopped = SystemExit(128 + signal.SIGTERM)
    with raised_on_sigterm(stopped), shared_gpu(device), _worker_pool(jobs) as pool:
        waiting: dict[Future, T] = {pool.submit(work, item): item for item in items}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.exception()
        except BaseException:
            workers = list((pool._processes or {}).values())  # `shutdown` forgets them
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            raise


@contextlib.contextmanager
def _worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes with one thread each.

    On Linux they are copies of one process that has imported the libraries, so that not each of them has to.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["aleator.experiments.catalogue", "lightning_fabric"])
    # Libraries read OMP_NUM_THREADS when they are loaded, so it must be set before a worker starts.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(jobs, context, _start_worker, (dict(os.environ),)) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _start_worker(environment: dict[str, str]) -> None:
    """Take the parent's environment, use one thread, and end when the parent process ends.

    A copied process has the environment of the moment in which the process that it copies was started. A worker that
    outlives its parent would write where the next start writes.
    """
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def shared_gpu(device: str) -> Iterator[None]:
    """Start NVIDIA's MPS, if it is installed, so that processes use the GPU at the same time instead of in turn."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not device.startswith("cuda") or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ.update(dict.fromkeys(names, folder))
        try:
            started = subprocess.run([control, "-d"], check=False, capture_output=True, text=True)
            if started.returncode:
                message = "NVIDIA's MPS did not start (%s); the runs take turns on the GPU, which takes longer"
                _LOG.warning(message, started.stderr.strip() or f"code {started.returncode}")
            yield
        finally:
            subprocess.run([control], input=b"quit\n", check=False, capture_output=True)
            for name in names:
                del os.environ[name]
