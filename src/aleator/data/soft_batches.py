r"""Batches with soft targets: items, and how likely each two of them are to match.

With class probabilities P(C|x) and the mass of a class, m_c = mean_x P(c|x), two items match with weight

    W(x, x') = sum_c P(c|x) P(c|x') / m_c.

This is the law of pairs of `LabelledBatches` divided by P(x) P(x'): the density ratio that contrastive learning is
about. So a batch gives every pair its weight, where `LabelledBatches` draws one class and one positive for each anchor.
The weights are right for every pair, so the loss has its minimum in the same place however the items are drawn
(docs/theory.md). Each item is drawn as often as any other.
"""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from aleator.data.items import Augment, ItemBatches, MapDataset
from aleator.data.labels import LabelTable, as_labels, check_pairs
from aleator.foundation import matmul_precision, require, require_one_of, without_autocast

_FEW_MATCHES = 3.0  # expected matches of an item in its batch below which partners are drawn


class SoftBatch(NamedTuple):
    """A batch of B items with the weights of all pairs, for `fit` and `ContrastiveLoss.soft`.

    Attributes:
        items: B inputs, (B, ...).
        targets: Match weights, (B, B) floats of 0 or more. The diagonal is not used.
        compared: Booleans (B, B): False where two places hold the same item, which says nothing about matches.
            None: all pairs count.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.data import SoftBatch, match_weights
        >>> x, labels = torch.randn(4, 5), torch.tensor([0, 0, 1, 1])
        >>> batch = SoftBatch(x, match_weights(labels))
        >>> encoder = al.Encoder(torch.nn.Linear(5, 8), dim=3, features=8)
        >>> result = al.fit(encoder, al.ExactInfoNCE(), [batch], al.Recipe(steps=2), device="cpu")
    """

    items: Any
    targets: Tensor
    compared: Tensor | None = None


@without_autocast
def match_weights(labels: Tensor, mass: Tensor | None = None) -> Tensor:
    """How likely each two items are to match, by their labels: sum_c P(c|i) P(c|j) / mass_c.

    Args:
        labels: Whole numbers (B,), classes or groups; or probabilities (B, C), for certain classes also as booleans or
            whole numbers.
        mass: Share of each class in the collection, (C,): the mean of its P(c|x). For whole numbers the classes are
            0, ..., C - 1. A class of mass 0 counts for nothing. Default: ones, so that the weight is the
            probability that both items are of the same class.

    Returns:
        Weights (B, B). For whole numbers: 1 / mass of the class if both items are of one class, else 0.

    Examples:
        >>> import torch
        >>> from aleator.data import match_weights
        >>> match_weights(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), mass=torch.tensor([0.75, 0.25]))
        tensor([[1.3333, 0.6667],
                [0.6667, 1.3333]])
        >>> match_weights(torch.tensor([7, 4, 7]))
        tensor([[1., 0., 1.],
                [0., 1., 0.],
                [1., 0., 1.]])
    """
    if labels.dim() == 1:
        same = (labels[:, None] == labels).to(torch.float32 if mass is None else mass.dtype)
        return same if mass is None else same / mass[labels]
    labels = labels if labels.is_floating_point() else labels.to(torch.float32 if mass is None else mass.dtype)
    with matmul_precision("highest"):
        return (labels if mass is None else (labels / mass).masked_fill(mass == 0, 0.0)) @ labels.mT


