"""Batches of several runs as one: each run has the pairs that its own sampler drew."""

from functools import cache

import pytest
import torch

from aleator.data import GenerativeProcess, SharedNegatives
from aleator.experiments.controlled.stacked_batches import StackedBatches
from aleator.foundation import derived_seed

B, M, STEPS, RUNS = 8, 3, 4, 2


@cache
def processes():
    return [GenerativeProcess(3, smoothing_steps=5, seed=seed) for seed in range(RUNS)]


def samplers(batch_size, **options):
    return [process.batches(batch_size, **options) for process in processes()]


def pieces(tensor, rows):
    """The rows of each run, in one part of a batch."""
    return tensor.unflatten(0, (RUNS, rows))


KINDS = {
    "pairs": {},
    "own": {"negatives": M},
    "groups": {"negatives": M, "group": 4},
    "rejected": {"negatives": M, "positives": "partner", "rule": "rejected-latent"},
    "rejected in groups": {"negatives": M, "group": 4, "positives": "partner", "rule": "rejected-latent"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 1, STEPS + 2])
def test_a_batch_holds_what_the_samplers_drew(kind, step):
    drawing = samplers(STEPS * B, **KINDS[kind])
    batches = StackedBatches(drawing, B, seed=5, steps=STEPS)
    batches.prepare(0)
    batches.prepare(step)  # another block replaces the first one
    x, positive, *negative = batches(step)
    generator = torch.Generator().manual_seed(derived_seed(5, step // STEPS))
    here = slice(step % STEPS * B, (step % STEPS + 1) * B)
    for run, sampler in enumerate(drawing):
        own_x, own_positive, *own = sampler(0, generator)
        assert torch.equal(pieces(x, B)[run], own_x[here])
        assert torch.equal(pieces(positive, B)[run], own_positive[here])
        if kind == "pairs":
            assert not negative
        elif kind == "rejected in groups":
            inputs = torch.cat([positive, negative[0].pool])
            found = inputs[pieces(negative[0].chosen, B)[run]]
            assert torch.equal(found, torch.cat([own_positive, own[0].pool])[own[0].chosen[here]])
        else:
            rows = B // KINDS[kind].get("group", 1)
            own_rows = own[0].unflatten(0, (STEPS, rows))[step % STEPS]
            assert torch.equal(pieces(negative[0], rows)[run], own_rows)


def test_rolled_negatives_stay_in_their_run():
    batches = StackedBatches(samplers(STEPS * B), B, seed=5, rolled=True, steps=STEPS)
    batches.prepare(1)
    _, positive, negative = batches(1)
    assert isinstance(negative, SharedNegatives)
    own = pieces(torch.cat([positive, negative.pool])[negative.chosen.squeeze(1)], B)
    assert torch.equal(own, pieces(positive, B).roll(1, 1))


def test_a_batch_depends_on_its_step_alone():
    first, again = (StackedBatches(samplers(STEPS * B), B, seed=5, steps=STEPS) for _ in range(2))
    drawn = []
    for step in range(2 * STEPS):
        first.prepare(step)
        drawn.append(first(step)[0])
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == 2 * STEPS
    again.prepare(STEPS + 1)  # as after a resumed run
    assert torch.equal(again(STEPS + 1)[0], drawn[STEPS + 1])
    other = StackedBatches(samplers(STEPS * B), B, seed=6, steps=STEPS)
    other.prepare(0)
    assert not torch.equal(other(0)[0], drawn[0])


def test_a_block_is_drawn_into_the_same_memory():
    """A CUDA graph reads the batches at fixed addresses."""
    batches = StackedBatches(samplers(STEPS * B), B, seed=5, steps=STEPS)
    batches.prepare(0)
    before = [part.data_ptr() for part in batches._drawn]
    batches.prepare(STEPS)
    assert [part.data_ptr() for part in batches._drawn] == before
