"""How training reads its batches, whatever form they have, and how it continues after a stop.

`fit` takes batches as a function or as an iterable. A source wraps either, gives the batch of a step, and saves and
restores its position for checkpoints. (`batches.py` makes batches from data; this module only reads them.)

- A function `batches(step, generator) -> batch`. The generator is seeded from (seed, process, step), so a batch
  depends on nothing else, and continuing is exact. The generator lives on `batches.device` if there is one, else on
  the training device.
- An iterable with `state_dict` and `load_state_dict`. Its own state goes into the checkpoint.
- Any other iterable, such as a DataLoader. It is started again whenever it ends. To continue, the pass is started
  again from the random state in which it had started, and the batches already seen are skipped. This is exact if the
  order of a pass is fixed when it starts (a shuffling DataLoader, a list). An iterator that cannot start again serves
  for one pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from aleator.foundation import derived_seed, preserved_randomness, random_state, reject, require, set_random_state

Batches = Callable[[int, torch.Generator], Any] | Iterable[Any]
"""Batches for `fit`: a function batches(step, generator) -> batch, or an iterable of batches.

A batch is (anchor, positive), (anchor, positive, negative), a dict with these names, or a `SoftBatch`.
"""


_END = object()  # of an iterator
_FIRST_BATCHES = "pass the batches of the first run"


def open_source(batches: Batches, seed: int, rank: int, device: torch.device) -> "Source":
    """The source for batches of either form.

    Args:
        batches: A function (step, generator) -> batch, or an iterable of batches.
        seed: Seed of the training run.
        rank: Number of this process.
        device: Training device.

    Returns:
        A `CalledSource` or an `IteratedSource`.

    Raises:
        ValueError: If `batches` is neither callable nor iterable.
    """
    if callable(batches):
        return CalledSource(batches, seed, rank, torch.device(getattr(batches, "device", device)))
    way_out = "pass batches(step, generator) -> batch, or an iterable of batches"
    iterable = isinstance(batches, Iterable)
    require(iterable, "batches", type(batches).__name__, "neither callable nor iterable", way_out)
    return IteratedSource(batches, device)


class CalledSource:
    """Batches from a function of the step. The step alone is the position, so there is nothing to save."""

    def __init__(self, batches: Callable[[int, torch.Generator], Any], seed: int, rank: int, device: torch.device):
        self.batches, self.seed, self.rank = batches, seed, rank
        self.generator = torch.Generator(device)

    @property
    def capturable(self) -> bool:
        """Whether a batch is drawn on the device alone, so that a CUDA graph can hold the drawing."""
        return getattr(self.batches, "capturable", False)

    def seed_for(self, step: int) -> None:
        """Seed the generator for a step."""
        self.generator.manual_seed(derived_seed(self.seed, self.rank, step))

    def draw(self, step: int) -> Any:
        """Draw a batch with the generator as it is."""
        return self.batches(step, self.generator)

    def next(self, step: int) -> Any:
        """The batch of a step."""
        self.seed_for(step)
        return self.draw(step)

    def peek(self) -> Any:
        """A batch to look at; the position stays."""
        return self.next(0)

    def state(self) -> dict[str, Any]:
        """The position, for a checkpoint: empty."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state` gave."""
        if state:
            reject("batches", "a function", "the run was started with batches that are iterated", _FIRST_BATCHES)


class IteratedSource:
    """Batches from an iterable, one pass after another. The position is the pass and the batches taken from it."""

    def __init__(self, batches: Iterable[Any], device: torch.device):
        self.batches, self.device = batches, device
        self.passes, self.taken = 0, 0
        self.iterator: Iterator[Any] | None = None
        self.random: dict[str, Any] | None = None

    def next(self, step: int) -> Any:
        """The next batch. `step` is named in errors."""
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

    def peek(self) -> Any:
        """A batch to look at; the position and the random state stay."""
        require(
            iter(self.batches) is not self.batches,
            "batches",
            type(self.batches).__name__,
            "looking at the first batch would use it up",
            "build the Encoder with features=, or pass an iterable that can be iterated repeatedly",
        )
        own = self.batches.state_dict() if hasattr(self.batches, "state_dict") else None
        try:
            with preserved_randomness(self.device):
                for batch in self.batches:
                    return batch
        finally:
            if own is not None:
                self.batches.load_state_dict(own)  # type: ignore[attr-defined]
        return reject("batches", type(self.batches).__name__, "is empty", "pass at least one batch")

    def state(self) -> dict[str, Any]:
        """The position, for a checkpoint."""
        state: dict[str, Any] = {"passes": self.passes, "taken": self.taken, "random": self.random}
        if hasattr(self.batches, "state_dict"):
            state["own"] = self.batches.state_dict()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state` gave."""
        name = type(self.batches).__name__
        require(bool(state), "batches", name, "the run was started with a function of the step", _FIRST_BATCHES)
        self.passes = state["passes"]
        if "own" in state:
            keeps = hasattr(self.batches, "load_state_dict")
            require(keeps, "batches", name, "keeps no state, as those of the first run do", _FIRST_BATCHES)
            self.batches.load_state_dict(state["own"])  # type: ignore[attr-defined]
            self._start()
        elif state["random"] is not None:
            set_random_state(state["random"], self.device)
            self._start()
            for done in range(state["taken"]):
                problem = f"ends after {done} batches, and {state['taken']} had been taken from it"
                ended = next(self.iterator, _END) is _END  # type: ignore[arg-type]
                require(not ended, "batches", name, problem, _FIRST_BATCHES)
        self.taken, self.random = state["taken"], state["random"]

    def _start(self) -> None:
        """Start a pass, and remember the random state in which it started."""
        set_epoch = getattr(getattr(self.batches, "sampler", None), "set_epoch", None)
        if set_epoch is not None:  # torch's DistributedSampler shuffles by the number of the pass
            set_epoch(self.passes)
        self.random = random_state(self.device)
        self.iterator = iter(self.batches)


Source = CalledSource | IteratedSource
