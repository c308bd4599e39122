"""Writers of an index that are killed: in a folder at any moment, on Lance in the middle of any call."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.killing import Report, errors_in, finish, fork, kill_after, kill_in_call


class Index:
    """Twelve additions, removals, saves and builds of a folder; afterwards it is the state before or after the call."""

    @property
    def location(self) -> str:
        return str(self.folder / "index")

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw, self.number = folder, draw, 0
        self.problems: list[str] = []
        self.held: set[str] = set()
        self.usual = 0.4
        finish(self._build, folder / "answer")

    def _build(self) -> None:
        from tests.retrieval import worker

        from aleator.retrieval import CredibleIndex

        CredibleIndex.build(worker.posterior_of([]), location=self.location, replace=True).close()

    def _step(self, step: list[Any]) -> list[Any]:
        return step

    def _kill(self, pid: int, report: Report, steps: list[list[Any]]) -> bool:
        """At any moment up to the time that all calls took when nobody interfered."""
        began = time.monotonic()
        killed = kill_after(pid, self.draw.uniform(0, self.usual))
        if not killed:
            self.usual = time.monotonic() - began
        return killed

    def once(self) -> tuple[bool, bool]:
        from tests.retrieval import worker
        from tests.retrieval.stores.test_kills import some_steps

        self.number += 1
        steps, states = some_steps(self.draw, self.held, str(self.number))
        steps = [self._step(step) for step in steps]
        report = Report(self.folder / "report")

        def work() -> None:
            say, index = report.open(), None
            for step in steps:
                say("begin")
                index = worker.take(step, index, self.location)
                say("done")

        killed = self._kill(fork(work, self.folder / "answer"), report, steps)
        if not killed:
            self.problems += errors_in(self.folder / "answer")
        try:
            found, _ = finish(lambda: items_of(self.location), self.folder / "looked")
        except RuntimeError as error:
            self.problems.append(str(error))
            finish(self._build, self.folder / "answer")
            self.held = set()
            return killed, False
        allowed = (states[report.count("done")], states[report.count("begin")])
        if set(found) not in allowed:
            self.problems.append(f"neither before nor after: {len(found)} items")
        self.held = set(found)
        return killed, True


class OnLance(Index):
    """The same, of Lance tables in a folder, with a vector index that every build makes and every save renews.

    Calls of Lance take very different times, and the first is the slowest. So one of the twelve calls is drawn, and the
    process is killed during this call, at a moment up to the time that calls of its kind take. `hit` says which kind of
    call was under way.
    """

    def __init__(self, folder: Path, draw: random.Random):
        import lancedb  # noqa: F401  # it starts a thread, so not before the other kinds are warm; forks make their own

        super().__init__(folder, draw)
        self.hit: str | None = None
        self.seconds, _ = finish(self._time, folder / "answer")

    @property
    def location(self) -> str:
        return f"lance:{self.folder / 'index'}"

    def _step(self, step: list[Any]) -> list[Any]:
        return [*step, {"exact_below": 1}] if step[0] == "build" else step

    def _time(self) -> dict[str, float]:
        """Seconds of each kind of call when nobody interferes, and of the first call of a process."""
        from tests.retrieval import worker

        ids, index, seconds = [f"item-{i}" for i in range(40)], None, {}
        steps = [["add", ids], ["build", ids], ["add", ["one", "two"]], ["save"], ["remove", ids]]
        for number, step in enumerate(steps):
            began = time.monotonic()
            index = worker.take(self._step(step), index, self.location)
            seconds["first" if number == 0 else step[0]] = time.monotonic() - began
        worker.take(self._step(["build", []]), index, self.location)
        return seconds

    def _kill(self, pid: int, report: Report, steps: list[list[Any]]) -> bool:
        number = self.draw.randrange(len(steps))
        usual = self.seconds["first" if number == 0 else steps[number][0]]
        killed = kill_in_call(pid, report, number, self.draw.uniform(0, usual))
        begun, done = report.count("begin"), report.count("done")
        self.hit = None if not killed else steps[done][0] if begun > done else "no call"
        return killed


def items_of(location: str) -> list[str]:
    """Ids of an index, each of which finds itself, also in the vector index, if there is one."""
    from tests.retrieval.stores.test_kills import everything_in

    from aleator.retrieval import CredibleIndex

    with CredibleIndex.open(location) as index:
        found = everything_in(index)
        if index.store.efforts:
            anything = np.eye(1, index.dim, dtype=np.float32), np.array([-np.inf]), index.store.efforts[-1]
            assert len(set(index.store.within(*anything).row.tolist())) == len(found)
    assert all(metadata == {"id": id} for id, metadata in found.items())
    return sorted(found)
