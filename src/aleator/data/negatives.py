"""Negatives that several anchors of a batch share, so that each input is encoded once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class SharedNegatives(NamedTuple):
    """The negatives of a batch of B anchors, where anchors share some of them.

    Every input of the pool is encoded once, whatever the number of anchors that use it. A batch may hold
    SharedNegatives in the place of negatives (B, M, ...).

    Attributes:
        pool: P inputs, (P, ...).
        chosen: For each anchor the numbers of its M negatives, (B, M) int64. Numbers below B are the positives of the
            batch; B and above are the inputs of the pool.

    Examples:
        Two anchors with one negative each: the pool's only input, and the positive of the first anchor.

        >>> import torch
        >>> from aleator.data import SharedNegatives
        >>> negatives = SharedNegatives(pool=torch.randn(1, 4), chosen=torch.tensor([[2], [0]]))
        >>> batch = (torch.randn(2, 4), torch.randn(2, 4), negatives)
    """

    pool: Tensor
    chosen: Tensor


class RolledNegatives:
    """Batches of pairs with one negative for each anchor: the positive of the pair before it.

    The negatives are positives of the same batch, so nothing more is encoded.

    Args:
        pairs: Batches without negatives, such as `LabelledBatches(...)` or `GenerativeProcess.batches(...)`.

    Examples:
        >>> import torch
        >>> from aleator.data import PairBatches, RolledNegatives
        >>> pairs = PairBatches(torch.randn(10, 4), [[0, 1], [2, 3]], batch_size=3)
        >>> anchor, positive, negative = RolledNegatives(pairs)(0, torch.Generator().manual_seed(0))
        >>> negative.chosen.tolist()
        [[2], [0], [1]]
    """

    def __init__(self, pairs: Any):
        self.pairs, self.device, self.capturable = pairs, pairs.device, pairs.capturable

    def __call__(self, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor, SharedNegatives]:
        """Draw (anchor, positive, negatives)."""
        anchor, positive = self.pairs(step, generator)
        before = torch.arange(len(anchor), device=self.device).roll(1)
        return anchor, positive, SharedNegatives(positive[:0], before[:, None])
