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

from tests.training.training_cases import (
    STEPS,
    StoppedError,
    assert_same_run,
    build_sampling,
    mean_kappa,
    pairs,
    recipe,
    run,
)

HERE = Path(__file__).parent


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


def test_a_finished_run_is_not_trained_again(tmp_path, uninterrupted):
    def never(step, generator):
        raise AssertionError("no batch is needed")

    run(tmp_path / "run")
    again = run(tmp_path / "run", never)
    assert again.resumed_from == STEPS
    assert_same_run(again, uninterrupted)


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
    for name in ("plain", "soft", "modes", "whole", "resumed"):
        first, second = (load_file(tmp_path / f"{name}-{rank}.safetensors") for rank in (0, 1))
        assert all(torch.equal(first[key], second[key]) for key in first)
    pairs, soft = two_processes.global_pairs, two_processes.soft_batch
    for name, run_alone in {"plain": (pairs, 1), "soft": (soft, 1), "modes": (pairs, 2)}.items():
        alone = two_processes.plain_run(*run_alone)
        together = load_file(tmp_path / f"{name}-0.safetensors")
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-5, atol=1e-6)
    whole, resumed = (load_file(tmp_path / f"{name}-0.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
