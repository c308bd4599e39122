"""torchrun trains one model with several processes into one run folder; each process has its own batches."""

import json
import os
import subprocess
import sys

import pytest

from aleator.own_data import load_run


@pytest.mark.slow
def test_two_processes_train_one_run(features, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "aleator", "train"]
    command += [str(features / "x.npy"), "--labels", str(features / "y.npy"), "--output", str(tmp_path / "run")]
    command += ["--steps", "60", "--dim", "4", "--width", "32", "--batch-size", "32", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held-out items") == 1  # one process prints
    run = load_run(tmp_path / "run")
    assert run.metrics["recall_at_1"] > 0.5
    assert json.loads((tmp_path / "run/training/run.json").read_text())["processes"] == 2
    again = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stderr
