"""Sources: batches of either form, and positions that can be saved and restored."""

import pytest
import torch
from torch.utils.data import DataLoader

from aleator.data.sources import CalledSource, IteratedSource, open_source
from aleator.data.workers import WorkerBatches

CPU = torch.device("cpu")


def drawn(step, generator):
    return step, torch.rand(3, generator=generator)


def test_a_function_gives_the_same_batch_for_the_same_step():
    source, again = (open_source(drawn, seed=1, rank=0, device=CPU) for _ in range(2))
    assert isinstance(source, CalledSource)
    first, second = source.next(4), source.next(5)
    again.restore(source.state())
    assert torch.equal(again.next(5)[1], second[1])
    assert torch.equal(again.next(4)[1], first[1])
    assert not torch.equal(first[1], second[1])
    other = open_source(drawn, seed=1, rank=1, device=CPU)
    assert not torch.equal(other.next(4)[1], first[1])


@pytest.mark.parametrize("taken", [0, 2, 4, 7])
def test_a_loader_continues_where_it_stopped(taken):
    def loader():
        return DataLoader(torch.arange(5), batch_size=1, shuffle=True)

    source = open_source(loader(), seed=0, rank=0, device=CPU)
    assert isinstance(source, IteratedSource)
    for step in range(taken):
        source.next(step)
    state = source.state()
    expected = [source.next(step).item() for step in range(6)]
    torch.manual_seed(99)  # another process has another random state
    again = open_source(loader(), seed=0, rank=0, device=CPU)
    if taken == 0:  # nothing was taken: no pass has started, and there is no order to continue
        assert state["random"] is None
        return
    again.restore(state)
    left = 5 - (taken - 1) % 5 - 1
    assert [again.next(step).item() for step in range(left)] == expected[:left]


def test_looking_at_a_batch_changes_nothing():
    torch.manual_seed(0)
    source = open_source([1, 2, 3], seed=0, rank=0, device=CPU)
    before = torch.get_rng_state()
    assert source.peek() == 1
    assert torch.equal(torch.get_rng_state(), before)
    assert [source.next(step) for step in range(5)] == [1, 2, 3, 1, 2]
    assert (source.passes, source.taken) == (1, 2)


def test_sources_that_cannot_serve_are_named():
    with pytest.raises(ValueError, match="batches = 'int': neither callable nor iterable"):
        open_source(3, seed=0, rank=0, device=CPU)
    with pytest.raises(ValueError, match="is empty"):
        open_source([], seed=0, rank=0, device=CPU).next(0)
    once = open_source(iter([1]), seed=0, rank=0, device=CPU)
    with pytest.raises(ValueError, match="would use it up"):
        once.peek()
    assert once.next(0) == 1
    with pytest.raises(ValueError, match="ended before step 1 and cannot start again"):
        once.next(1)
    fewer = open_source([1, 2], seed=0, rank=0, device=CPU)
    longer = open_source([1, 2, 3, 4], seed=0, rank=0, device=CPU)
    for step in range(3):
        longer.next(step)
    with pytest.raises(ValueError, match="batches = 'list': ends after 2 batches, and 3 had been taken"):
        fewer.restore(longer.state())


def test_batches_of_another_kind_cannot_go_on():
    class Stateful(list):
        def state_dict(self):
            return {"at": 0}

    function, iterated = open_source(drawn, seed=1, rank=0, device=CPU), open_source([1, 2], seed=0, rank=0, device=CPU)
    with pytest.raises(ValueError, match=r"batches = 'list': the run was started with a function.*of the first run"):
        iterated.restore(function.state())
    with pytest.raises(ValueError, match=r"batches = 'a function': the run was started with batches that are iterated"):
        function.restore(iterated.state())
    stateful = open_source(Stateful([1]), seed=0, rank=0, device=CPU)
    with pytest.raises(ValueError, match="batches = 'list': keeps no state"):
        iterated.restore(stateful.state())
    function.restore(function.state())


def test_looking_at_a_batch_does_not_take_it_from_workers():
    batches = WorkerBatches(drawn, CPU, workers=0)
    source = open_source(batches, seed=0, rank=0, device=CPU)
    assert source.peek()[0] == 0
    assert [source.next(step)[0] for step in range(3)] == [0, 1, 2]
