"""The random state of a process: seeds, and the state of every generator that training draws from."""

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def derived_seed(*parts: int) -> int:
    """A seed in [0, 2^63) that depends on every part, so that neighbouring parts share nothing."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def random_state(device: torch.device) -> dict[str, Any]:
    """The global generators that training may draw from: torch (CPU and device), numpy and python."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def seed_generators(seed: int) -> None:
    """Seed all of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def preserved_randomness(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside leaves the global generators as they were."""
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)
