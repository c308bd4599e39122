"""Work side by side, with the environment of the moment, on one GPU; workers never outlive their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aleator.experiments.workers import shared_gpu, side_by_side
from tests.retrieval.processes import is_over, wait_until


def write_note(path: Path) -> None:
    """Work that writes what it finds: a variable of the environment, and how many threads it has."""
    if path.name == "broken":
        raise ValueError("broken on purpose")
    path.write_text(f"{os.environ.get('COIN')} {torch.get_num_threads()}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_item_is_worked_on_and_errors_are_told(jobs, tmp_path):
    items = [tmp_path / name for name in ("first", "broken", "second")]
    ended = dict(side_by_side(write_note, items, "cpu", jobs))
    assert ended.keys() == set(items)
    assert {path.name: str(error) for path, error in ended.items() if error} == {"broken": "broken on purpose"}
    assert items[0].exists()
    assert items[2].exists()


def test_workers_have_the_environment_of_their_start_and_one_thread(tmp_path, monkeypatch):
    """Workers are copies of a process that is started once; what changes afterwards reaches them all the same."""
    for value in ("1", "2", None):
        monkeypatch.setenv("COIN", value) if value else monkeypatch.delenv("COIN")
        items = [tmp_path / f"{value}-{i}" for i in range(2)]
        assert all(error is None for _, error in side_by_side(write_note, items, "cpu", 2))
        assert [path.read_text() for path in items] == 2 * [f"{value} 1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_experiment_takes_its_workers_along(number, tmp_path):
    """They do not first finish what they are doing."""
    script = Path(__file__).with_name("sleeping_experiment.py")
    started = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.DEVNULL)
    written = lambda: [text for path in tmp_path.rglob("pid") if (text := path.read_text())]  # noqa: E731
    wait_until(lambda: len(written()) == 2)
    pids = [int(text) for text in written()]
    started.send_signal(number)
    started.wait(30)
    wait_until(lambda: all(map(is_over, pids)))


@pytest.mark.parametrize("code", [0, 1])
def test_the_gpu_is_shared_as_long_as_runs_are_made(code, tmp_path, monkeypatch, caplog):
    """With a program in the place of NVIDIA's: it is started, told to quit, and its failure is told."""
    log, control = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" = -d ] || cat >> {log}\necho broken >&2\nexit {code}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with shared_gpu("cpu"):
        assert not log.exists()
    with shared_gpu("cuda:0"):
        folder = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.is_dir()
        assert log.read_text() == "-d\n"
    assert log.read_text().split() == ["-d", "quit"]
    assert not folder.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert [record.message for record in caplog.records] == code * [
        "NVIDIA's MPS did not start (broken); the runs take turns on the GPU, which takes longer"
    ]
