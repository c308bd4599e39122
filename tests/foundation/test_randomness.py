"""Seeds and the state of the global generators."""

import json
import random

import numpy as np
import pytest
import torch

from aleator.foundation.bundle import pack_state, unpack_state
from aleator.foundation.randomness import (
    derived_seed,
    even_sample,
    preserved_randomness,
    random_state,
    sample_numbers,
    seed_generators,
    set_random_state,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    """One number of each generator; numpy's and torch's normal numbers come in pairs, which is state, too."""
    return torch.randn(()).item(), np.random.standard_normal(), random.gauss(0, 1)


def test_the_seed_decides_all_generators():
    draws = []
    for seed in (1, 1, 2):
        seed_generators(seed)
        draws.append(draw())
    assert draws[0] == draws[1]
    assert all(a != b for a, b in zip(draws[0], draws[2], strict=True))


def test_derived_seeds_are_valid_and_differ():
    seeds = [derived_seed(seed, rank, step) for seed in range(3) for rank in range(4) for step in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert derived_seed(0, 1, 2) == 722798204616732789  # a new value would change every run


def test_a_state_is_restored_exactly_even_through_json():
    seed_generators(3)
    draw()
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack_state(random_state(CPU), tensors)))
    expected = [draw() for _ in range(3)]
    set_random_state(unpack_state(packed, tensors), CPU)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_block_leaves_no_trace(error):
    seed_generators(4)
    expected = draw()
    seed_generators(4)

    def disturb():
        with preserved_randomness(CPU):
            draw()
            seed_generators(99)
            if error is not None:
                raise error

    if error is None:
        disturb()
    else:
        with pytest.raises(error):
            disturb()
    assert draw() == expected


def test_samples_are_nested_and_even():
    numbers = np.arange(100, 200)
    small, large = (sample_numbers(numbers, most, seed=3) for most in (10, 60))
    assert set(small) < set(large) < set(numbers)
    assert (np.diff(large) > 0).all()
    assert sample_numbers(numbers, 100, seed=3) is numbers
    drawn = np.concatenate([sample_numbers(numbers, 10, seed) for seed in range(1000)])
    counts = np.bincount(drawn - 100, minlength=100)  # each number 100 times on average
    assert ((counts - 100) ** 2 / 100).sum() < 150  # about chi-squared with 99 degrees of freedom


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 21, 199])
def test_even_samples_are_no_larger_than_asked_for(count):
    """Of 19 items, a step that is rounded down would take all."""
    kept = np.arange(count)[even_sample(count, 10)]
    assert min(count, 5) <= len(kept) <= 10
    assert len(set(np.diff(kept))) <= 1
    assert count > 10 or len(kept) == count