class SoftLabelBatches(ItemBatches):
    """Batches from class labels in which every pair has its match weight: `SoftBatch(items, targets, compared)`.

    The items of a batch are drawn without replacement. If fewer than about three of them would match a given item, as
    with many small groups, half of the batch are partners that are drawn for the other half.

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        labels: Whole numbers (N,), classes or groups; or probabilities (N, C), whose rows sum to 1.
        batch_size: B, the number of inputs of a batch.
        views: 2 draws every item twice, each time with its own augmentation. The two views match like two items with
            the item's labels.
        balanced: Whether weights are divided by the mass of the class, as in the law of `LabelledBatches`. False: the
            weight is the probability that both items are of one class. The two differ where classes differ in size.
            Balanced, an item of a frequent class matches many others only a little, so its kappa is small even if its
            class is certain. With False, kappa follows how certain the class is.
        partners: Whether half of the items are drawn as partners of the others. Default: where matches are few.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.

    Raises:
        ValueError: If labels do not fit the inputs, are not probabilities, or no two items match; if there are fewer
            items than a batch draws; if there are two views without augmentation.

    Examples:
        >>> import torch
        >>> from aleator.data import SoftLabelBatches
        >>> votes = torch.tensor([[1.0, 0.0], [0.8, 0.2], [0.4, 0.6], [0.0, 1.0]])
        >>> batches = SoftLabelBatches(torch.randn(4, 5), votes, batch_size=3)
        >>> batch = batches(0, torch.Generator().manual_seed(0))
        >>> batch.items.shape, batch.targets.shape
        (torch.Size([3, 5]), torch.Size([3, 3]))
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        labels: Any,
        batch_size: int,
        *,
        views: int = 1,
        balanced: bool = True,
        partners: bool | None = None,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        require(batch_size >= 2, "batch_size", batch_size, "one item has no candidates", "pass for example 128")
        require_one_of("views", views, (1, 2))
        if views == 2:
            problem, way_out = "two views of an item would be the same", "pass augment=, or views=1"
            require(augment is not None, "views", views, problem, way_out)
        labels = as_labels(labels, len(self))
        self.table = LabelTable(labels, self.device)
        problem = "every class has one item alone, so no two items match"
        some_match = views == 2 or self.table.entries > self.table.classes
        require(some_match, "labels", self.table.classes, problem, "pass labels that items share, or views=2")
        drawn = -(-batch_size // views)  # rounded up
        share = self.table.mass / len(self)
        expected = float(share.square().sum()) * (drawn - 1)
        self.partners = expected < _FEW_MATCHES if partners is None else partners
        self.views, self._drawn = views, drawn
        self._distinct = -(-drawn // 2) if self.partners else drawn
        problem, way_out = f"there are only {len(self)} items to draw from", f"pass {views * len(self)} or less"
        require(self._distinct <= len(self), "batch_size", batch_size, problem, way_out)
        self.mass = share.float() if balanced else None
        self.labels = self.table.classes_of_items() if self.table.hard else self.table.probabilities().float()

    def draw(self, generator: Generator | None = None) -> Tensor:
        """Draw the item numbers of a batch.

        Args:
            generator: Random generator on the items' device. Default: torch's own.

        Returns:
            int64 numbers (B,).
        """
        numbers = distinct_numbers(len(self), self._distinct, generator, self.device)
        if self.partners:
            entry = self.table.draw_entry(numbers, generator)
            numbers = torch.cat([numbers, self.table.draw_member(entry, False, generator)])
        return numbers[: self._drawn].repeat(self.views)[: self.batch_size]

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> SoftBatch:
        """Draw a batch: items (B, ...), their match weights (B, B), and which pairs count."""
        numbers = self.draw(generator)
        targets = match_weights(self.labels[numbers], self.mass)
        # Two places with one item and no augmentation of their own would be a trivial match.
        compared = _different(numbers) if self.partners and self.views == 1 else None
        return SoftBatch(self._take(numbers, generator), targets, compared)


class LabelRowBatches(ItemBatches):
    """Batches of items with their label rows: `SoftBatch(items, targets)`, targets (B, C). For `PrototypeLoss`.

    The items of a batch are drawn without replacement, each as often as any other.

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        labels: Whole numbers (N,), classes 0, ..., C - 1; or probabilities (N, C), whose rows sum to 1.
        batch_size: B, the number of inputs of a batch, at most N.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.

    Raises:
        ValueError: If labels do not fit the inputs or are not probabilities, or there are fewer items than a batch.

    Examples:
        >>> import torch
        >>> from aleator.data import LabelRowBatches
        >>> batches = LabelRowBatches(torch.randn(4, 5), torch.tensor([0, 1, 1, 0]), batch_size=3)
        >>> batches(0, torch.Generator().manual_seed(0)).targets.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        labels: Any,
        batch_size: int,
        *,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        labels = as_labels(labels, len(self))
        require(batch_size <= len(self), "batch_size", batch_size, f"there are {len(self)} items", "pass fewer")
        table = LabelTable(labels, self.device)  # it checks the labels
        self.shares = (table.mass / len(self)).float()
        self.labels = table.classes_of_items() if table.hard else table.probabilities().float()

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> SoftBatch:
        """Draw a batch: items (B, ...) and their label rows (B, C)."""
        numbers = distinct_numbers(len(self), self.batch_size, generator, self.device)
        return SoftBatch(self._take(numbers, generator), self.label_rows(numbers))

    def label_rows(self, numbers: Tensor) -> Tensor:
        """Labels of some items as probabilities.

        Args:
            numbers: Item numbers, shape (B,).

        Returns:
            Label rows, shape (B, C).
        """
        rows = self.labels[numbers]
        return torch.nn.functional.one_hot(rows, len(self.shares)).float() if rows.dim() == 1 else rows


