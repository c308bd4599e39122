"""Batches of a process with known posteriors in which every pair has its match weight."""

from typing import TYPE_CHECKING

import torch
from torch import Generator

from aleator.data.soft_batches import SoftBatch
from aleator.foundation import matmul_precision, require, require_at_least
from aleator.matching import pairwise_log_positivity
from aleator.posteriors import PosteriorBatch

if TYPE_CHECKING:
    from aleator.data.generative import GenerativeProcess

_TOLERANCE = 1e-8  # relative to the largest r: truncation error of the series in a weight


class SoftProcessBatches:
    """B inputs, and r(x, x') of every pair as its match weight; `GenerativeProcess.soft_batches` makes one.

    This is what "ratio" pairs of `PairSampler` are drawn by. The loss with these weights has its minimum in the same
    place (docs/theory.md), and no noise from drawing pairs. Call it as batches(step, generator).

    Args:
        process: The process, of the family "vmf".
        batch_size: B.

    Examples:
        >>> import torch, aleator as al
        >>> process = al.GenerativeProcess(dim=3, smoothing_steps=10, modes=2)
        >>> batch = process.soft_batches(8)(0, torch.Generator().manual_seed(0))
        >>> batch.items.shape, batch.targets.shape
        (torch.Size([8, 3]), torch.Size([8, 8]))
    """

    capturable = True

    def __init__(self, process: "GenerativeProcess", batch_size: int):
        require_at_least("batch_size", batch_size, 2, "pass for example 512")
        problem, way_out = "r has no closed form", 'pass family="vmf", or draw pairs with `batches`'
        require(process.family == "vmf", "family", process.family, problem, way_out)
        self.process, self.batch_size = process, batch_size
        sharpest = 1.25 * process.kappa_range[1]  # kappa_range is that of 1,000 inputs; others may exceed it somewhat
        self._terms = process.kernel.terms(process.dim, _TOLERANCE, sharpest, sharpest)

    @torch.no_grad()
    @matmul_precision("highest")  # the weights must not depend on the encoder's precision
    def __call__(self, step: int = 0, generator: Generator | None = None) -> SoftBatch:
        """Draw a batch."""
        x = self.process.inputs(self.batch_size, generator=generator)
        q = self.process.posterior(x)
        assert isinstance(q, PosteriorBatch)
        return SoftBatch(x, pairwise_log_positivity(q, q, self.process.kernel, self._terms).exp())
