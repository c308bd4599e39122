r"""The loss near the true posteriors, without any training: where is its minimum, and how sharp is it?

Two numbers, a and t, change all true posteriors together:

    kappa -> e^a kappa,      mu -> (mu + t m)/|mu + t m|,    m the mean direction.

The mean loss over many pairs is then a function of (a, t). Its minimum shows which posteriors the loss really asks for.
It lies at (0, 0) if the loss is right. It lies elsewhere if the kernel is not the one that accepted the pairs, or if
the pairs follow another law than the loss assumes. The Hessian shows how precisely a and t are determined. It has a
steep and a flat axis; along the flat one, a change of kappa makes up for a change of mu.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.data import GenerativeProcess
from aleator.experiments.controlled.presets import RESULT_SEEDS
from aleator.experiments.controlled.run import Setting, make_process, process_batches
from aleator.experiments.controlled.surface import Surface, downhill
from aleator.experiments.runner import Outcome, Row
from aleator.experiments.settings import Preset, make_loss
from aleator.posteriors import VonMisesFisher
from aleator.training import Objective

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AXIS = torch.linspace(-0.5, 0.5, 161, dtype=torch.float64)  # of the figure, in a and in t
_ROUNDS = 12  # of Newton's method, at most


@dataclass(frozen=True)
class Landscape:
    """One row of the table.

    Args:
        name: Name of the row in the results.
        setting: Setting of the controlled experiment. Its process, batches and loss are used, not its encoder.
        count: Number of batches that the loss is averaged over.
    """

    name: str
    setting: Setting
    count: int

    @property
    def loss(self) -> str:
        return self.setting.loss


class Nudged(nn.Module):
    """An encoder that returns the true posteriors, changed by the two parameters a and t."""

    middle: Tensor

    def __init__(self, process: GenerativeProcess, generator: torch.Generator):
        super().__init__()
        self.process = process
        q = process.posterior(process.inputs(10_000, generator=generator))
        self.register_buffer("middle", F.normalize(q.mode.mean(0), dim=0))
        self.a, self.t = (nn.Parameter(torch.zeros((), dtype=torch.float64, device=process.device)) for _ in range(2))

    def forward(self, x: Tensor) -> VonMisesFisher:
        q = self.process.posterior(x)
        assert isinstance(q, VonMisesFisher)
        mu = F.normalize(q.mu.double() + self.t * self.middle, dim=-1)
        return VonMisesFisher(mu, q.kappa.double() * self.a.exp(), validate_args=False)


def run_landscape(row: Landscape, seed: int, device: str = "cpu", folder: Path | None = None) -> Outcome:
    """Find the minimum by Newton's method, starting at the truth, and measure the curvature there."""
    setting = row.setting
    process = make_process(setting, seed, device)
    generator = torch.Generator(device).manual_seed(seed)
    objective = Objective(Nudged(process, generator), make_loss(setting), "joint", "given")  # type: ignore[arg-type]
    surface = Surface(
        objective, lambda theta: {"encoder.a": theta[0], "encoder.t": theta[1]}, process_batches(process, setting), seed
    )
    theta = torch.zeros(2, dtype=torch.float64, device=device)
    hessian = surface.hessian(theta, row.count)
    for _ in range(_ROUNDS):
        change = downhill(hessian, surface.gradient(theta, row.count))
        theta = theta + change
        hessian = surface.hessian(theta, row.count)
        if change.abs().max() < 1e-3:
            break
    flat, steep = torch.linalg.eigvalsh(hessian).tolist()
    anchors = setting.batch_size * row.count
    error = (torch.linalg.inv(hessian).diagonal() / anchors).sqrt()
    metrics = {
        "kappa_factor": math.exp(theta[0].item()),
        "kappa_factor_error": error[0].item(),
        "pull": theta[1].item(),
        "pull_error": error[1].item(),
        "steep": steep,
        "flat": flat,
        "anchors_for_one_percent": anchors * (error[0].item() / 0.01) ** 2,
    }
    offset = torch.cartesian_prod(_AXIS, _AXIS)
    height = torch.einsum("ni,ij,nj->n", offset, hessian.cpu(), offset) / 2
    return Outcome(metrics, {"excess": height.reshape(len(_AXIS), len(_AXIS))})


