"""Every write, sync and rename fails once, of runs, rows, labels, embeddings and audits: before or after, and again.

Index, bundles, posteriors files and checkpoints are in tests/retrieval/stores/test_fault_injection.py.
"""

import errno
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aleator import Encoder
from aleator.data import Inputs
from aleator.encoders import MLP
from aleator.evaluation import fit_novelty
from aleator.foundation import DamagedFileError, process_group
from aleator.own_data import Answers, embed, load_run, read_collection, read_embedded, read_findings, save_run
from aleator.own_data.auditing.audit import find_problems
from aleator.own_data.auditing.features import audit_features
from aleator.own_data.auditing.files import claim_audit_folder, write_audit
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.left_out import record_left_out
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.problems import Problem
from aleator.own_data.collection.used_items import save_used_items, used_as
from aleator.own_data.embedding.rows import RowFile, read_rows
from aleator.own_data.learning.learning import _claim_folder as claim_training
from aleator.own_data.measuring.answers import load_answers, save_answers
from aleator.own_data.measuring.views import posteriors_and_views
from aleator.training.run_folder import claim_run_folder
from tests.disk_faults import every_failure
from tests.fuzzing.seeds import label_model
from tests.test_kills_at_writes import kill_everywhere

CONFIG = {"settings": {"dim": 3}, "data": {"items": 6}}
Format = tuple[Callable[[Path], Any], Callable[[Path], Any], Callable[[Path], Any]]


def nothing(folder: Path) -> None:
    """The state before work that begins from nothing."""


@cache
def answers(names: tuple[str, ...]) -> Answers:
    torch.manual_seed(0)
    views = posteriors_and_views(Encoder(MLP(3, (4,)), 3).eval(), torch.randn(9, 3))[1]
    return Answers(label_model(names), fit_novelty(views, views))


def write_run(folder: Path, prior: float, names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    encoder, match = Encoder(MLP(3, (4,)), 3), {"kappa_pos": 9.0, "prior": prior}
    save_run(folder, encoder, Inputs("features", features=3), CONFIG, {"items": 6}, match, answers(names), draw=False)


def run_state(folder: Path) -> Any:
    """A run that is written again is the old one, the new one, or says that it is damaged (then it counts as old)."""
    try:
        run = load_run(folder)
    except DamagedFileError:
        return 0.5, ("a", "b")
    return run.prior, run.label_names


def small_collection(folder: Path, count: int) -> Any:
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32))
    return read_collection(folder / "x.npy")


def begin_embedding(folder: Path) -> None:
    write_run(folder / "run", 0.5, ("a", "b"))
    small_collection(folder, 6)


def finish_embedding(folder: Path) -> None:
    run, items = load_run(folder / "run"), read_collection(folder / "x.npy")
    embed(run, items, folder / "out.safetensors", batch_size=2, device="cpu", progress=False)


def embedding_state(folder: Path) -> Any:
    if not (folder / "out.safetensors").exists():
        return None
    found = read_embedded(folder / "out.safetensors")
    return found.q.mu.tolist(), found.records


def append_rows(folder: Path) -> None:
    with RowFile(folder / "part.rows", 2) as rows:
        for number in range(rows.done, 3):
            rows.append(np.full((1, 2), number, np.float32), np.array([number], np.uint64))


def rows_state(folder: Path) -> Any:
    """Rows that are there are right, however many. A file that is opened again cuts off what is not whole."""
    with RowFile(folder / "part.rows", 2) as rows:
        done = rows.done
    found = [] if not done else np.concatenate(list(read_rows(folder / "part.rows", 2)))[:, 0].tolist()
    assert found == [0, 1, 2][: len(found)]
    return len(found) == 3


def make_audit(folder: Path) -> None:
    items = read_collection(folder / "x.npy")
    if (folder / "audit" / "summary.json").exists():
        return
    cache = claim_audit_folder(folder / "audit", items, None, None)
    digests = item_digests(items)
    found = audit_features(items, None, None, cache, digests, torch.device("cpu"), False)
    write_audit(folder / "audit", find_problems(items, found, digests, progress=False))


def audit_state(folder: Path) -> Any:
    return read_findings(folder / "audit") if (folder / "audit" / "summary.json").exists() else None


def use_items(folder: Path) -> None:
    numbers = np.arange(6)
    save_used_items(
        folder, item_digests(read_collection(folder / "x.npy")), Split(numbers[:3], numbers[3:5], numbers[5:])
    )


def begin_training(folder: Path) -> None:
    with process_group() as group:
        claim_training(folder / "run", CONFIG, group)


FORMATS: dict[str, Format] = {
    "run": (
        lambda folder: write_run(folder, 0.5, ("a", "b")),
        lambda folder: write_run(folder, 0.25, ("c", "d")),
        run_state,
    ),
    "label probabilities": (
        lambda folder: save_answers(folder, answers(("a", "b"))),
        lambda folder: save_answers(folder, answers(("c", "d"))),
        lambda folder: load_answers(folder).labels.names,  # type: ignore[union-attr]
    ),
    "rows": (nothing, append_rows, rows_state),
    "embedding": (begin_embedding, finish_embedding, embedding_state),
    "audit": (lambda folder: small_collection(folder, 24), make_audit, audit_state),
    "used items": (
        lambda folder: small_collection(folder, 6),
        use_items,
        lambda folder: used_as(folder, item_digests(read_collection(folder / "x.npy"))),
    ),
    "items left out": (
        nothing,
        lambda folder: record_left_out(folder, [Problem("b.jpg", "damaged", "remove it")]),
        lambda folder: (folder / "left_out.json").exists(),
    ),
    "start of a training": (nothing, begin_training, lambda folder: (folder / "run" / "config.json").exists()),
    "start of a run": (
        nothing,
        lambda folder: claim_run_folder(folder / "run", {"a": 1}),
        lambda folder: (folder / "run" / "run.json").exists(),
    ),
}


@pytest.fixture
def whole(tmp_path):
    folder = tmp_path / "whole"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_every_call_fails_once(name, whole, tmp_path):
    begin, work, state = FORMATS[name]
    begin(whole)
    assert every_failure(work, state, whole, tmp_path, (errno.ENOSPC,)) >= 3


@pytest.mark.parametrize("name", ["audit", "start of a training", "start of a run", "items left out"])
def test_killed_at_every_call(name, whole, tmp_path):
    """What a killed process has left, such as half of a first file, does not keep the next one out."""
    begin, work, state = FORMATS[name]
    begin(whole)
    assert kill_everywhere(work, state, whole, tmp_path) >= 3


@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("audit/cache/audit.json", make_audit),
        ("run/config.json", begin_training),
        ("run/run.json", lambda folder: claim_run_folder(folder / "run", {"a": 1})),
        ("left_out.json", lambda folder: record_left_out(folder, [])),
    ],
)
@pytest.mark.parametrize("content", ["", "{", "7", '["a"]', '{"items": 1}', "\xff"])
def test_a_damaged_record_of_unfinished_work_is_named(file, call, content, tmp_path):
    small_collection(tmp_path, 24)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"is damaged.*(name|remove|new)|another|other items") as refusal:
        call(tmp_path)
    assert str((tmp_path / file).parent).removesuffix("/cache") in str(refusal.value)
