"""One mode or two, decided by held-out labels."""

import json

import numpy as np
import pytest
import torch

from aleator.own_data import Settings, read_collection, train
from aleator.own_data.learning import mode_trial


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((120, 4)))
    np.save(tmp_path / "y.npy", np.arange(120) % 3)
    return read_collection(tmp_path / "x.npy", tmp_path / "y.npy")


def learn(collection, folder, modes, lines=None):
    settings = Settings(steps=6, width=8, dim=4, modes=modes)
    log = (lambda line: None) if lines is None else lines.append
    return train(collection, folder, settings, device="cpu", baselines=False, figures=False, log=log)


def with_likelihoods(monkeypatch, *of_items):
    """The trials of one and of two modes find these."""
    found = iter([torch.tensor(values) for values in of_items])
    monkeypatch.setattr(mode_trial, "item_log_likelihoods", lambda *arguments: next(found))


def test_the_comparison_is_paired():
    """Items differ by much more than the two heads do, and the difference still shows."""
    first = torch.tensor([-9.0, -1.0, -5.0, -3.0])
    difference, error = mode_trial.better_by(first, first + torch.tensor([0.1, 0.2, 0.1, 0.2]))
    assert difference == pytest.approx(0.15)
    assert error == pytest.approx(np.std([0.1, 0.2, 0.1, 0.2], ddof=1) / 2, rel=1e-4)


def test_two_modes_where_they_are_clearly_better(collection, tmp_path, monkeypatch):
    with_likelihoods(monkeypatch, [-2.0, -1.0, -3.0], [-1.5, -0.6, -2.4])
    lines: list[str] = []
    run = learn(collection, tmp_path / "run", "auto", lines)
    assert run.encoder.modes == run.config["settings"]["modes"] == 2
    assert any(line.startswith("modes = 2: in a trial") and "+0.5" in line for line in lines)
    assert not (tmp_path / "run" / "trial").exists()
    assert learn(collection, tmp_path / "run", "auto").encoder.modes == 2  # finished: nothing is tried again


def test_one_mode_otherwise_and_nothing_else_changes(collection, tmp_path, monkeypatch):
    """A gain within its standard error is none. The run is that of --modes 1, number for number."""
    with_likelihoods(monkeypatch, [-2.0, -1.0, -3.0], [-1.0, -1.5, -3.3])
    run = learn(collection, tmp_path / "run", "auto")
    plain = learn(collection, tmp_path / "plain", 1)
    assert run.encoder.modes == 1
    for one, other in zip(run.encoder.state_dict().values(), plain.encoder.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_trial_itself(collection, tmp_path):
    run = learn(collection, tmp_path / "run", "auto")
    found = json.loads((tmp_path / "run" / "modes.json").read_text())
    assert run.encoder.modes == found["modes"] == (2 if found["difference"] > found["error"] else 1)


def test_where_nothing_is_tried(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((60, 4)))
    (tmp_path / "pairs.csv").write_text("first,second\n" + "".join(f"{i},{i + 1}\n" for i in range(0, 60, 2)))
    lines: list[str] = []
    collection = read_collection(tmp_path / "x.npy", tmp_path / "pairs.csv")
    run = learn(collection, tmp_path / "run", "auto", lines)
    assert run.encoder.modes == 1
    assert "modes = 1: modes are tried with classes or soft labels only" in lines


def test_a_bad_value(collection, tmp_path):
    with pytest.raises(ValueError, match="modes = 'both'"):
        learn(collection, tmp_path / "run", "both")
