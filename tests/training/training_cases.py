"""One small run, built the same way in every process that takes part in a test of `fit`.

As a program it is the run that gets killed: `python training_cases.py FOLDER batch|write STEP`.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import MCInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.posteriors.vmf import VonMisesFisher
from aleator.training.loop import FitResult, fit
from aleator.training.recipe import Recipe

STEPS = 24


class NoisyMLP(MLP):
    """Draws from the global generator at every step, as dropout does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.1, self.training))


class SmallLoss(nn.Module):
    """Cheap, with all that matters to fit: gradients for mu and kappa, a parameter, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(5.0))

    def forward(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None = None
    ) -> Tensor:
        same = (anchor.mu * positive.mu).sum(-1, keepdim=True)  # (B, 1)
        other = anchor.mu @ positive.mu.T if negative is None else (anchor.mu[:, None] * negative.mu).sum(-1)
        logits = self.temperature * torch.cat([same, other], 1)
        noise = torch.rand(())  # a Monte-Carlo loss draws from the global generator
        pull = ((anchor.kappa.log() - same.squeeze(-1)) ** 2).mean()
        return (logits.logsumexp(1) - logits[:, 0]).mean() + (0.1 + 0.01 * noise) * pull


def pairs(step: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 4), (B, 4), (B, 3, 4), a function of the generator alone."""
    x = torch.rand(8, 4, generator=generator)
    near = x + 0.05 * torch.randn(8, 4, generator=generator)
    return x, near, torch.rand(8, 3, 4, generator=generator)


def build() -> tuple[Encoder, nn.Module]:
    torch.manual_seed(1)
    return Encoder(NoisyMLP(4, (8,)), 3, kappa="head", kappa_hidden=(6,)), SmallLoss()


def build_sampling() -> tuple[Encoder, nn.Module]:
    """The paper's loss, with its own random numbers and a learned kappa_pos."""
    return build()[0], MCInfoNCE(VMFKernel(20.0, requires_grad=True), samples=4)


def recipe(**changes) -> Recipe:
    settings = {
        "steps": STEPS,
        "learning_rate": 1e-2,
        "schedule": "cosine",
        "phases": "mu-then-kappa",
        "clip_norm": 1.0,
        "checkpoint_every": 5,
        "log_every": 3,
        "validate_every": 4,
        "select": "kappa",
        "select_mode": "min",
    }
    return Recipe(**(settings | changes))


def mean_kappa(encoder: Encoder) -> dict[str, float]:
    return {"kappa": encoder(torch.rand(5, 4)).kappa.mean().item()}  # draws: training must not notice


def scores(*values: float):
    """A validation that reports these, one after another."""
    given = iter(values)
    return lambda encoder: {"score": next(given)}


def run(folder: Path | None, batches=pairs, build=build, **options) -> FitResult:
    encoder, loss = build()
    settings = {"folder": folder, "validate": mean_kappa, "device": "cpu", "loggers": ("csv",)} | options
    return fit(encoder, loss, batches, settings.pop("recipe", recipe()), **settings)


class StoppedError(Exception):
    """Something outside stops the run."""


def assert_same_run(result: FitResult, other: FitResult) -> None:
    """Weights, selection and logs are equal, bit for bit; only the times differ."""
    states = result.encoder.state_dict(), other.encoder.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (result.best_step, result.best_value) == (other.best_step, other.best_value)
    assert result.validations == other.validations
    for row, other_row in zip(result.history, other.history, strict=True):
        assert {**row, "seconds": 0} == {**other_row, "seconds": 0}


def kill_at_batch(target: int):
    def batches(step, generator):
        if step == target:
            os.kill(os.getpid(), signal.SIGKILL)
        return pairs(step, generator)

    return batches


def kill_in_write(target: int):
    """Die when the checkpoint of this step has its tensors on disk, but not yet its index."""
    replace = os.replace

    def replace_or_die(source, destination):
        if f"step-{target:08d}/checkpoint.json" in str(destination):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, destination)

    os.replace = replace_or_die
    return pairs


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill = {"batch": kill_at_batch, "write": kill_in_write}[sys.argv[2]]
    run(Path(sys.argv[1]), kill(int(sys.argv[3])), build_sampling)
