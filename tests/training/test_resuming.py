"""A run that stops, however it stops, goes on exactly where it was; and two processes train one model."""

import csv
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import MCInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.training.loop import fit
from tests.training.training_cases import (
    STEPS,
    SmallLoss,
    build,
    build_sampling,
    mean_kappa,
    pairs,
    recipe,
    run,
    scores,
)

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def one_thread():
    """Bits are compared between processes: sums must be taken in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("run") / "whole")


@pytest.fixture(scope="module")
def uninterrupted_sampling(tmp_path_factory):
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("run") / "sampling", build=build_sampling)


class StoppedError(Exception):
    """Something outside stops the run."""


def assert_same_run(result, other):
    states = result.encoder.state_dict(), other.encoder.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (result.best_step, result.best_value) == (other.best_step, other.best_value)
    assert result.validations == other.validations
    for row, other_row in zip(result.history, other.history, strict=True):
        assert {**row, "seconds": 0} == {**other_row, "seconds": 0}


@pytest.mark.parametrize("where", ["batch", "write"])
def test_a_killed_run_ends_with_the_same_bits(where, tmp_path, uninterrupted_sampling):
    # Any step will do: a fresh one each time, named by the assertion when it fails.
    step = random.SystemRandom().randrange(1, STEPS) if where == "batch" else random.SystemRandom().choice([10, 15, 20])
    command = [sys.executable, HERE / "training_cases.py", tmp_path / "run", where, str(step)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if where == "write":
        with pytest.warns(UserWarning, match="never finished"):
            result = run(tmp_path / "run", build=build_sampling)
    else:
        result = run(tmp_path / "run", build=build_sampling)
    expected = (step // 5) * 5 if where == "batch" else step - 5
    assert result.resumed_from == (expected or None), f"killed at step {step}"
    assert_same_run(result, uninterrupted_sampling)


class Stateful:
    """An iterable that knows its own position."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while True:
            self.position += 1
            yield pairs(0, torch.Generator().manual_seed(self.position))

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def shuffled():
    parts = [pairs(0, torch.Generator().manual_seed(i)) for i in range(4)]
    return DataLoader(TensorDataset(*(torch.cat(part) for part in zip(*parts, strict=True))), 8, shuffle=True)


SOURCES = {
    "callable": lambda: pairs,
    "list": lambda: [pairs(0, torch.Generator().manual_seed(i)) for i in range(5)],
    "shuffled loader": shuffled,
    "stateful": Stateful,
    "one for each phase": lambda: {"mu": Stateful(), "kappa": shuffled()},
    "iterator": lambda: (pairs(0, torch.Generator().manual_seed(i)) for i in range(100)),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("stop", [7, 10, 12, 17])
def test_every_kind_of_source_goes_on_exactly(kind, stop, tmp_path):
    def stopping_validation(encoder):
        calls.append(None)
        if len(calls) == stop:
            raise StoppedError
        return mean_kappa(encoder)

    settings = recipe(validate_every=1)
    calls = []
    with pytest.raises(StoppedError):
        run(tmp_path / "run", SOURCES[kind](), recipe=settings, validate=stopping_validation)
    result = run(tmp_path / "run", SOURCES[kind](), recipe=settings)
    assert result.resumed_from == (stop - 1) // 5 * 5
    assert_same_run(result, run(None, SOURCES[kind](), recipe=settings))
    with open(tmp_path / "run" / "training.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [row["step"] for row in result.history]


@pytest.mark.parametrize("damage", ["truncated", "altered", "index truncated", "index altered"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(damage, tmp_path, uninterrupted):
    def stopping(step, generator):
        if step == 18:
            raise StoppedError
        return pairs(step, generator)

    with pytest.raises(StoppedError):
        run(tmp_path / "run", stopping)
    newest = tmp_path / "run" / "checkpoints" / "step-00000015"
    path = newest / "checkpoint.json" if "index" in damage else next(newest.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    if "truncated" in damage:
        data = data[:-7]
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="checkpoint refused, going back to the one before.*step-00000015"):
        result = run(tmp_path / "run")
    assert result.resumed_from == 10
    assert_same_run(result, uninterrupted)


def test_two_checkpoints_are_kept_and_if_all_are_damaged_nothing_is_overwritten(tmp_path):
    run(tmp_path / "run")
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000020", "step-00000024"]
    for folder in folders:
        (folder / "checkpoint.json").write_text("{}")
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file())
    with (
        pytest.warns(UserWarning, match="refused"),
        pytest.raises(ValueError, match=r"no checkpoint is whole.*new folder"),
    ):
        run(tmp_path / "run")
    assert before == sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_a_finished_run_is_not_trained_again(tmp_path, uninterrupted):
    def never(step, generator):
        raise AssertionError("no batch is needed")

    run(tmp_path / "run")
    again = run(tmp_path / "run", never)
    assert again.resumed_from == STEPS
    assert_same_run(again, uninterrupted)


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"another configuration \(recipe.learning_rate was 0.01, now 0.02\)"):
        run(tmp_path / "run", recipe=recipe(learning_rate=0.02))
    with pytest.raises(ValueError, match=r"config\.data was None, now 'other'"):
        run(tmp_path / "run", config={"data": "other"})
    encoder = Encoder(MLP(4, (9,)), 3, kappa="head")
    with pytest.raises(ValueError, match=r"encoder\.features was 8, now 9"):
        fit(encoder, SmallLoss(), pairs, recipe(), folder=tmp_path / "run", validate=mean_kappa, device="cpu")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    run(tmp_path / "run", recipe=recipe(checkpoint_every=7))  # this may change


def test_the_losss_settings_are_part_of_a_run(tmp_path):
    def with_samples(samples):
        return lambda: (build()[0], MCInfoNCE(VMFKernel(20.0), samples))

    run(tmp_path / "run", build=with_samples(2))
    with pytest.raises(ValueError, match=r"loss\.loss\.samples was 2, now 3"):
        run(tmp_path / "run", build=with_samples(3))
    with pytest.raises(ValueError, match=r"loss\.kernel\..* was .*20.*now .*21"):
        run(tmp_path / "run", build=lambda: (build()[0], MCInfoNCE(VMFKernel(21.0), 2)))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"no run\.json"):
        run(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        run(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_processes_train_one_model(tmp_path):
    from tests.training import two_processes

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, HERE / "two_processes.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    for name in ("plain", "whole", "resumed"):
        first, second = (load_file(tmp_path / f"{name}-{rank}.safetensors") for rank in (0, 1))
        assert all(torch.equal(first[key], second[key]) for key in first)
    alone = two_processes.plain_run()
    together = load_file(tmp_path / "plain-0.safetensors")
    for key, value in alone.items():
        torch.testing.assert_close(together[key], value, rtol=1e-5, atol=1e-6)
    whole, resumed = (load_file(tmp_path / f"{name}-0.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_stopped_run_stays_stopped(tmp_path):
    settings = recipe(phases="joint", patience=1, select="score", validate_every=1)
    first = run(tmp_path / "x", recipe=settings, validate=scores(2.0, 1.0, 3.0))
    assert first.stopped_early
    again = run(tmp_path / "x", recipe=settings, validate=scores())
    assert again.resumed_from == again.steps == first.steps
    assert_same_run(first, again)
