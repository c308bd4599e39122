"""Where training batches come from, and how each kind of source picks up again where it stopped.

- A callable `batches(step, generator) -> batch`. The generator is seeded from (seed, process, step), so a
  batch depends on nothing else and going on is exact. It lives on `batches.device` where there is one, else
  on the training device.
- An iterable with `state_dict` and `load_state_dict`: its own word on its position is kept in the checkpoint.
- Any other iterable, such as a DataLoader; started again whenever it ends. To go on, the pass is started
  again under the random state in which it had started, and the batches already seen are skipped. That is
  exact when the order of a pass is fixed as it starts (a shuffling DataLoader, a list). An iterator that
  cannot start again serves one pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aleator.foundation import derived_seed, preserved_randomness, random_state, reject, require, set_random_state

Batch = Any
Batches = Callable[[int, torch.Generator], Batch] | Iterable[Batch]


class SharedNegatives(NamedTuple):
    """A batch's negatives where anchors have some in common: each is encoded once.

    chosen (B, M) numbers the B positives first and the P inputs of the pool after them.
    """

    pool: Tensor
    chosen: Tensor


class RolledNegatives:
    """Pairs, and to each anchor, as its one negative, the positive of the pair before, which is not encoded again."""

    def __init__(self, pairs: Any):
        self.pairs, self.device, self.capturable = pairs, pairs.device, pairs.capturable

    def __call__(self, step: int, generator: torch.Generator) -> Batch:
        anchor, positive = self.pairs(step, generator)
        before = torch.arange(len(anchor), device=self.device).roll(1)
        return anchor, positive, SharedNegatives(positive[:0], before[:, None])


def open_source(batches: Batches, seed: int, rank: int, device: torch.device) -> "CalledSource | IteratedSource":
    if callable(batches):
        return CalledSource(batches, seed, rank, torch.device(getattr(batches, "device", device)))
    require(
        isinstance(batches, Iterable),
        "batches",
        type(batches).__name__,
        "neither callable nor iterable",
        "pass batches(step, generator) -> batch, or an iterable of batches",
    )
    return IteratedSource(batches, device)


class CalledSource:
    """Batches from a function of the step; the step is the whole position."""

    def __init__(self, batches: Callable[[int, torch.Generator], Batch], seed: int, rank: int, device: torch.device):
        self.batches, self.seed, self.rank = batches, seed, rank
        self.generator = torch.Generator(device)

    @property
    def capturable(self) -> bool:
        """Whether a batch is drawn on the device alone, so that drawing it can be part of a CUDA graph."""
        return getattr(self.batches, "capturable", False)

    def seed_for(self, step: int) -> None:
        self.generator.manual_seed(derived_seed(self.seed, self.rank, step))

    def draw(self, step: int) -> Batch:
        return self.batches(step, self.generator)

    def next(self, step: int) -> Batch:
        self.seed_for(step)
        return self.draw(step)

    def peek(self) -> Batch:
        return self.next(0)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class IteratedSource:
    """Batches from an iterable, one pass after another; position: the pass, and how far into it."""

    def __init__(self, batches: Iterable[Batch], device: torch.device):
        self.batches, self.device = batches, device
        self.passes, self.taken = 0, 0
        self.iterator: Iterator[Batch] | None = None
        self.random: dict[str, Any] | None = None

    def next(self, step: int) -> Batch:
        if self.iterator is None:
            self._start()
        for batch in self.iterator:  # type: ignore[union-attr]
            self.taken += 1
            return batch
        require(self.taken > 0, "batches", type(self.batches).__name__, "is empty", "pass at least one batch")
        if self.iterator is self.batches:
            reject(
                "batches",
                type(self.batches).__name__,
                f"ended before step {step} and cannot start again",
                "pass batches(step, generator) -> batch, or an iterable that can be iterated repeatedly",
            )
        self.passes, self.taken, self.iterator = self.passes + 1, 0, None
        return self.next(step)

    def peek(self) -> Batch:
        require(
            iter(self.batches) is not self.batches,
            "batches",
            type(self.batches).__name__,
            "looking at the first batch would use it up",
            "build the Encoder with features=, or pass an iterable that can be iterated repeatedly",
        )
        with preserved_randomness(self.device):
            for batch in self.batches:
                return batch
        return reject("batches", type(self.batches).__name__, "is empty", "pass at least one batch")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"passes": self.passes, "taken": self.taken, "random": self.random}
        if hasattr(self.batches, "state_dict"):
            state["own"] = self.batches.state_dict()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        self.passes = state["passes"]
        if "own" in state:
            self.batches.load_state_dict(state["own"])  # type: ignore[attr-defined]
            self._start()
        elif state["random"] is not None:
            set_random_state(state["random"], self.device)
            self._start()
            for _ in range(state["taken"]):
                next(self.iterator)  # type: ignore[arg-type]
        self.taken, self.random = state["taken"], state["random"]

    def _start(self) -> None:
        set_epoch = getattr(getattr(self.batches, "sampler", None), "set_epoch", None)
        if set_epoch is not None:  # torch's DistributedSampler shuffles by the number of the pass
            set_epoch(self.passes)
        self.random = random_state(self.device)
        self.iterator = iter(self.batches)


Source = CalledSource | IteratedSource
