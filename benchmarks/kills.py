"""Processes killed (SIGKILL) at random moments: what was acknowledged is there, nothing is twice, and work that goes on
ends with what an undisturbed process makes.

    python -m benchmarks.kills [seconds]

It stops after so many seconds, or when every kind has its number of kills. A later call adds to the counts in
results/benchmarks/kills.json. Only processes that died of the signal are counted, not those that ended before it.

Everything is done by forks of one process that has only imported the libraries, so a kill costs milliseconds.
"""

import contextlib
import hashlib
import json
import random
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.killing import Report, errors_in, finish, fork, kill_after
from benchmarks.kills_index import Index, OnLance, items_of

WANTED = {"index": 600, "embedding": 500, "training": 300, "checkpoints": 400, "server": 200, "lance": 200}
RESULT = Path("results/benchmarks/kills.json")


def main(seconds: float = 300.0) -> None:
    """Kill each kind in turn until the time is over, and add to the counts."""
    _import_everything()
    _warm_up()
    began = recorded = time.time()
    spent: dict[str, float] = {}
    counts = json.loads(RESULT.read_text())["kinds"] if RESULT.exists() else {}
    for name in WANTED:
        counts.setdefault(name, {"kills": 0, "ended before the kill": 0, "finished and compared": 0, "violations": []})
    with tempfile.TemporaryDirectory() as scratch:
        kinds: dict[str, Kind] = {}
        for name in WANTED:
            (Path(scratch) / name).mkdir()
            kinds[name] = KINDS[name](Path(scratch) / name, random.Random(f"{name} {counts[name]['kills']}"))
        while time.time() < began + seconds:
            waiting = [name for name in WANTED if counts[name]["kills"] < WANTED[name]]
            if not waiting:
                break
            name = min(waiting, key=lambda name: counts[name]["kills"] / WANTED[name])
            start = time.time()
            for what in _once(kinds[name]):
                counts[name][what] += 1
            hit = getattr(kinds[name], "hit", None)
            if hit is not None:
                counts[name].setdefault("killed during", {}).setdefault(hit, 0)
                counts[name]["killed during"][hit] += 1
            if kinds[name].problems:
                counts[name]["violations"] += kinds[name].problems
                print(name, kinds[name].problems, flush=True)
                kinds[name].problems.clear()
            spent[name] = spent.get(name, 0.0) + time.time() - start
            if time.time() > recorded + 15:
                recorded = time.time()
                _record(counts, began)
    _record(counts, began)
    print("seconds:", spent)
    print(RESULT.read_text())


def _record(counts: dict[str, Any], began: float) -> None:
    from aleator.foundation import describe_run, write_json

    total = {what: sum(kind[what] for kind in counts.values()) for what in ("kills", "finished and compared")}
    total["violations"] = sum(len(kind["violations"]) for kind in counts.values())
    write_json(RESULT, {"provenance": describe_run(began, "cpu"), "total": total, "kinds": counts})


class Kind(Protocol):
    """Work that is killed."""

    problems: list[str]

    def once(self) -> tuple[bool, bool]:
        """Start, kill, look; whether the process was killed, and whether a finished result was compared."""


def _once(kind: Kind) -> list[str]:
    killed, compared = kind.once()
    return ["kills" if killed else "ended before the kill"] + ["finished and compared"] * compared


def _import_everything() -> None:
    """Imports only: a fork of a process that has threads would hang."""
    import faiss
    import lightning_fabric  # noqa: F401
    import scipy.optimize
    import scipy.special  # noqa: F401
    import tests.own_data.conftest
    import tests.retrieval.stores.test_kills
    import tests.training.training_cases  # noqa: F401
    import uvicorn  # noqa: F401

    import aleator.cli.serve
    import aleator.own_data
    import aleator.web  # noqa: F401

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    warnings.simplefilter("ignore")


def _warm_up() -> None:
    """Load what the first call of each kind loads, so that its forks need not. None of it leaves a thread."""
    import threading

    from tests.retrieval import worker
    from tests.retrieval.stores.test_kills import everything_in

    import aleator as al
    from aleator.retrieval import CredibleIndex
    from aleator.web.credible_levels import cap_cosines

    with tempfile.TemporaryDirectory() as folder:
        ids = [f"item-{i}" for i in range(40)]
        location = Path(folder) / "index"
        with CredibleIndex.build(worker.posterior_of(ids), ids, worker.metadata_of(ids), location=location) as index:
            everything_in(index)
        cap_cosines(worker.DIM, 1.0)
        encoder = al.Encoder(torch.nn.Linear(4, 16), dim=3, features=16)
        pair = torch.rand(32, 4), torch.rand(32, 4)
        recipe = al.Recipe(steps=4, checkpoint_every=2)
        al.fit(encoder, al.ExactInfoNCE(), [pair], recipe, folder=Path(folder) / "run", device="cpu", loggers=["csv"])
    assert threading.active_count() == 1


