"""aleator export: the file, and errors in one line."""

import subprocess
import sys

import numpy as np
import pytest

from aleator.own_data import Settings, read_collection, train
from tests.cli.test_own_data import run_command


@pytest.fixture(scope="module")
def run(features):
    settings = Settings(steps=2, dim=4, width=8, members=1)
    collection = read_collection(features / "x.npy", features / "y.npy")
    return train(collection, features / "small", settings, device="cpu", baselines=False, figures=False)


@pytest.mark.slow
def test_a_fresh_process_writes_a_file_that_runs(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    path = tmp_path / "head.onnx"
    command = [sys.executable, "-m", "aleator", "export", str(run.folder), "--onnx", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"{path}: ")
    assert result.stderr == ""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    mu, kappa = session.run(None, {"features": np.zeros((2, 6), np.float32)})
    assert mu.shape == (2, 4)
    assert kappa.shape == (2,)


def test_errors_are_one_line(run, tmp_path):
    assert "name it .onnx" in run_command("export", run.folder, "--onnx", tmp_path / "head.pt", code=2).stderr
    (tmp_path / "out.onnx").mkdir()
    folder = run_command("export", run.folder, "--onnx", tmp_path / "out.onnx", code=2).stderr
    assert folder == f"--onnx '{tmp_path}/out.onnx': is a folder; name a file\n"
    nowhere = run_command("export", f"{tmp_path}/nowhere", "--onnx", tmp_path / "head.onnx", code=2)
    assert "there is no such folder" in nowhere.stderr
