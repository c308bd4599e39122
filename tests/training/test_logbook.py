"""Logs: CSV, TensorBoard, Weights & Biases, the progress bar."""

import sys

import pytest

from tests.training.training_cases import run


def test_tensorboard_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard")
    run(tmp_path / "run", loggers=("csv", "tensorboard"))
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_missing_loggers_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        run(tmp_path / "run", loggers=("wandb",))
    with pytest.raises(ValueError, match="loggers = 'excel'"):
        run(tmp_path / "run", loggers=("excel",))


def test_the_progress_bar_shows_the_loss(capsys):
    run(None, progress=True)
    assert "loss" in capsys.readouterr().err
    run(None)  # not a terminal
    assert capsys.readouterr().err == ""