class Embedding:
    """400 items in batches of ten. Rows on disk stay there; the finished file is equal byte for byte."""

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw = folder, draw
        self.problems: list[str] = []
        self.output = folder / "all.safetensors"
        finish(self._train, folder / "answer")
        (folder / "whole").mkdir()
        _, self.usual = finish(lambda: self._embed(folder / "whole" / "all.safetensors"), folder / "answer")
        self.whole = [(folder / "whole" / f"all.{ending}").read_bytes() for ending in ("safetensors", "jsonl")]
        self.rows = b""

    def _train(self) -> None:
        import numpy as np
        from tests.own_data.conftest import QUICK, blobs

        from aleator.own_data import read_collection, train

        x, y = blobs()
        np.save(self.folder / "x.npy", x)
        np.save(self.folder / "y.npy", y)
        collection = read_collection(self.folder / "x.npy", self.folder / "y.npy")
        train(collection, self.folder / "run", QUICK, device="cpu", baselines=False, figures=False)

    def _embed(self, output: Path) -> None:
        from aleator.own_data import embed, load_run, read_collection

        collection = read_collection(self.folder / "x.npy", self.folder / "y.npy")
        embed(load_run(self.folder / "run"), collection, output, batch_size=10, device="cpu")

    def _acknowledged(self) -> bytes:
        """The rows of the batches that are whole. A resumed process makes the others again."""
        part = self.output.with_suffix(".partial") / "part-0000.rows"
        if not part.exists():
            return b""
        from tests.own_data.conftest import QUICK

        rows, batch = part.read_bytes(), 10 * (4 * (QUICK.dim + 2) + 8)  # mu, kappa, novelty and the seal
        return rows[: len(rows) // batch * batch]

    def once(self) -> tuple[bool, bool]:
        report = self.folder / "answer"
        killed = kill_after(fork(lambda: self._embed(self.output), report), self.draw.uniform(0, self.usual))
        if killed and not self.output.exists():
            rows = self._acknowledged()
            if not rows.startswith(self.rows):
                self.problems.append(f"rows that were on disk changed: {len(self.rows)} bytes before, {len(rows)} now")
            self.rows = rows
            return True, False
        if killed:  # after the file was there, perhaps before the rest was cleared away
            finish(lambda: self._embed(self.output), report)
        else:
            self.problems += errors_in(report)
        made = [self.output.with_suffix(f".{end}") for end in ("safetensors", "jsonl")]
        if [one.read_bytes() if one.exists() else b"" for one in made] != self.whole:
            self.problems.append("the resumed file differs from the undisturbed one")
        for one in made:
            one.unlink(missing_ok=True)
        shutil.rmtree(self.output.with_suffix(".partial"), ignore_errors=True)
        self.rows = b""
        return killed, True


class Training:
    """40 steps with a checkpoint after every fifth. Resumed weights and logs are equal bit for bit."""

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw, self.acknowledged = folder, draw, 0
        self.problems: list[str] = []
        self.report = Report(folder / "report")
        self.whole, self.usual = finish(lambda: self._fit(folder / "whole"), folder / "answer")
        self.report = Report(folder / "report")  # without the lines of the undisturbed run

    def _fit(self, folder: Path) -> dict[str, Any]:
        import csv

        import aleator as al
        from aleator.training.checkpoints import Checkpoints

        say, save = self.report.open(), Checkpoints.save

        def save_and_say(self: Checkpoints, step: int, state: Any) -> None:
            save(self, step, state)
            say(f"saved {step}")

        def pairs(step: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
            anchor = torch.rand(32, 4, generator=generator)
            return anchor, anchor + 0.1 * torch.randn(32, 4, generator=generator)

        Checkpoints.save = save_and_say  # type: ignore[method-assign]
        torch.manual_seed(0)
        encoder = al.Encoder(torch.nn.Linear(4, 16), dim=3, features=16)
        recipe = al.Recipe(steps=40, learning_rate=1e-2, log_every=5, checkpoint_every=5)
        result = al.fit(encoder, al.ExactInfoNCE(), pairs, recipe, folder=folder, device="cpu", loggers=["csv"])
        digest = hashlib.sha256()
        for name, tensor in sorted(encoder.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        history = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
        with open(folder / "training.csv") as file:
            steps = [row["step"] for row in csv.DictReader(file)]
        return {"weights": digest.hexdigest(), "history": history, "steps in the log": steps}

    def once(self) -> tuple[bool, bool]:
        target, answer = self.folder / "run", self.folder / "answer"
        killed = kill_after(fork(lambda: self._fit(target), answer), self.draw.uniform(0, self.usual))
        self.acknowledged = max(self.acknowledged, self.report.last("saved"))
        if killed:
            try:
                found, _ = finish(lambda: _latest_step(target), self.folder / "looked")
                if found < self.acknowledged:
                    self.problems.append(f"checkpoint {self.acknowledged} was written, {found} is there")
            except RuntimeError as error:
                self.problems.append(str(error))
            return True, False
        if json.loads(answer.read_text()) != self.whole:
            self.problems.append(f"differs from the undisturbed run: {answer.read_text()[-1500:]}")
        shutil.rmtree(target)
        self.report, self.acknowledged = Report(self.folder / "report"), 0
        return False, True


def _latest_step(folder: Path) -> int:
    from aleator.training.checkpoints import Checkpoints

    state = Checkpoints(folder).latest()
    return 0 if state is None else int(state["run"]["done"])


class Writing:
    """Checkpoints one after the other. The newest that is read is one that was acknowledged, or the one under way."""

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw, self.step = folder, draw, 0
        self.problems: list[str] = []

    @staticmethod
    def _state(step: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(step)
        return {
            "step": step,
            "weights": torch.randn(100, 100, generator=generator),
            "list": [{"x": torch.full((7,), step)}],
        }

    def once(self) -> tuple[bool, bool]:
        from aleator.training.checkpoints import Checkpoints

        report, first = Report(self.folder / "report"), self.step + 1

        def work() -> None:
            say, checkpoints = report.open(), Checkpoints(self.folder)
            for step in range(first, first + 40):
                state = self._state(step)
                say(f"begin {step}")
                checkpoints.save(step, state)
                say(f"done {step}")

        def look() -> int:
            found = Checkpoints(self.folder).latest()
            if found is None:
                return 0
            wanted = self._state(found["step"])
            assert torch.equal(found["weights"], wanted["weights"])
            assert torch.equal(found["list"][0]["x"], wanted["list"][0]["x"])
            return int(found["step"])

        killed = kill_after(fork(work, self.folder / "answer"), self.draw.uniform(0, 0.1))
        if not killed:
            self.problems += errors_in(self.folder / "answer")
        try:
            found, _ = finish(look, self.folder / "looked")
        except RuntimeError as error:
            self.problems.append(str(error))
            return killed, False
        done, begun = max(self.step, report.last("done")), max(self.step, report.last("begin"))
        if found not in (done, begun):
            self.problems.append(f"checkpoint {done} was written, {found} is there")
        self.step = found
        return killed, True


class Server:
    """A server is killed while it answers. Answers that arrive whole, before and after, are the undisturbed ones."""

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw = folder, draw
        self.problems: list[str] = []
        self.ids = [f"item-{i}" for i in range(200)]
        finish(self._build, folder / "answer")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        began = time.monotonic()
        pid = fork(self._serve, folder / "answer")
        self.wanted = self._ask(self.ids[:40])
        self.usual = time.monotonic() - began
        kill_after(pid, 0)
        assert all(self.wanted.values())

    def _build(self) -> None:
        from tests.retrieval import worker

        from aleator.retrieval import CredibleIndex

        q, metadata = worker.posterior_of(self.ids), worker.metadata_of(self.ids)
        CredibleIndex.build(q, self.ids, metadata, location=self.folder / "index").close()

    def _serve(self) -> None:
        from aleator.cli.serve import _listen, _run
        from aleator.retrieval import CredibleIndex
        from aleator.web import create_app

        listener = _listen("127.0.0.1", self.port)
        with CredibleIndex.open(self.folder / "index") as index:
            _run(create_app(index), listener)

    def _ask(self, ids: list[str], kill: Callable[[], None] = lambda: None) -> dict[str, str]:
        """Ask about items, all at once, kill, and return the answers that arrive whole."""
        answers: dict[str, str] = {}
        for _ in range(1000):
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
                break
            except ConnectionRefusedError:
                time.sleep(0.005)
        else:
            return answers
        with connection, connection.makefile("rb") as stream, contextlib.suppress(ConnectionError, TimeoutError):
            head = "HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            connection.sendall(f"GET /api/health {head}".encode())
            if _read_answer(stream) is None:
                return answers
            connection.sendall("".join(f"GET /api/query/item?id={id}&limit=5 {head}" for id in ids).encode())
            kill()
            for id in ids:
                answer = _read_answer(stream)
                if answer is not None:
                    answers[id] = answer
        return answers

    def once(self) -> tuple[bool, bool]:
        pid = fork(self._serve, self.folder / "answer")
        killed = []
        chosen = self.draw.sample(self.ids[:40], 20)
        if self.draw.random() < 0.2:  # also while it starts
            killed.append(kill_after(pid, self.draw.uniform(0, self.usual)))
            answers = {}
        else:
            answers = self._ask(chosen, lambda: killed.append(kill_after(pid, self.draw.uniform(0, 0.15))))
        if not killed:
            killed.append(kill_after(pid, 0))
            self.problems.append("the server could not be reached")
        for id, answer in answers.items():
            if answer != self.wanted[id]:
                self.problems.append(f"another answer about {id}: {answer[:300]}")
        try:
            found, _ = finish(lambda: items_of(str(self.folder / "index")), self.folder / "looked")
            if found != sorted(self.ids):
                self.problems.append(f"{len(found)} items are left")
        except RuntimeError as error:
            self.problems.append(str(error))
        return killed[0], bool(answers)


def _read_answer(stream: Any) -> str | None:
    """Status and body of an answer; None if it is not whole."""
    status, length = stream.readline(), 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body = stream.read(length)
    return f"{status.decode().strip()} {body.decode()}" if line and len(body) == length else None


KINDS: dict[str, Callable[[Path, random.Random], Kind]] = {
    "index": Index,
    "embedding": Embedding,
    "training": Training,
    "checkpoints": Writing,
    "server": Server,
    "lance": OnLance,
}

if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
