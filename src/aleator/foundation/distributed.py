"""Several processes, started by torchrun: which one this is, and how they exchange tensors."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from aleator.foundation.checks import require
from aleator.foundation.derivatives import Backward, Saved, with_gradient


@dataclass(frozen=True)
class LaunchedProcess:
    """This process among those that torchrun started.

    Args:
        rank: Number of this process, from 0.
        count: Number of processes on all machines.
        local_rank: Number of this process on its machine, from 0.
        local_count: Number of processes on this machine.
    """

    rank: int
    count: int
    local_rank: int
    local_count: int

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0


def launched_process() -> LaunchedProcess:
    """Read torchrun's environment variables; without torchrun there is one process.

    The processes need not be connected yet. `process_rank` and `process_count` ask a connected group instead.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    return LaunchedProcess(
        rank=int(os.environ.get("RANK", "0")),
        count=count,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_count=int(os.environ.get("LOCAL_WORLD_SIZE", count)),
    )


@dataclass(frozen=True)
class ProcessGroup:
    """Connected processes.

    Args:
        rank: Number of this process, from 0.
        count: Number of processes.
        wait: Returns when all processes have called it.
    """

    rank: int
    count: int
    wait: Callable[[], object]

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Connect the processes that torchrun started, for the length of a block.

    A connection that exists already is used, and left open afterwards.

    Yields:
        The group. Without torchrun it has one process, and `wait` returns at once.
    """
    count = launched_process().count
    if count == 1:
        yield ProcessGroup(0, 1, lambda: None)
        return
    connect = not dist.is_initialized()
    if connect:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), count, dist.barrier)
    finally:
        if connect:
            dist.destroy_process_group()


def process_count() -> int:
    """Number of connected processes; 1 if this process is alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Number of this process among the connected ones, from 0."""
    return dist.get_rank() if process_count() > 1 else 0


def gather_batch(tensor: Tensor, dim: int = 0) -> Tensor:
    """Concatenate the tensors of all processes along the batch dimension, in the order of the ranks.

    The backward pass sums the gradients of all processes' losses and returns to each process its own part. DDP then
    averages over the processes, which gives the gradient of the mean loss over the whole batch.

    Args:
        tensor: This process's part. All processes need the same shape; see `require_equal_batches`.
        dim: The batch dimension.

    Returns:
        The whole batch, the same on every process.
    """
    if process_count() == 1:
        return tensor

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(process_count())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim), (), gradient

    def gradient(grad: Tensor) -> tuple[Tensor]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return (grad.narrow(dim, process_rank() * size, size),)

    size = tensor.shape[dim]
    return with_gradient(compute, tensor)


def pass_on(tensor: Tensor) -> Tensor:
    """Give a tensor to the next process in the ring of ranks and take that of the one before. No gradients.

    Args:
        tensor: What this process gives. All processes need the same shape and dtype.

    Returns:
        What the process before gave.
    """
    count, rank = process_count(), process_rank()
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    exchange = [
        dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % count),
        dist.P2POp(dist.irecv, received, (rank - 1) % count),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return received


def require_equal_batches(size: int, device: torch.device) -> None:
    """Raise on every process unless all batches have the same size.

    With unequal sizes `gather_batch` would wait forever, or would give anchors the wrong negatives.

    Args:
        size: Batch size of this process.
        device: Where the processes exchange tensors.

    Raises:
        ValueError: If the sizes differ.
    """
    if process_count() == 1:
        return
    sizes = torch.tensor([size, -size], device=device)
    dist.all_reduce(sizes, op=dist.ReduceOp.MAX)
    largest, smallest = int(sizes[0]), -int(sizes[1])
    require(
        largest == smallest,
        "anchor",
        f"{size} items on this process, {smallest} to {largest} on all",
        "negatives from the batch need equal batches on every process",
        "drop the last, incomplete batch",
    )
