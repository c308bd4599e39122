"""Embed on a cluster: workers of Ray on many machines compute blocks of rows, and this process writes them.

The file of rows is the one that a single process writes, with the same batches in the same order. So work that was
stopped can be resumed with or without Ray. A block is written when the blocks before it are. The blocks of a worker
that dies go to another one, and a new worker is started as soon as a machine has room for it.
"""

import heapq
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.embedding.rows import Blocks, RowMaker

_BATCHES = 4  # in a block: a call of a worker costs about a millisecond
_IN_HAND = 2  # blocks of a worker: the one that it computes, and the next
_AHEAD = 8  # blocks of each worker that may be finished before an earlier one is
_DEATHS = 5  # workers that may die over one block
_PATIENCE = 30.0  # seconds without any worker before a line of the log says so
_EXTRA = "pip install 'aleator[ray]'"


@contextmanager
def ray_workers(
    network: nn.Module,
    width: int,
    inputs: Inputs,
    collection: Collection,
    *,
    strict: bool,
    device: str = "auto",
    threads: int = 2,
    workers: int | None = None,
    address: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[Callable[[list[tuple[int, int]], bool], Blocks]]:
    """Workers on a Ray cluster, for the argument `elsewhere` of `stream_rows`.

    Args:
        network: Turns prepared items into rows (B, width).
        width: Length of a row.
        inputs: How items are prepared for the network.
        collection: The items. The workers read images and features themselves, under the same paths.
        strict: Whether nothing is computed after an item that cannot be read.
        device: "auto": a GPU for each worker if the cluster has any. "cpu": one core for each.
        threads: Number of threads of each worker that load items ahead.
        workers: Number of workers. Default: as many as the cluster has GPUs, or cores.
        address: Address of the cluster. Default: RAY_ADDRESS, or the cluster that runs on this machine, or a new one
            on this machine alone.
        log: Called with each line of the log.

    Yields:
        A function of spans and `only_read`, which gives what `RowMaker.blocks` gives.

    Raises:
        ValueError: If Ray is not installed, or if there is no cluster at the address.
    """
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        with_gpu = gpus > 0 if device == "auto" else device.startswith("cuda")
        require(device in ("auto", "cpu", "cuda"), "device", device, "is not a device of a cluster", "pass cpu or cuda")
        require(not with_gpu or gpus > 0, "device", device, "the cluster has no GPU", "pass device=cpu")
        all_workers = max(1, gpus if with_gpu else int(ray.cluster_resources().get("CPU", 1)))
        count = all_workers if workers is None else workers
        log(f"{count} workers of Ray, each with {'a GPU' if with_gpu else 'one core'}")
        facts = ray.put((network, width, inputs, "cuda" if with_gpu else "cpu", threads))
        options = {"num_cpus": 1, "num_gpus": int(with_gpu), "max_restarts": 0, "max_task_retries": 0}
        start = ray.remote(**options)(_Worker).remote
        pool = _Pool(ray, lambda: start(facts), count, _shared_paths(collection), strict, log)
        try:
            yield pool.blocks
        finally:
            pool.close()
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it warns of does not concern us
    try:
        import ray
    except ImportError:
        reject("engine", "ray", "needs the package ray", _EXTRA)
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start one on this machine."""
    try:
        ray.init(address, include_dashboard=None if address else False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError, RuntimeError, ValueError) as problem:
        said = " ".join(str(problem).split())[:200]
        way_out = "start one with `ray start --head`, or leave the address out"
        reject("address", address or os.environ.get("RAY_ADDRESS"), f"no cluster answers there ({said})", way_out)
    logging.getLogger("ray").setLevel(logging.ERROR)


class _Worker:
    """Computes blocks of rows, on a machine of the cluster."""

    def __init__(self, facts: tuple[nn.Module, int, Inputs, str, int]):
        network, width, inputs, device, threads = facts
        if device == "cpu":
            torch.set_num_threads(1)  # it has one core
        # Ray shares its copy with other processes, so it cannot be written to.
        self.maker = RowMaker(_writable(network), _as_they_are, width, inputs, torch.device(device), threads)

    def version(self) -> str:
        """The version of this package here."""
        from aleator import __version__

        return __version__

    def blocks(self, part: Collection, todo: list[tuple[int, int]], strict: bool, only_read: bool) -> list[Any] | Any:
        """`RowMaker.blocks` as a list; an error about the items, or of their store, is returned."""
        try:
            return list(self.maker.blocks(part, todo, strict, only_read))
        except (ValueError, OSError) as error:
            return error


def _as_they_are(rows: Tensor) -> Tensor:
    return rows


def _writable(network: nn.Module) -> nn.Module:
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = tensor.data.clone()
    return network


@dataclass(eq=False)
class _Hired:
    """A worker, the call that says that it is ready, and the blocks in its hand, by their call."""

    actor: Any
    starting: Any
    in_hand: dict[Any, int] = field(default_factory=dict)


class _Pool:
    """A number of workers. One that dies is replaced."""

    def __init__(
        self,
        ray: Any,
        start: Callable[[], Any],
        count: int,
        collection: Collection,
        strict: bool,
        log: Callable[[str], None],
    ):
        self.ray, self.start, self.collection, self.strict, self.log = ray, start, collection, strict, log
        self.workers: list[_Hired] = []
        self.idle_since_start = 0  # workers that died before any block was done
        self.count = count

    def close(self) -> None:
        """Stop the workers."""
        for worker in self.workers:
            self.ray.kill(worker.actor)
        self.workers.clear()

    def blocks(self, todo: list[tuple[int, int]], only_read: bool) -> Blocks:
        """The blocks of all spans, in order."""
        tasks = [todo[i : i + _BATCHES] for i in range(0, len(todo), _BATCHES)]
        waiting, deaths, done, given = list(range(len(tasks))), [0] * len(tasks), dict[int, Any](), 0
        while given < len(tasks):
            while len(self.workers) < min(self.count, len(tasks) - given):
                self._hire()
            self._hand_out(tasks, waiting, given, only_read)
            for worker, call in self._wait():
                number = worker.in_hand.get(call)
                result = self._result(worker, call)
                if isinstance(result, _Death):
                    for lost in worker.in_hand.values():
                        deaths[lost] += 1
                        _require_few_deaths(deaths[lost], tasks[lost])
                        heapq.heappush(waiting, lost)
                    worker.in_hand.clear()
                elif number is not None:
                    del worker.in_hand[call]
                    done[number] = result
                    self.idle_since_start = 0
            while given in done:
                result = done.pop(given)
                if isinstance(result, ValueError | OSError):
                    raise result
                only_read = only_read or (self.strict and any(bad for _, bad in result))
                yield from result
                given += 1

    def _hire(self) -> None:
        actor = self.start()
        self.workers.append(_Hired(actor, actor.version.remote()))

    def _hand_out(self, tasks: list[list[tuple[int, int]]], waiting: list[int], given: int, only_read: bool) -> None:
        """Give the next blocks to workers that are ready, one block to each before any gets a second one."""
        last = given + _AHEAD * self.count
        for size in range(_IN_HAND):
            for worker in self.workers:
                if worker.starting is None and len(worker.in_hand) == size and waiting and waiting[0] < last:
                    number = heapq.heappop(waiting)
                    spans = tasks[number]
                    part = _part(self.collection, spans[0][0], spans[-1][1])
                    call = worker.actor.blocks.remote(part, spans, self.strict, only_read)
                    worker.in_hand[call] = number

    def _wait(self) -> list[tuple[_Hired, Any]]:
        """Calls that are answered, with their workers. At least one call, unless it takes long."""
        calls = {call: worker for worker in self.workers for call in _calls(worker)}
        ready, _ = self.ray.wait(list(calls), num_returns=1, timeout=_PATIENCE)
        if not ready and all(worker.starting is not None for worker in self.workers):
            self.log("waits for the cluster: it has started no worker yet")
        if ready:  # and whatever else is answered by now
            ready, _ = self.ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [(calls[call], call) for call in ready]

    def _result(self, worker: _Hired, call: Any) -> Any:
        """The answer of a call; `_Death` if the worker is dead, which is then dismissed."""
        from ray.exceptions import RayActorError, RayError, RayTaskError

        if worker not in self.workers:
            return _Death()  # found dead by another call
        try:
            answer = self.ray.get(call)
        except RayTaskError as error:
            raise RuntimeError(f"a worker failed: {error.cause!r}") from None
        except RayActorError as error:
            self.workers.remove(worker)
            self.ray.kill(worker.actor)
            self._require_life(error, worker)
            return _Death()
        except RayError as error:
            raise OSError(f"the cluster is in trouble ({_first_line(error)}); repeat the command to go on") from None
        if call == worker.starting:
            worker.starting = None
            _require_version(answer)
        return answer

    def _require_life(self, error: Any, worker: _Hired) -> None:
        """Raise if workers cannot be started at all; otherwise say that one is lost."""
        self.idle_since_start += 1
        cannot = getattr(error, "actor_init_failed", False) or self.idle_since_start > _DEATHS * self.count
        way_out = "install the same aleator on every machine, and look at the logs of Ray"
        require(not cannot, "engine", "ray", f"workers do not start ({_last_line(error)})", way_out)
        self.log(f"a worker is lost; its {len(worker.in_hand)} blocks go to others")


class _Death:
    """In place of an answer: the worker is dead."""


def _calls(worker: _Hired) -> list[Any]:
    return [worker.starting] if worker.starting is not None else list(worker.in_hand)


def _require_version(found: str) -> None:
    from aleator import __version__

    problem = f"a machine has aleator {found}, and this one has {__version__}"
    require(found == __version__, "engine", "ray", problem, "install the same version on every machine")


def _require_few_deaths(deaths: int, spans: list[tuple[int, int]]) -> None:
    items = f"{spans[0][0]} to {spans[-1][1] - 1}"
    problem = f"{deaths} workers died while they computed items {items}"
    require(deaths < _DEATHS, "engine", "ray", problem, "pass a smaller batch_size, or look at the logs of Ray")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _shared_paths(collection: Collection) -> Collection:
    """The collection without its labels, with paths that hold in every folder."""
    root, items = collection.root, collection.items
    if isinstance(items, FeatureFile):
        items = copy(items)
        items.path = items.path.absolute()
    root = None if root is None else root.absolute()
    return replace(collection, items=items, root=root, labels=None, problems=(), names=None)


def _part(collection: Collection, first: int, last: int) -> Collection:
    """The collection with the items of one block alone, under their numbers. Features stay in their file."""
    if isinstance(collection.items, FeatureFile):
        return collection
    return replace(collection, items=_Window(list(collection.items[first:last]), first))


class _Window(Sequence[Any]):
    """Some items of a long list, under their numbers in it."""

    def __init__(self, items: list[Any], first: int):
        self.items, self.first = items, first

    def __len__(self) -> int:
        return self.first + len(self.items)

    def __getitem__(self, numbers: Any) -> Any:
        start, stop, _ = numbers.indices(len(self))
        return self.items[start - self.first : stop - self.first]
