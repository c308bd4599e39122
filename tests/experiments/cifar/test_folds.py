"""Folds and labels of the CIFAR-10H experiments."""

from dataclasses import replace

import pytest
import torch

from aleator.experiments.cifar import folds as cifar_folds
from tests.experiments.cifar.small import TINY


@pytest.mark.parametrize("fold", range(5))
def test_folds_are_the_papers(stand_in, fold):
    images, folds = stand_in
    train_images, labels = cifar_folds.training_data(TINY, fold)
    parts = [folds[(fold + i) % 5] for i in range(5)]
    assert torch.equal(train_images, images.images[torch.cat(parts[:3])])
    assert labels.shape == (60, 10)
    assert torch.equal(cifar_folds.held_out(TINY, fold + 3).number, parts[3])
    assert torch.equal(cifar_folds.held_out(TINY, fold + 4).number, parts[4])


def test_kinds_of_labels(stand_in):
    soft = cifar_folds.training_data(TINY, 0)[1]
    hard = cifar_folds.training_data(replace(TINY, labels="hard"), 0)[1]
    assert torch.equal(hard, soft.argmax(1))
    images, train = cifar_folds.training_data(replace(TINY, labels="train"), 0)
    assert len(images) == len(train) == 80
    images, votes = cifar_folds.training_data(replace(TINY, labels="votes", repeat=2), 0)
    assert len(images) == len(votes) == 80 + 2 * 60
    assert torch.equal(votes[-60:], soft)


def test_missing_data_is_one_line_before_anything_runs(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from aleator.cli import app

    monkeypatch.delenv("ALEATOR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ([], "no data folder is named"),
        (["--data-dir", str(tmp_path / "nowhere")], "is not a folder"),
        (["--data-dir", str(tmp_path)], "CIFAR-10 is not there"),
    ):
        done = CliRunner().invoke(app, ["reproduce", "cifar-losses", *options])
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
