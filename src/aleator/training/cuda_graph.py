"""CUDA graphs: a whole training step as one launch.

A step of a small network takes about a millisecond, and launching its kernels one by one takes most of that time.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from aleator.data import CalledSource, Source
from aleator.foundation import require
from aleator.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def use_cuda_graph(recipe: Recipe, fabric: "Fabric", source: Source, loss: nn.Module) -> bool:
    """Whether a phase runs its steps as a CUDA graph.

    Args:
        recipe: Its `capture` says whether a graph is wanted, not wanted, or used where possible.
        fabric: Device and processes.
        source: Batches of the phase.
        loss: A loss may say `capturable = False`.

    Returns:
        True if a graph is possible and `recipe.capture` is not False.

    Raises:
        ValueError: If `recipe.capture` is True and a graph is not possible. The error lists the reasons.
    """
    reasons = {
        "the device is not a GPU": fabric.device.type != "cuda",
        "there are several processes": fabric.world_size > 1,
        f"the precision is {recipe.precision}": recipe.precision not in ("32", "tf32"),
        "the batches are not drawn on the device": not (isinstance(source, CalledSource) and source.capturable),
        "the loss has a kernel that is learned (pass terms, and VMFKernel)": not getattr(loss, "capturable", True),
    }
    against = [reason for reason, holds in reasons.items() if holds]
    require(
        not (recipe.capture and against),
        "capture",
        recipe.capture,
        "a CUDA graph is not possible here: " + ", ".join(against),
        "leave it out, to use a graph where that is possible",
    )
    return not against and recipe.capture is not False


class CudaGraphStep:
    """A training step that is recorded as a CUDA graph and then replayed.

    The first calls run the step as usual, because they create state that must exist before the recording: moments of
    the optimiser, tables, compiled kernels. They count as steps like all others.

    A replay repeats the recorded kernels with the recorded addresses. Everything that changes from step to step must
    therefore be on the device: the learning rate as a tensor, random numbers from the default generator or from
    `generators`. Generators may be seeded anew between steps.

    Args:
        step: Runs one step, and returns its loss on the device. It must not read anything back to the CPU.
        generators: Random generators that `step` draws from, besides the default one.
        ordinary: Number of calls before the recording.
    """

    def __init__(self, step: Callable[[], Tensor], generators: Iterable[torch.Generator] = (), ordinary: int = 3):
        self.step, self.generators, self.ordinary = step, tuple(generators), ordinary
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss: Tensor | None = None
        self.stream = torch.cuda.Stream()

    def __call__(self) -> Tensor:
        """Run one step. The loss is on the device, and the next call overwrites it."""
        if self.ordinary:
            self.ordinary -= 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                loss = self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            for generator in self.generators:
                self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.loss = self.step()
        self.graph.replay()
        assert self.loss is not None
        return self.loss