class SoftPairBatches(ItemBatches):
    """Batches from a list of matching pairs, which may be graded: `SoftBatch(items, targets, compared)`.

    Pairs are drawn in proportion to their weight. Both members of each come into the batch. Two items of the batch
    match with the weight of their pair, and with 0 if they are not listed.

    Args:
        inputs: Tensor (N, ...), kept whole on `device`, or a map-style dataset that gives tensors of one shape. Bytes
            (uint8) become float32 in [0, 1] as they are drawn.
        pairs: Item numbers (P, 2), counted from 0. The weights of a pair that is listed twice are added.
        batch_size: B, the number of inputs of a batch, twice that of the pairs.
        weights: Probability to match of each pair, (P,), in (0, 1]. Default: 1.
        augment: Function (inputs, generator) -> inputs for every drawn input.
        device: Where to keep the items. Default: where they are. What does not fit on a GPU stays in memory.

    Raises:
        ValueError: If a pair names an item that does not exist or pairs an item with itself; if a weight is not in
            (0, 1]; if `batch_size` is odd or less than 4.

    Examples:
        >>> import torch
        >>> from aleator.data import SoftPairBatches
        >>> batches = SoftPairBatches(torch.randn(10, 4), [[0, 1], [2, 3], [8, 9]], 4, weights=[1.0, 0.5, 0.9])
        >>> batches(0, torch.Generator().manual_seed(0)).targets.shape
        torch.Size([4, 4])
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        pairs: Any,
        batch_size: int,
        *,
        weights: Any = None,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        fits = batch_size >= 4 and batch_size % 2 == 0
        require(fits, "batch_size", batch_size, "not two pairs or more", "pass an even number, for example 128")
        N = len(self)
        pairs = check_pairs(pairs, N, "leave it out")
        w = torch.ones(len(pairs)) if weights is None else torch.as_tensor(weights)
        way_out = "pass one weight for each pair"
        require(w.shape == (len(pairs),), "weights", tuple(w.shape), f"there are {len(pairs)} pairs", way_out)
        w = w.double()
        require((w > 0) & (w <= 1), "weights", w, "not a probability in (0, 1]", "leave out pairs that do not match")
        # Both orders of each pair as one number, sorted for look-up.
        both = torch.cat([pairs[:, 0] * N + pairs[:, 1], pairs[:, 1] * N + pairs[:, 0]])
        keys, place = both.unique(return_inverse=True)
        weight = torch.zeros(len(keys), dtype=torch.float64).index_add_(0, place, w.repeat(2))
        self.pairs, self._weight_to = pairs.to(self.device), w.cumsum(0).to(self.device)
        self._keys, self._weight = keys.to(self.device), weight.float().to(self.device)

    def draw(self, generator: Generator | None = None) -> Tensor:
        """Draw the item numbers of a batch.

        Args:
            generator: Random generator on the items' device. Default: torch's own.

        Returns:
            int64 numbers (B,): the first members of the drawn pairs, then the second.
        """
        u = torch.rand(self.batch_size // 2, generator=generator, dtype=torch.float64, device=self.device)
        place = torch.searchsorted(self._weight_to, u * self._weight_to[-1], right=True)
        return self.pairs[place.clamp(max=len(self.pairs) - 1)].mT.flatten()

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> SoftBatch:
        """Draw a batch: items (B, ...), their match weights (B, B), and which pairs count."""
        numbers = self.draw(generator)
        wanted = numbers[:, None] * len(self) + numbers
        place = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        targets = torch.where(self._keys[place] == wanted, self._weight[place], 0.0)
        return SoftBatch(self._take(numbers, generator), targets, _different(numbers))


def distinct_numbers(total: int, count: int, generator: Generator | None, device: torch.device) -> Tensor:
    """Draw `count` different numbers below `total`, every list of them with the same probability; (count,) int64."""
    if total <= 16 * count:
        return torch.randperm(total, generator=generator, device=device)[:count]
    # The first `count` different ones of a longer row of draws: no work that grows with `total`. The row is so long
    # that it has too few different ones in less than one of 1e30 cases.
    row = torch.randint(total, (2 * count + 64,), generator=generator, device=device)
    value, place = row.sort(stable=True)
    seen_before = torch.cat([value.new_zeros(1, dtype=torch.bool), value[1:] == value[:-1]])
    places = place.masked_fill(seen_before, len(row) - 1).sort().values[:count]
    return row[places]


def _different(numbers: Tensor) -> Tensor:
    """(B, B): whether two places hold different items."""
    return numbers[:, None] != numbers
