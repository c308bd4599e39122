"""Runs are made once, side by side, and an experiment that was interrupted goes on and ends in the same figures."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from aleator.experiments.runner import ExperimentRun, Outcome, Row, RunFunction, origin, outcome_arrays, run_rows
from tests.experiments import small_experiment


@dataclass(frozen=True)
class Coin:
    name: str
    loss: str = "exact"
    bias: float = 0.5


def toss_coin(setting: Coin, seed: int, device: str, folder: Path) -> Outcome:
    """A run that counts how often it was made."""
    log = folder.parent.parent / "made.log"
    with log.open("a") as file:
        file.write(f"{setting.name} {seed}\n")
    if setting.bias < 0:
        raise ValueError("no such coin")
    draws = torch.rand(100, generator=torch.Generator().manual_seed(seed)) < setting.bias
    heads = draws.double().mean().item()
    return Outcome({"heads": heads, "odds": heads / (1 - heads) if heads < 1 else math.inf}, {"draws": draws.float()})


toss = RunFunction("coins", toss_coin)


def made(runs: Path) -> list[str]:
    return sorted((runs / "made.log").read_text().splitlines())


def test_every_run_is_made_once_and_summed_up(tmp_path):
    rows = [Row(Coin("fair"), (1, 2, 3)), Row(Coin("bent", bias=0.9), (1,))]
    found = run_rows(toss, rows, "cpu", tmp_path, "coins", jobs=2, progress=False)
    assert made(tmp_path) == ["bent 1", "fair 1", "fair 2", "fair 3"]
    values = [
        (torch.rand(100, generator=torch.Generator().manual_seed(s)) < 0.5).double().mean().item() for s in (1, 2, 3)
    ]
    heads = found[0]["metrics"]["heads"]
    assert heads["values"] == values
    assert heads["mean"] == pytest.approx(sum(values) / 3)
    assert heads["stderr"] == pytest.approx(torch.tensor(values).std().item() / 3**0.5, rel=1e-5)
    assert found[1]["metrics"]["heads"]["stderr"] is None  # one run has no spread
    assert found[1]["parameters"] == {"name": "bent", "loss": "exact", "bias": 0.9}
    assert outcome_arrays(toss, rows[0], tmp_path)["draws"].shape == (100,)

    again = run_rows(toss, [*rows, Row(Coin("bent", bias=0.9), (1, 2))], "cpu", tmp_path, "more coins", 1, False)
    assert made(tmp_path) == ["bent 1", "bent 2", "fair 1", "fair 2", "fair 3"]  # only what was missing
    assert again[:2] == found


def test_every_row_has_its_first_seed_before_one_has_its_second(tmp_path):
    rows = [Row(Coin("fair"), (1, 2, 3)), Row(Coin("bent", bias=0.9), (5, 4))]
    run_rows(toss, rows, "cpu", tmp_path, "coins", 1, False)
    order = (tmp_path / "made.log").read_text().splitlines()
    assert order == ["fair 1", "bent 5", "fair 2", "bent 4", "fair 3"]


def test_the_cache_key_does_not_depend_on_where_the_function_lives(monkeypatch):
    """The recorded key: were it to change, finished runs would not be found again."""
    run = ExperimentRun(toss, Coin("fair coin", bias=0.25), 7)
    assert run.key == "fair-coin-exact-def14428eb/7"
    monkeypatch.setattr(toss_coin, "__module__", "somewhere.else")
    assert run.key == "fair-coin-exact-def14428eb/7"
    assert ExperimentRun(RunFunction("coins", print), run.setting, 7).key == run.key
    others = [
        ExperimentRun(RunFunction("other coins", toss_coin), run.setting, 7),
        ExperimentRun(toss, Coin("fair coin", bias=0.5), 7),
        ExperimentRun(toss, run.setting, 8),
    ]
    assert len({run.key, *(other.key for other in others)}) == 4


@dataclass(frozen=True)
class MintedCoin(Coin):
    mint: str = "Berlin"


def test_a_new_field_keeps_finished_runs_and_a_new_default_does_not(tmp_path):
    run_rows(toss, [Row(Coin("fair"), (1,))], "cpu", tmp_path, "coins", 1, False)
    run_rows(toss, [Row(MintedCoin("fair"), (1,))], "cpu", tmp_path, "coins", 1, False)
    assert made(tmp_path) == ["fair 1"]
    outcome = next(tmp_path.glob("fair-*/1/outcome.json"))
    record = json.loads(outcome.read_text())
    record["setting"]["bias"] = 0.75  # as if this had been the default when the run was made
    outcome.write_text(json.dumps(record))
    run_rows(toss, [Row(Coin("fair"), (1,))], "cpu", tmp_path, "coins", 1, False)
    assert made(tmp_path) == ["fair 1", "fair 1"]


def test_what_one_run_cannot_tell_has_no_mean(tmp_path):
    (found,) = run_rows(toss, [Row(Coin("two heads", bias=1.0), (1, 2))], "cpu", tmp_path, "coins", 1, False)
    assert found["metrics"]["heads"]["stderr"] == 0.0
    assert not math.isfinite(found["metrics"]["odds"]["mean"])
    assert found["metrics"]["odds"]["stderr"] is None


def test_a_result_says_where_it_came_from(tmp_path):
    rows = [Row(Coin("fair"), (1, 2))]
    run_rows(toss, rows, "cpu", tmp_path, "coins", 1, False)
    said = origin(toss, rows, tmp_path, "coins")
    assert said["runs"] == 2
    assert said["runs shared with other experiments"] == 0
    assert said["sittings"] == 1
    assert "CPU" in said["device"]
    assert said["versions"]["torch"] == torch.__version__
    assert origin(toss, rows, tmp_path, "others")["runs shared with other experiments"] == 2


def test_a_failed_run_is_named_and_the_others_are_kept(tmp_path):
    rows = [Row(Coin("broken", bias=-1.0), (1,)), Row(Coin("fair"), (1, 2))]
    with pytest.raises(RuntimeError, match="1 of 3 runs failed, the first being broken"):
        run_rows(toss, rows, "cpu", tmp_path, "coins", 1, False)
    run_rows(toss, rows[1:], "cpu", tmp_path, "coins", 1, False)
    assert made(tmp_path) == ["broken 1", "fair 1", "fair 2"]


def test_a_killed_experiment_goes_on_and_ends_in_the_same_figures(tmp_path):
    """SIGKILL in the middle of training: the second sitting goes on from the checkpoint, bit for bit."""
    script = Path(__file__).with_name("small_experiment.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(runs: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, script, runs], stdout=subprocess.PIPE, env=environment, text=True)

    broken = start(tmp_path / "broken")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "broken").rglob("step-*/checkpoint.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    broken.send_signal(signal.SIGKILL)
    broken.communicate()
    assert not list((tmp_path / "broken").rglob("outcome.json")), "killed too late to show anything"
    whole = small_experiment.metrics(tmp_path / "whole")
    assert small_experiment.metrics(tmp_path / "broken") == whole
