"""A clock that is set back, or files from the future: locks, indexes, checkpoints, caches and limits do not mind."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator.foundation import DamagedFileError, describe_run, only_process
from aleator.own_data.embedding.rows import RowFile, read_rows
from aleator.retrieval import CredibleIndex, check_index, read_posteriors, write_posteriors
from aleator.training.checkpoints import Checkpoints
from aleator.web.failed_tokens import FailedTokens
from tests.retrieval.worker import metadata_of, posterior_of

IDS = [f"i{i}" for i in range(20)]
YEAR = 365 * 86_400.0


@pytest.fixture
def set_back(monkeypatch):
    """Sets the clock back by a year, whenever it is called."""
    real, lost = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() - lost[0])

    def back() -> None:
        lost[0] += YEAR

    return back


def age(folder: Path, draw: np.random.Generator) -> None:
    """Give every file a random time, up to a year in the future."""
    for path in folder.rglob("*"):
        when = time.time() + draw.uniform(-YEAR, YEAR)
        os.utime(path, (when, when))


def test_a_lock_is_held_and_released_whatever_the_clock_says(tmp_path, set_back):
    lock = tmp_path / ".out.lock"
    with only_process(lock, "output", "embed"):
        set_back()
        os.utime(lock, (0, 0))  # an old lock is not a lock that was left behind
        with pytest.raises(ValueError, match="another process works on it"), only_process(lock, "output", "embed"):
            pass
    os.utime(tmp_path, (0, 0))
    lock.write_text("left behind, and from the future")
    os.utime(lock, (time.time() + 3 * YEAR,) * 2)
    with only_process(lock, "output", "embed"):
        pass


def test_an_index_goes_by_its_ledger_not_by_times(tmp_path, set_back):
    draw, folder = np.random.default_rng(0), tmp_path / "index"
    CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=folder).close()
    with CredibleIndex.open(folder) as first, CredibleIndex.open(folder) as second:
        for number in range(3):
            set_back()
            age(folder, draw)
            first.add(posterior_of([f"x{number}"]), [f"x{number}"])
            assert f"x{number}" in second
            second.save()
            age(folder, draw)
            assert first.search(posterior_of([f"x{number}"]), by="nearest", limit=1)[0][0].id == f"x{number}"
    assert check_index(folder) == len(IDS) + 3


def test_the_newest_checkpoint_is_the_one_with_the_most_steps(tmp_path, set_back):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, {"w": torch.full((2,), float(step))})
        set_back()
        for path in tmp_path.rglob(f"step-{step:08d}*"):
            os.utime(path, (time.time(),) * 2)
    assert checkpoints.latest()["w"].tolist() == [3.0, 3.0]


def test_a_checksum_that_was_verified_is_not_kept_for_a_file_that_was_changed(tmp_path):
    """Even if its size and its time are the same, as after a copy, or on a clock that was set back."""
    q, path = posterior_of(IDS), tmp_path / "p.safetensors"
    write_posteriors(path, 20, 8, [(q.mu.numpy(), q.kappa.numpy())], {})
    read_posteriors(path)
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x01")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        read_posteriors(path)


def test_wrong_tokens_stay_limited(set_back):
    limit = FailedTokens(most=3, window=60.0)
    for _ in range(3):
        assert limit.seconds_to_wait("here") == 0
        limit.failed("here")
        set_back()
    assert 0 < limit.seconds_to_wait("here") <= 60


def test_rows_are_appended_and_logged_times_are_not_negative(tmp_path, set_back):
    began = time.time()
    with RowFile(tmp_path / "part.rows", 2) as rows:
        for number in range(3):
            rows.append(np.full((1, 2), number, np.float32), np.array([number], np.uint64))
            set_back()
    assert np.concatenate(list(read_rows(tmp_path / "part.rows", 2)))[:, 0].tolist() == [0, 1, 2]
    assert describe_run(began, "cpu")["wall_seconds"] == 0
