r"""Contrastive batches for `fit` from labels or pairs: functions of the step and a random generator.

With N items of equal weight and class probabilities P(C|x), a batch of `LabelledBatches` follows

    anchor     x  ~ P(x) = 1/N
    class      c  ~ P(C|x)
    positive   x+ in proportion to P(C=c|x+)
    negative   x- ~ P(x)                              rule "marginal": what the exact loss needs
               x- in proportion to 1 - P(C=c|x-)      rule "rejected-latent": the paper's; the class is the latent

The law of pairs, P(x, x+) = 1/N sum_c P(c|x) P(c|x+) / sum_x' P(c|x'), is symmetric. A hard label is a probability
of 1. A group whose members match one another is a hard label.

`labels.py` draws the item numbers. If the inputs live on a GPU, so do its tables, and a batch is drawn without the
CPU. (`sources.py` is about something else: how training reads batches and continues after a stop.)
"""

from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor

from aleator.data.items import Augment, ItemBatches, MapDataset
from aleator.data.labels import LabelTable, as_labels, check_pairs
from aleator.data.negatives import SharedNegatives
from aleator.foundation import is_whole, require, require_one_of

Batch = tuple[Tensor, ...] | tuple[Tensor, Tensor, SharedNegatives]
ItemNumbers = tuple[Tensor, Tensor, Tensor | SharedNegatives | None]
# Two of the laws of negatives in `matching/odds.py`. "contrast" is an old name of the second.
NegativeRule = Literal["marginal", "rejected-latent", "contrast"]


class _PairedBatches(ItemBatches):
    """Base class: draws the item numbers of anchors, positives and negatives, then takes the items."""

    def draw(self, generator: Generator | None = None) -> ItemNumbers:
        """Draw the item numbers of a batch.

        Args:
            generator: Random generator on the items' device. Default: torch's own.

        Returns:
            int64 numbers of the anchors (B,), the positives (B,) and the negatives: (B, M), `SharedNegatives` whose
            pool is item numbers, or None if the batch has no negatives of its own.
        """
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> Batch:
        """Draw (anchor, positive) or (anchor, positive, negative): inputs (B, ...), (B, ...), (B, M, ...)."""
        anchor, positive, negative = self.draw(generator)
        B = len(anchor)
        numbers = [anchor, positive]
        if negative is not None:
            numbers.append(negative.pool if isinstance(negative, SharedNegatives) else negative.flatten())
        items = self._take(torch.cat(numbers), generator)
        if negative is None:
            return items[:B], items[B:]
        if isinstance(negative, SharedNegatives):
            return items[:B], items[B : 2 * B], SharedNegatives(items[2 * B :], negative.chosen)
        return items[:B], items[B : 2 * B], items[2 * B :].unflatten(0, negative.shape)


