"""Tensors of all processes, with gradients back to the process each part came from."""

import torch
import torch.distributed as dist
from torch import Tensor

from aleator.foundation.checks import require


def process_count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    return dist.get_rank() if process_count() > 1 else 0


def gather_batch(tensor: Tensor, dim: int = 0) -> Tensor:
    """Concatenate a tensor of every process along its batch dimension, in the order of the ranks.

    The backward pass sums what every process's loss says of each part. Averaged over the processes, as DDP does, that
    is the gradient of the mean loss over the whole batch. Every process needs the same shape; the losses check it once.
    """
    if process_count() == 1:
        return tensor
    return _Gather.apply(tensor, dim)


def require_equal_batches(size: int, device: torch.device) -> None:
    """A batch that is smaller on one process would hang or misplace the others' negatives."""
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


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: Tensor, dim: int) -> Tensor:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(process_count())]
        dist.all_gather(parts, tensor.contiguous())
        ctx.dim, ctx.size = dim, tensor.shape[dim]
        return torch.cat(parts, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.narrow(ctx.dim, process_rank() * ctx.size, ctx.size), None
