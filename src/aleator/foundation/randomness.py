"""Seeds, samples, and the state of the global random generators that training draws from: torch, numpy and Python."""

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def derived_seed(*parts: int) -> int:
    """A seed from several numbers, such as (seed, process, step).

    Args:
        *parts: The numbers. Seeds of neighbouring numbers are unrelated.

    Returns:
        A seed in [0, 2^63).

    Examples:
        >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(1, 0)
        (True, False)
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def sample_numbers(numbers: np.ndarray, most: int, seed: int) -> np.ndarray:
    """All numbers, or a random sample if there are more than `most`.

    Args:
        numbers: Ascending numbers, such as those of items, shape (n,).
        most: Largest number of them to keep.
        seed: Seed of the sample. A smaller sample with the same seed is a part of a larger one.

    Returns:
        The numbers that are kept, ascending.

    Examples:
        >>> sample_numbers(np.arange(3), 5, seed=0), len(sample_numbers(np.arange(100), 5, seed=0))
        (array([0, 1, 2]), 5)
    """
    if len(numbers) <= most:
        return numbers
    return np.sort(np.random.default_rng(seed).permutation(numbers)[:most])


def even_sample(count: int, most: int) -> slice:
    """At most `most` of `count` items, at even distances.

    Args:
        count: Number of items.
        most: Largest number of them to keep, at least 1.

    Returns:
        The items that are kept, as an index.

    Examples:
        >>> list(range(5))[even_sample(5, 3)], list(range(5))[even_sample(5, 9)]
        ([0, 2, 4], [0, 1, 2, 3, 4])
    """
    return slice(None, None, max(1, -(-count // most)))


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the global generators: torch on the CPU and on `device`, numpy, Python.

    Args:
        device: The device whose generator counts, too.

    Returns:
        The state, for `set_random_state`. `pack_state` can save it.
    """
    algorithm, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (algorithm, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the global generators to a state from `random_state`.

    Args:
        state: The state.
        device: The device whose generator to set.
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    algorithm, keys, *rest = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def preserved_randomness(device: torch.device) -> Iterator[None]:
    """After the block, the global generators are in the state they had before it.

    Args:
        device: The device whose generator counts, too.
    """
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)
