r"""Labelled, soft-labelled and paired data -> contrastive batches, as functions of the step for `fit`.

With N items of equal weight and class probabilities P(C|x), the law of a batch is

    anchor     x  ~ P(x) = 1/N
    class      c  ~ P(C|x)
    positive   x+ in proportion to P(C=c|x+)
    negative   x- ~ P(x)                              rule "marginal": what the exact loss asks for
               x- in proportion to 1 - P(C=c|x-)      rule "contrast": the paper's

so P(x, x+) = 1/N sum_c P(c|x) P(c|x+) / sum_x' P(c|x') is symmetric. A hard label is a probability of 1; a group whose
members match one another is a hard label.

labels.py draws the item numbers. Where the inputs live on a GPU, so do its tables, and a batch is drawn without the
host.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from aleator.data.labels import LabelTable, require_rows, require_whole
from aleator.data.sources import SharedNegatives
from aleator.foundation import derived_seed, require, require_one_of

Augment = Callable[[Tensor, Generator], Tensor]
Batch = tuple[Tensor, ...] | tuple[Tensor, Tensor, SharedNegatives]
Drawn = tuple[Tensor, Tensor, Tensor | SharedNegatives | None]

RULES = ("marginal", "contrast")
_ROOM = 0.8  # of a GPU's free memory


@runtime_checkable
class MapDataset(Protocol):
    """A map-style dataset: item number -> tensor."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


