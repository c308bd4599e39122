r"""Soft-target batches from a process with known posteriors: inputs, and how likely or how often each two match.

An anchor x_i chooses a match among the other inputs x_j of its group like this: an input of the group is proposed at
random, latents of both are drawn, and the kernel accepts or rejects them, until one is accepted. So x_j is chosen with
probability r(x_i, x_j) / sum_k r(x_i, x_k), which is the softmax that InfoNCE learns (docs/theory.md). Inputs follow
P(x), and each of them is an anchor and a candidate of all others. One encoding of an input then serves many choices.
"""

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from aleator.data.soft_batches import SoftBatch
from aleator.foundation import is_whole, matmul_precision, require, require_at_least
from aleator.matching import log_positivity, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch

if TYPE_CHECKING:
    from aleator.data.generative import GenerativeProcess

_TOLERANCE = 1e-8  # relative to the largest r: truncation error of the series in a weight


class SoftProcessBatches:
    """B inputs with the match weights of their pairs; `GenerativeProcess.soft_batches` makes one.

    Call it as batches(step, generator).

    Args:
        process: The process, of the family "vmf" or "point".
        batch_size: B.
        group: Number S of consecutive inputs that are compared with each other, a divisor of B. Default: all.
        choices: Number of matches that each input chooses among the others of its group. The weights count them.
            Default: the weight of a pair is r(x, x') itself, by which it would be chosen. The loss has its minimum in
            the same place, and there is no noise from the choices.

    Examples:
        >>> import torch, aleator as al
        >>> process = al.GenerativeProcess(dim=3, smoothing_steps=10, modes=2)
        >>> batch = process.soft_batches(8)(0, torch.Generator().manual_seed(0))
        >>> batch.items.shape, batch.targets.shape
        (torch.Size([8, 3]), torch.Size([8, 8]))
        >>> batch = process.soft_batches(8, group=4, choices=5)(0, torch.Generator().manual_seed(0))
        >>> batch.targets.sum(1)
        tensor([5., 5., 5., 5., 5., 5., 5., 5.])
    """

    capturable = True

    def __init__(
        self, process: "GenerativeProcess", batch_size: int, group: int | None = None, choices: int | None = None
    ):
        require_at_least("batch_size", batch_size, 2, "pass for example 512")
        problem, way_out = "r has no closed form", 'pass family="vmf" or "point", or draw pairs with `batches`'
        require(process.family in ("vmf", "point"), "family", process.family, problem, way_out)
        divides = group is None or (is_whole(group, 2) and batch_size % group == 0)
        problem = f"not a divisor of 2 or more of the batch of {batch_size}"
        require(divides, "group", group, problem, "pass for example 64, or leave it out")
        some = choices is None or choices >= 1
        require(some, "choices", choices, "an anchor without a match teaches nothing", "pass 1 or more, or None")
        self.process, self.batch_size, self.group, self.choices = process, batch_size, group, choices
        sharpest = 1.25 * process.kappa_range[1]  # kappa_range is that of 1,000 inputs; others may exceed it somewhat
        self._terms = process.kernel.terms(process.dim, _TOLERANCE, sharpest, sharpest)

    @torch.no_grad()
    @matmul_precision("highest")  # the weights must not depend on the encoder's precision
    def __call__(self, step: int = 0, generator: Generator | None = None) -> SoftBatch:
        """Draw a batch: inputs (B, D), and weights (B, S)."""
        x = self.process.inputs(self.batch_size, generator=generator)
        q = self.process.posterior(x)
        assert isinstance(q, PosteriorBatch)
        weights = self._log_positivity(q).exp()
        return SoftBatch(x, weights if self.choices is None else _counts(weights, self.choices, generator))

    def _log_positivity(self, q: PosteriorBatch) -> Tensor:
        """log r (B, S) of inputs with those of their group."""
        if self.process.family == "point":  # r is g, up to a factor
            mu = q.mode.unflatten(0, (-1, self.group or len(q)))
            return self.process.kernel.log_values(self.process.dim, mu @ mu.mT).flatten(0, 1)
        if self.group is None:
            return pairwise_log_positivity(q, q, self.process.kernel, self._terms)
        groups = q.unflatten(0, (-1, self.group))
        log_r = log_positivity(groups[:, :, None], groups[:, None, :], self.process.kernel, self._terms)
        return log_r.flatten(0, 1)


def _counts(weights: Tensor, choices: int, generator: Generator | None) -> Tensor:
    """How often each candidate is chosen, (B, S), in `choices` draws of each row by its weights; never oneself."""
    size = weights.shape[1]
    others = ~torch.eye(size, dtype=torch.bool, device=weights.device).repeat(len(weights) // size, 1)
    upper = (weights.double() * others).cumsum(1)
    u = torch.rand(len(weights), choices, generator=generator, dtype=torch.float64, device=weights.device)
    # u < 1, so the first sum above u times the total is that of a candidate with a weight above 0.
    chosen = torch.searchsorted(upper, u * upper[:, -1:], right=True).clamp_max_(size - 1)
    return torch.zeros_like(weights).scatter_add_(1, chosen, torch.ones_like(u, dtype=weights.dtype))