class LabelledBatches(_PairedBatches):
    """Contrastive batches from class labels: anchors, positives of the same class, and negatives.

    An anchor x is any item. Its class c is drawn from P(C|x), and its positive in proportion to P(C=c|x+).

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        labels: Whole numbers (N,), classes or groups; or probabilities (N, C), whose rows sum to 1.
        batch_size: B.
        negatives: M, the number of negatives for each anchor. With 0 the batch has none, and the loss takes the
            other anchors of the batch.
        rule: Law of the negatives. "marginal": any item. "rejected-latent": in proportion to 1 - P(C=c|x-); "contrast"
            is an old name of it.
        share_negatives: Draw M negatives once for all anchors of a class ("rejected-latent") or of the batch
            ("marginal"). The law of each anchor's negatives stays the same, and far fewer inputs are encoded.
        with_itself: Whether an item may be drawn as its own positive, as the law says. Pass False for small groups.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.

    Raises:
        ValueError: If labels do not fit the inputs, are not probabilities, or leave a class without a partner.

    Examples:
        >>> import torch, aleator as al
        >>> images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
        >>> batches = al.LabelledBatches(images, torch.tensor([0, 0, 1, 1, 2, 2]), batch_size=4, negatives=2)
        >>> anchor, positive, negative = batches(0, torch.Generator().manual_seed(0))
        >>> anchor.shape, positive.shape, negative.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4, 3, 8, 8]), torch.Size([4, 2, 3, 8, 8]))
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        labels: Any,
        batch_size: int,
        negatives: int = 0,
        *,
        rule: NegativeRule = "marginal",
        share_negatives: bool = False,
        with_itself: bool = True,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        require(is_whole(negatives, 0), "negatives", negatives, "not a whole number", "pass 0 or more")
        require_one_of("rule", rule, get_args(NegativeRule))
        if rule == "contrast":
            rule = "rejected-latent"
        if rule == "rejected-latent":
            problem = "the other anchors of a batch follow the marginal, not the rule 'rejected-latent'"
            require(negatives > 0, "negatives", negatives, problem, "pass negatives >= 1")
        labels = as_labels(labels, len(self))
        if share_negatives:
            problem = "there are none: the loss takes the other anchors, which all share"
            require(negatives > 0, "share_negatives", share_negatives, problem, "pass negatives >= 1")
        self.negatives, self.rule, self.with_itself = negatives, rule, with_itself
        self.share_negatives = share_negatives
        self.table = LabelTable(labels, self.device)
        if rule == "rejected-latent":
            self.table.require_negatives()
        if not with_itself:
            self.table.require_partners()
        elif augment is None:
            require(
                self.table.entries > self.table.classes,
                "labels",
                self.table.classes,
                "every class has one item alone, so every positive would be its own anchor",
                "pass labels that items share, or augment=",
            )

    def draw(self, generator: Generator | None = None) -> ItemNumbers:
        """Draw the item numbers of a batch.

        Args:
            generator: Random generator on the items' device. Default: torch's own.

        Returns:
            int64 numbers of the anchors (B,), the positives (B,) and the negatives: (B, M), `SharedNegatives` whose
            pool is item numbers, or None if the batch has no negatives of its own.
        """
        B, M, N = self.batch_size, self.negatives, len(self)
        anchor = torch.randint(N, (B,), generator=generator, device=self.device)
        entry = self.table.draw_entry(anchor, generator)
        positive = self.table.draw_member(entry, self.with_itself, generator)
        if not M:
            return anchor, positive, None
        class_ = self.table.class_of[entry]
        if not self.share_negatives:
            return anchor, positive, self._draw_negatives(class_, generator)
        if self.rule == "marginal":
            class_ = torch.zeros_like(class_)
        groups = torch.arange(self.table.classes if self.rule == "rejected-latent" else 1, device=self.device)
        pool = self._draw_negatives(groups, generator)  # (groups, M)
        chosen = B + class_[:, None] * M + torch.arange(M, device=self.device)
        return anchor, positive, SharedNegatives(pool.flatten(), chosen)

    def _draw_negatives(self, class_: Tensor, generator: Generator | None) -> Tensor:
        """M negatives for each of these classes (K,), by the rule; (K, M)."""
        if self.rule == "rejected-latent":
            return self.table.draw_negative(class_, self.negatives, generator)
        return torch.randint(len(self), (len(class_), self.negatives), generator=generator, device=self.device)


class PairBatches(_PairedBatches):
    """Contrastive batches from a list of matching pairs. Either member of a pair may be the anchor.

    A batch has no negatives of its own: the loss takes the other anchors. These follow the marginal of the pairs, as
    the loss needs.

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        pairs: Item numbers (P, 2), counted from 0.
        batch_size: B.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.

    Raises:
        ValueError: If a pair names an item that does not exist or, without augment, pairs an item with itself.

    Examples:
        >>> import torch, aleator as al
        >>> batches = al.PairBatches(torch.randn(10, 4), [[0, 1], [2, 3], [8, 9]], batch_size=5)
        >>> anchor, positive = batches(0, torch.Generator().manual_seed(0))
        >>> anchor.shape, positive.shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        pairs: Any,
        batch_size: int,
        *,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        pairs = check_pairs(pairs, len(self), "leave it out, or pass augment=" if augment is None else None)
        self.pairs = pairs.to(self.device)

    def draw(self, generator: Generator | None = None) -> ItemNumbers:
        """Draw the item numbers of a batch.

        Args:
            generator: Random generator on the items' device. Default: torch's own.

        Returns:
            int64 numbers of the anchors (B,) and the positives (B,), and None.
        """
        # One random number for pair and order: even numbers keep the order, odd numbers reverse it.
        number = torch.randint(2 * len(self.pairs), (self.batch_size,), generator=generator, device=self.device)
        pair, reverse = self.pairs[number // 2], number % 2
        return pair.gather(1, reverse[:, None])[:, 0], pair.gather(1, 1 - reverse[:, None])[:, 0], None
