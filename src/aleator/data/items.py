"""Items that batches are made of: kept on a device, taken by their numbers, augmented."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from aleator.data.pixels import to_unit
from aleator.data.workers import WorkerBatches
from aleator.foundation import require, require_count

Augment = Callable[[Tensor, Generator], Tensor]

_MEMORY_SHARE = 0.8  # of a GPU's free memory that the inputs may take


@runtime_checkable
class MapDataset(Protocol):
    """A map-style dataset: item number -> tensor."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


class ItemBatches:
    """Base class of batches for `fit`, functions of the step and a random generator. It holds the items.

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        batch_size: B.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        batch_size: int,
        augment: Augment | None,
        device: str | torch.device | None,
    ):
        usable = isinstance(inputs, Tensor | MapDataset)
        problem = "neither a tensor (N, ...) nor a dataset with a length and items"
        require(usable, "inputs", type(inputs).__name__, problem, "pass torch.as_tensor(array)")
        require(len(inputs) > 0, "inputs", len(inputs), "no item", "pass at least two")
        require_count("batch_size", batch_size, "pass for example 128")
        self.inputs = _placed(inputs, device) if isinstance(inputs, Tensor) else inputs
        self.batch_size, self.augment = batch_size, augment
        # Where item numbers are drawn. `fit` puts its generator there.
        self.device = self.inputs.device if isinstance(self.inputs, Tensor) else torch.device("cpu")

    def __len__(self) -> int:
        """The number of items, N."""
        return len(self.inputs)

    @property
    def capturable(self) -> bool:
        """Whether a batch is drawn on the GPU alone, so that a CUDA graph can hold the drawing."""
        on_gpu = isinstance(self.inputs, Tensor) and self.device.type == "cuda"
        return on_gpu and (self.augment is None or getattr(self.augment, "capturable", False))

    def __call__(self, step: int, generator: Generator) -> Any:
        """Draw a batch."""
        raise NotImplementedError

    def _take(self, index: Tensor, generator: Generator) -> Tensor:
        """The items of these numbers (n,), augmented; (n, ...)."""
        if isinstance(self.inputs, Tensor):
            items = self.inputs[index]
        else:
            items = torch.stack([torch.as_tensor(self.inputs[i]) for i in index.tolist()])
        if items.dtype == torch.uint8:
            items = to_unit(items)
        return items if self.augment is None else self.augment(items, generator)

    def loader(self, workers: int = 2, seed: int = 0, rank: int = 0) -> WorkerBatches:
        """The same batches, made ahead of time by worker processes. For items that are slow to read.

        Args:
            workers: Number of processes; 0 makes the batches in this process.
            seed: Seed of the batches.
            rank: Number of this training process. Different processes get different batches.

        Returns:
            An iterable of batches for `fit`. Training that was stopped continues exactly.
        """
        return WorkerBatches(self, self.device, workers, seed, rank)


def _placed(inputs: Tensor, device: str | torch.device | None) -> Tensor:
    """The inputs on the device, if there is room for all of them."""
    if device is None:
        return inputs
    device = torch.device(device)
    if device.type == "cuda" and not inputs.is_cuda:
        free, _ = torch.cuda.mem_get_info(device)
        if inputs.numel() * inputs.element_size() > _MEMORY_SHARE * free:
            return inputs
    return inputs.to(device)
