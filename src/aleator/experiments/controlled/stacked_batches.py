"""Batches of several runs as one batch, drawn for many steps at once.

Drawing pairs takes many small kernels. Drawn for 16 steps at once, a step needs a sixteenth of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aleator.data import PairSampler, SharedNegatives
from aleator.foundation import derived_seed

STEPS = 16  # drawn at once


class StackedBatches:
    """Batches of S runs as one, in the order that `StackedEncoder` takes. For `fit`, also in a CUDA graph.

    Args:
        samplers: One for each run, alike but for their process. Each draws the pairs of `steps` batches at once.
        batch_size: B, the number of anchors in a batch of one run.
        seed: Seed of the draws.
        rolled: Whether the negative of an anchor is the positive of the pair before it in its run.
        steps: Number of steps that are drawn at once.
    """

    capturable = True

    def __init__(
        self,
        samplers: Sequence[PairSampler],
        batch_size: int,
        seed: int,
        rolled: bool = False,
        steps: int = STEPS,
    ):
        self.samplers, self.batch_size, self.device = samplers, batch_size, samplers[0].device
        self.seed, self.rolled, self.steps = seed, rolled, steps
        # Every run must have as many inputs. A draw from more candidates follows the same law.
        most = max(sampler.candidates for sampler in samplers)
        for sampler in samplers:
            sampler.candidates = most
        self._generator = torch.Generator(self.device)
        self._block: int | None = None  # number of the block of steps that is drawn
        self._drawn: list[Tensor] = []  # its batches, (steps, ...) each: a CUDA graph reads them at these addresses
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)  # number of the step in the block

    def prepare(self, step: int) -> None:
        """Draw the batches of the step's block, if they are not drawn yet. They depend on seed and block alone."""
        block, place = divmod(step, self.steps)
        if block != self._block:
            self._generator.manual_seed(derived_seed(self.seed, block))
            drawn = self._stack([sampler(0, self._generator) for sampler in self.samplers])
            if self._block is None:
                self._drawn = drawn
            else:
                for held, new in zip(self._drawn, drawn, strict=True):
                    held.copy_(new)
            self._block = block
        self._step.fill_(place)

    def __call__(self, step: int, generator: Generator | None = None) -> tuple[Any, ...]:
        """The batch of the step that was prepared: anchors (S B, D), positives (S B, D), negatives."""
        x, positive, *negative = (part.index_select(0, self._step).squeeze(0) for part in self._drawn)
        if self.rolled:
            before = torch.arange(len(x), device=self.device).view(-1, self.batch_size).roll(1, 1)
            return x, positive, SharedNegatives(positive[:0], before.view(-1, 1))
        if len(negative) == 2:
            return x, positive, SharedNegatives(*negative)
        return x, positive, *negative

    def _stack(self, batches: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """The runs' batches, drawn for all steps of a block, as tensors (steps, rows of all runs, ...)."""
        negatives = [rest[0] for _, _, *rest in batches if rest]
        parts = [[x for x, *_ in batches], [positive for _, positive, *_ in batches]]
        if negatives and isinstance(negatives[0], SharedNegatives):
            return [*map(self._by_step, [*parts, [pool for pool, _ in negatives]]), self._chosen(negatives)]
        return list(map(self._by_step, [*parts, negatives] if negatives else parts))

    def _by_step(self, runs: Sequence[Tensor]) -> Tensor:
        """Tensors (steps rows, ...), one for each run, as one tensor (steps, S rows, ...)."""
        return torch.cat([run.unflatten(0, (self.steps, -1)) for run in runs], 1)

    def _chosen(self, negatives: Sequence[SharedNegatives]) -> Tensor:
        """Numbers of the chosen negatives, (steps, S B, M), in a batch of all runs.

        A run's sampler counts from the first positive of all steps. A batch has S B positives, then S pools of P.
        """
        pool = len(negatives[0].pool) // self.steps
        first = (self.batch_size * self.steps + pool * torch.arange(self.steps, device=self.device)).view(-1, 1, 1)
        positives = self.batch_size * len(negatives)
        return torch.cat(
            [
                chosen.unflatten(0, (self.steps, -1)) - first + (positives + run * pool)
                for run, (_, chosen) in enumerate(negatives)
            ],
            1,
        )