class _DrawnBatches:
    """What both kinds share: the items, and index -> augmented inputs."""

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        batch_size: int,
        augment: Augment | None,
        device: str | torch.device | None,
    ):
        require(
            isinstance(inputs, Tensor | MapDataset),
            "inputs",
            type(inputs).__name__,
            "neither a tensor (N, ...) nor a dataset with a length and items",
            "pass torch.as_tensor(array)",
        )
        require(len(inputs) > 0, "inputs", len(inputs), "no item", "pass at least two")
        require(
            isinstance(batch_size, int) and batch_size >= 1,
            "batch_size",
            batch_size,
            "not a positive whole number",
            "pass for example 128",
        )
        self.inputs = _placed(inputs, device) if isinstance(inputs, Tensor) else inputs
        self.batch_size, self.augment = batch_size, augment
        # Where the indices are drawn; `fit` puts its generator there.
        self.device = self.inputs.device if isinstance(self.inputs, Tensor) else torch.device("cpu")

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.inputs)

    @property
    def capturable(self) -> bool:
        """Whether a batch is drawn on the GPU alone, so that drawing it can be part of a CUDA graph."""
        on_gpu = isinstance(self.inputs, Tensor) and self.device.type == "cuda"
        return on_gpu and (self.augment is None or getattr(self.augment, "capturable", False))

    def draw(self, generator: Generator | None = None) -> Drawn:
        """Item numbers, int64: anchors (B,), positives (B,) and negatives (B, M), or None for those of the batch."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> Batch:
        """(anchor, positive) or (anchor, positive, negative) with inputs (B, ...), (B, ...), (B, M, ...)."""
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

    def _take(self, index: Tensor, generator: Generator) -> Tensor:
        if isinstance(self.inputs, Tensor):
            items = self.inputs[index]
        else:
            items = torch.stack([torch.as_tensor(self.inputs[i]) for i in index.tolist()])
        if items.dtype == torch.uint8:
            items = items.float().div_(255)
        return items if self.augment is None else self.augment(items, generator)

    def loader(self, workers: int = 2, seed: int = 0, rank: int = 0) -> "WorkerBatches":
        """The same batches from worker processes, for items that are slow to read. Resumes exactly, as `fit` asks."""
        return WorkerBatches(self, workers, seed, rank)


class LabelledBatches(_DrawnBatches):
    """Anchors, positives and negatives from labels; see the module for their law.

    Args:
        inputs: (N, ...), kept whole on `device`; or a map-style dataset that gives tensors of one shape. Bytes (uint8)
            become float32 in [0, 1] as they are drawn.
        labels: whole numbers (N,), classes or groups; or probabilities (N, C), whose rows sum to 1.
        batch_size: B.
        negatives: M for each anchor; 0 leaves the choice to the loss, which takes the other anchors of the batch.
        rule: the negatives' law, "marginal" or "contrast".
        share_negatives: one set of M for all anchors of one drawn class ("contrast") or of the batch ("marginal"). Each
            anchor's negatives have the same law, and far fewer inputs are encoded.
        with_itself: whether an item may be drawn as its own positive, as the law says; for small groups, say no.
        augment: (images, generator) -> images, applied to every drawn input.
        device: where the items stay, by default where they are. What does not fit on a GPU stays in memory.
    """

    def __init__(
        self,
        inputs: Tensor | MapDataset,
        labels: Any,
        batch_size: int,
        negatives: int = 0,
        *,
        rule: str = "marginal",
        share_negatives: bool = False,
        with_itself: bool = True,
        augment: Augment | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(inputs, batch_size, augment, device)
        require(
            isinstance(negatives, int) and negatives >= 0,
            "negatives",
            negatives,
            "not a whole number",
            "pass 0 or more",
        )
        require_one_of("rule", rule, RULES)
        require(
            rule == "marginal" or negatives > 0,
            "negatives",
            negatives,
            "the other anchors of a batch follow the marginal, not the rule 'contrast'",
            "pass negatives >= 1",
        )
        labels = torch.as_tensor(labels)
        require(
            len(labels) == len(self),
            "labels",
            len(labels),
            f"there are {len(self)} inputs",
            "pass one label, or one row of probabilities, for each",
        )
        require(
            not share_negatives or negatives > 0,
            "share_negatives",
            share_negatives,
            "there are none: the loss takes the other anchors, which all share",
            "pass negatives >= 1",
        )
        self.negatives, self.rule, self.with_itself = negatives, rule, with_itself
        self.share_negatives = share_negatives
        self.table = LabelTable(labels, self.device)
        if rule == "contrast":
            self.table.require_contrast()
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

    def draw(self, generator: Generator | None = None) -> Drawn:
        B, M, N = self.batch_size, self.negatives, len(self)
        anchor = torch.randint(N, (B,), generator=generator, device=self.device)
        entry = self.table.draw_entry(anchor, generator)
        positive = self.table.draw_member(entry, self.with_itself, generator)
        if not M:
            return anchor, positive, None
        kind = self.table.kind[entry]
        if not self.share_negatives:
            return anchor, positive, self._draw_negatives(kind, generator)
        if self.rule == "marginal":
            kind = torch.zeros_like(kind)
        groups = torch.arange(self.table.classes if self.rule == "contrast" else 1, device=self.device)
        pool = self._draw_negatives(groups, generator)  # (groups, M)
        chosen = B + kind[:, None] * M + torch.arange(M, device=self.device)
        return anchor, positive, SharedNegatives(pool.flatten(), chosen)

    def _draw_negatives(self, kind: Tensor, generator: Generator | None) -> Tensor:
        """M for each of these classes (K,), by the rule; (K, M)."""
        if self.rule == "contrast":
            return self.table.draw_stranger(kind, self.negatives, generator)
        return torch.randint(len(self), (len(kind), self.negatives), generator=generator, device=self.device)


class PairBatches(_DrawnBatches):
    """Anchors and positives from a list of pairs (P, 2) of item numbers, either member the anchor alike.

    The anchors, which are the negatives of the batch, then follow the pairs' own marginal, as the loss asks.
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
        pairs = torch.as_tensor(pairs)
        shape = tuple(pairs.shape)
        require(
            pairs.dim() == 2 and shape[1] == 2 and shape[0] > 0,
            "pairs",
            shape,
            "not a list of pairs",
            "pass item numbers of shape (P, 2)",
        )
        require_whole("pairs", pairs)
        pairs = pairs.long()
        outside = ((pairs < 0) | (pairs >= len(self))).any(1)
        require_rows("pairs", pairs, ~outside, f"names an item outside 0 .. {len(self) - 1}", "number items from 0")
        if augment is None:
            itself = pairs[:, 0] == pairs[:, 1]
            require_rows("pairs", pairs, ~itself, "pairs an item with itself", "leave it out, or pass augment=")
        self.pairs = pairs.to(self.device)

    def draw(self, generator: Generator | None = None) -> Drawn:
        # One number for pair and order: the even ones as given, the odd ones turned round.
        number = torch.randint(2 * len(self.pairs), (self.batch_size,), generator=generator, device=self.device)
        pair, turned = self.pairs[number // 2], number % 2
        return pair.gather(1, turned[:, None])[:, 0], pair.gather(1, 1 - turned[:, None])[:, 0], None


class WorkerBatches:
    """Batches made ahead by worker processes: an endless iterable, whose position is the number of batches taken."""

    def __init__(self, batches: _DrawnBatches, workers: int, seed: int = 0, rank: int = 0):
        require(
            batches.device.type == "cpu",
            "device",
            str(batches.device),
            "worker processes read from memory",
            "keep the inputs on the CPU",
        )
        require(isinstance(workers, int) and workers >= 0, "workers", workers, "not a whole number", "pass 0 or more")
        self.batches, self.workers, self.seed, self.rank = batches, workers, seed, rank
        self.taken = 0

    def __getitem__(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, self.rank, step))
        return self.batches(step, generator)

    def __iter__(self) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        steps = _CountFrom(self.taken)
        for batch in DataLoader(self, batch_size=None, sampler=steps, num_workers=self.workers):  # type: ignore[arg-type]
            self.taken += 1
            yield tuple(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require(state["seed"] == self.seed, "seed", self.seed, f"the run began with {state['seed']}", "pass that")
        self.taken = state["taken"]


class _CountFrom:
    """start, start + 1, ... without end, as a sampler."""

    def __init__(self, start: int):
        self.start = start

    def __iter__(self) -> Iterator[int]:
        from itertools import count

        return count(self.start)


def _placed(inputs: Tensor, device: str | torch.device | None) -> Tensor:
    """On the device, if there is room for all of it."""
    if device is None:
        return inputs
    device = torch.device(device)
    if device.type == "cuda" and not inputs.is_cuda:
        free, _ = torch.cuda.mem_get_info(device)
        if inputs.numel() * inputs.element_size() > _ROOM * free:
            return inputs
    return inputs.to(device)