def landscape(preset: Preset) -> list[Row]:
    """What the loss asks for and how sharply: the kernel, the laws of positives and negatives, their number."""
    truth = Setting(batch_size=256, terms=32)
    count = 40 if preset == "quick" else 400
    seeds = RESULT_SEEDS[: 1 if preset == "quick" else 3]
    rows = [Landscape(name, replace(truth, **change), count) for name, change in _EXACT_ROWS.items()]
    if preset != "quick":  # samples take too long on two cores
        few = count // 4
        rows += [Landscape(name, replace(truth, **change), few) for name, change in _SAMPLED_ROWS.items()]
    return [Row(row, seeds) for row in rows]


_REJECTED_PAIR: dict[str, Any] = {"rule": "rejected-pair", "negatives": 64}
_REJECTED_LATENT: dict[str, Any] = {"rule": "rejected-latent", "positives": "partner", "negatives": 64}
_EXACT_ROWS: dict[str, dict[str, Any]] = {
    "matched": {},
    "clear": {"kappa_range": (64.0, 128.0), "terms": 56},
    "vMF kernel": {"kernel": "vmf"},
    "partner for a fixed latent": {"positives": "partner"},
    "joint, anchors as negatives": {"positives": "joint"},
    "1 negative": {"negatives": 1},
    "8 negatives": {"negatives": 8},
    "64 negatives": {"negatives": 64},
    "rejected for the pair, odds": _REJECTED_PAIR,
    "rejected for the pair, odds, clear": {**_REJECTED_PAIR, "kappa_range": (64.0, 128.0), "terms": 56},
    "rejected for the pair, r": {**_REJECTED_PAIR, "loss_rule": "marginal"},
    "from P(x), odds": {"negatives": 64, "loss_rule": "rejected-pair"},
    "rejected for the latent, odds": _REJECTED_LATENT,
    "rejected for the latent, r": {**_REJECTED_LATENT, "loss_rule": "marginal"},
    "rejected for the latent, vMF kernel": {**_REJECTED_LATENT, "loss_rule": "marginal", "kernel": "vmf"},
    "rejected for the latent, 1 negative, odds": {**_REJECTED_LATENT, "negatives": 1},
}
# MCInfoNCE with the paper's 512 samples.
_SAMPLED: dict[str, Any] = {"loss": "mcinfonce", "samples": 512}
_SAMPLED_LATENT: dict[str, Any] = {**_SAMPLED, **_REJECTED_LATENT}
_SAMPLED_ROWS: dict[str, dict[str, Any]] = {
    "MCInfoNCE, from P(x), 1": {**_SAMPLED, "negatives": 1},
    "MCInfoNCE, from P(x), 32": {**_SAMPLED, "negatives": 32},
    "MCInfoNCE, from P(x), 32, averaged": {**_SAMPLED, "negatives": 32, "average_negatives": True},
    "MCInfoNCE, from P(x), 32, vMF kernel": {**_SAMPLED, "negatives": 32, "kernel": "vmf"},
    "MCInfoNCE, from P(x), 256": {**_SAMPLED, "negatives": 256, "group": 32},
    "MCInfoNCE, rejected, 1, vMF kernel": {**_SAMPLED_LATENT, "negatives": 1, "kernel": "vmf"},
    "MCInfoNCE, rejected, 32, vMF kernel": {**_SAMPLED_LATENT, "negatives": 32, "kernel": "vmf"},
    "MCInfoNCE, rejected, 32, vMF kernel, averaged": {
        **_SAMPLED_LATENT,
        "negatives": 32,
        "kernel": "vmf",
        "average_negatives": True,
    },
    "MCInfoNCE, rejected, 32": {**_SAMPLED_LATENT, "negatives": 32},
}


def draw_landscape(rows: Any, arrays: Any) -> dict[str, "Figure"]:
    """Contours of the loss around its minimum for the matched row, with the minima of the exact loss and of MCInfoNCE.

    A minimum is the mean over seeds. Those of Clear are left out: another process has other contours.
    """
    from aleator.experiments.plots import contours

    excess = next(each["excess"] for row, each in zip(rows, arrays, strict=True) if row["setting"] == "matched")
    labels = ("t, the pull of mu towards the mean", "a, the change of log kappa")
    figures = {}
    for loss, name in (("exact", "loss"), ("mcinfonce", "mcinfonce")):
        shown = [row for row in rows if row["loss"] == loss and not row["setting"].endswith("clear")]
        if shown:
            minima = {row["setting"]: _minimum(row["metrics"]) for row in shown}
            figures[name] = contours(_AXIS, excess, minima, *labels)
    return figures


def _minimum(metrics: Any) -> tuple[float, float]:
    """The minimum (t, a) of a row."""
    return metrics["pull"]["mean"], math.log(metrics["kappa_factor"]["mean"])
