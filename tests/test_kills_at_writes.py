"""A process killed at every call that writes, with half of what it wanted to write: the state before or after.

Calls of Python are counted: opening, writing, syncing, renaming, cutting and removing. What SQLite and faiss write in C
is killed at random moments in tests/retrieval/stores/test_kills.py.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aleator import Encoder
from aleator.data import Inputs
from aleator.encoders import MLP
from aleator.foundation import DamagedFileError, read_bundle, write_bundle
from aleator.own_data import load_run, save_run
from aleator.own_data.embedding.rows import RowFile, read_rows
from aleator.retrieval import CredibleIndex, check_index, read_posteriors, write_items, write_posteriors
from aleator.training.checkpoints import Checkpoints
from tests.disk_faults import die, fault_at
from tests.retrieval.worker import posterior_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
IDS = [f"i{i}" for i in range(6)]


def killed_at(number: int, work: Callable[[], None]) -> bool:
    """Whether a child that does the work was killed at the call of this number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            with fault_at(number, die):
                work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kill_everywhere(work: Callable[[Path], None], state: Callable[[Path], Any], whole: Path, scratch: Path) -> int:
    """Kill the work at every call: the state is the one before or after, and the work can be done again."""
    finished = Path(shutil.copytree(whole, scratch / "finished"))
    before = state(whole)
    work(finished)
    after = state(finished)
    assert before != after
    number = 0
    while True:
        number += 1
        copy = Path(shutil.copytree(whole, scratch / str(number)))
        if not killed_at(number, lambda copy=copy: work(copy)):
            return number - 1
        assert state(copy) in (before, after), f"killed at call {number}"
        work(copy)
        assert state(copy) == after, f"killed at call {number}, and repeated"
        shutil.rmtree(copy)


def posteriors_file(folder: Path, kappa: float) -> None:
    q = posterior_of(IDS)
    write_items(folder / "p.jsonl", [{"id": id, "kappa": kappa} for id in IDS])
    rows = (q.mu.numpy(), np.full(6, kappa, np.float32))
    write_posteriors(folder / "p.safetensors", 6, 8, [rows], {})


def run_folder(folder: Path, prior: float) -> None:
    torch.manual_seed(0)
    inputs, match = Inputs("features", features=3), {"kappa_pos": 9.0, "prior": prior}
    save_run(folder, Encoder(MLP(3, (4,)), 3), inputs, {"data": {}}, {"items": int(10 * prior)}, match, draw=False)


def index_work(folder: Path) -> None:
    with CredibleIndex.open(folder / "index") as index:
        if "y" not in index:
            index.add(posterior_of(["y"]), ["y"])
        index.save()


def rows_work(folder: Path) -> None:
    with RowFile(folder / "part.rows", 2) as rows:
        for number in range(rows.done, 4):
            rows.append(np.full((1, 2), number, np.float32), np.array([number], np.uint64))


def run_state(folder: Path) -> Any:
    """What a run says; a run that is written again has no state in between, and says that."""
    try:
        run = load_run(folder)
    except DamagedFileError:
        return 0.5  # named, and training again mends it: as before
    return run.prior


FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], Callable[[Path], Any]]] = {
    "bundle": (
        lambda folder: write_bundle(folder, "thing", 1, {"n": 1}, {"a": torch.zeros(3)}, overwrite=True) and None,
        lambda folder: write_bundle(folder, "thing", 1, {"n": 2}, {"a": torch.ones(3)}, overwrite=True) and None,
        lambda folder: read_bundle(folder, "thing", 1).metadata["n"],
    ),
    "checkpoints": (
        lambda folder: Checkpoints(folder).save(1, {"w": torch.ones(3)}),
        lambda folder: Checkpoints(folder).save(2, {"w": torch.full((3,), 2.0)}),
        lambda folder: Checkpoints(folder).latest()["w"].tolist(),
    ),
    "posteriors file": (
        lambda folder: posteriors_file(folder, 1.0),
        lambda folder: posteriors_file(folder, 2.0),
        lambda folder: read_posteriors(folder / "p.safetensors").kappa.tolist(),
    ),
    "index": (
        lambda folder: CredibleIndex.build(posterior_of(IDS), IDS, location=folder / "index").close(),
        index_work,
        lambda folder: check_index(folder / "index"),
    ),
    "run": (lambda folder: run_folder(folder, 0.5), lambda folder: run_folder(folder, 0.25), run_state),
}


@pytest.mark.filterwarnings("ignore:checkpoint")
@pytest.mark.parametrize("name", FORMATS)
def test_killed_at_every_call_that_writes(name, tmp_path):
    write, work, state = FORMATS[name]
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole)
    assert kill_everywhere(work, state, whole, tmp_path) >= 4


def test_rows_of_a_killed_embedding_are_whole_and_go_on(tmp_path):
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        killed = killed_at(number, lambda folder=folder: rows_work(folder))
        rows_work(folder)
        found = np.concatenate(list(read_rows(folder / "part.rows", 2)))
        assert found[:, 0].tolist() == [0, 1, 2, 3], f"killed at call {number}"
        if not killed:
            break
    assert number >= 7  # as many calls write
