"""Batches made ahead of time by worker processes."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import torch

from aleator.foundation import derived_seed, require


class WorkerBatches:
    """An endless iterable of batches that worker processes make. Its position is the number of batches taken.

    Args:
        batches: Function (step, generator) -> batch.
        device: Device of the batches' inputs. It must be the CPU.
        workers: Number of processes; 0 makes the batches in this process.
        seed: Seed of the batches.
        rank: Number of this training process.
    """

    def __init__(
        self,
        batches: Callable[[int, torch.Generator], Any],
        device: torch.device,
        workers: int,
        seed: int = 0,
        rank: int = 0,
    ):
        on_cpu = device.type == "cpu"
        require(on_cpu, "device", str(device), "worker processes read from memory", "keep the inputs on the CPU")
        require(isinstance(workers, int) and workers >= 0, "workers", workers, "not a whole number", "pass 0 or more")
        self.batches, self.workers, self.seed, self.rank = batches, workers, seed, rank
        self.taken = 0

    def __getitem__(self, step: int) -> Any:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, self.rank, step))
        return self.batches(step, generator)

    def __iter__(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        steps = _CountFrom(self.taken)
        for batch in DataLoader(self, batch_size=None, sampler=steps, num_workers=self.workers):  # type: ignore[arg-type]
            self.taken += 1
            yield batch if hasattr(batch, "_fields") else tuple(batch)  # a plain tuple comes back as a list

    def state_dict(self) -> dict[str, Any]:
        """The position, for a checkpoint."""
        return {"taken": self.taken, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that `state_dict` gave."""
        require(state["seed"] == self.seed, "seed", self.seed, f"the run began with {state['seed']}", "pass that")
        self.taken = state["taken"]


class _CountFrom:
    """A sampler that gives start, start + 1, ... without end."""

    def __init__(self, start: int):
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return count(self.start)
