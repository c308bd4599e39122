"""A training step as one CUDA graph: at a millisecond a step, launching kernels one by one is most of the time."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class CapturedStep:
    """Calls `step`, which must not depend on anything on the host; after a few calls, replays it as a CUDA graph.

    The first calls are ordinary ones, in which lazy state comes into being (optimiser moments, tables, kernels); they
    count as steps like any other. What changes from step to step has to live on the device: the learning rate as a
    tensor, randomness in the default generator or in `generators`, which may be seeded anew between steps.
    """

    def __init__(self, step: Callable[[], Tensor], generators: Iterable[torch.Generator] = (), ordinary: int = 3):
        self.step, self.generators, self.ordinary = step, tuple(generators), ordinary
        self.graph: torch.cuda.CUDAGraph | None = None
        self.value: Tensor | None = None
        self.stream = torch.cuda.Stream()

    def __call__(self) -> Tensor:
        """One step; the value is on the device, and the next call overwrites it."""
        if self.ordinary:
            self.ordinary -= 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                value = self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return value
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            for generator in self.generators:
                self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.value = self.step()
        self.graph.replay()
        assert self.value is not None
        return self.value
