"""One run of the controlled experiment.

A generative process has known posteriors. An encoder is trained on pairs that the process draws. Then the learned
posteriors are compared with the true ones. A `Setting` describes a run. tables.py lists all settings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from aleator.data import (
    Family,
    GenerativeProcess,
    NoisyDirection,
    PositiveLaw,
    ProcessKappaOf,
    RangeOf,
    RolledNegatives,
    Smoothing,
)
from aleator.encoders import ControlledKappaOf, Encoder, Initialisation, controlled_encoder
from aleator.evaluation import aligning_rotation, cap_coverage, mae, pairwise_agreement, rank_correlation, rmse, spread
from aleator.experiments.controlled.modes import measure_modes
from aleator.experiments.controlled.published_constants import FittedELK, ShiftedRule
from aleator.experiments.runner import Outcome
from aleator.experiments.settings import KernelName, LossName, make_loss
from aleator.matching import AcceptanceKernel, NegativeLaw
from aleator.posteriors import VMFMixture
from aleator.training import Recipe, fit

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of the credible caps whose coverage is measured


@dataclass(frozen=True)
class Setting:
    """One row of a table. The defaults are the paper's Ambiguous setting with the exact loss.

    Args:
        name: Name of the setting in the results.
        loss: Name of the loss; see experiments/settings.py.
        dim: Dimension D of the process: of its inputs and its latents.
        modes: Number of components of the true posteriors.
        kappa_range: Smallest and largest true kappa, about.
        family: Family of the true posteriors: "vmf", "gaussian", "laplace" or "point".
        kappa_pos: Of the process, which accepts pairs by it, and of the loss's kernel.
        accept_offset: Offset c of the process's rule, sigmoid(kappa_pos t - c). None: the right one,
            log(C(0)/C(kappa_pos)).
        kappa_of: What the process computes kappa from, "input" or "mu"; see `GenerativeProcess`.
        smoothing: How the process spreads mu over the sphere; see `GenerativeProcess`.
        range_of: What kappa's network is shown to set its range at the start, for process and encoder; see
            `GenerativeProcess`. It matters where kappa is computed from mu.
        positives: Law of positive pairs; see `GenerativeProcess.batches`.
        rule: Law of the negatives; see `GenerativeProcess.batches`.
        loss_rule: Law of the negatives that the exact loss assumes. None: `rule`.
        targets: "drawn": an anchor has one positive, which is drawn, and negatives. "chosen": every input of a batch
            chooses `choices` matches among the others of its group. "soft": every pair of a group has r of the true
            posteriors as its match weight. The last two do not use `positives`, `negatives` and `rule`.
        choices: Number of matches that each input chooses, for targets "chosen".
        batch_size: Number of anchors in a batch.
        negatives: Number of negatives of each anchor, drawn by `rule`. "batch": the other anchors. "rolled": the
            positive of the previous pair, which is the paper's M = 0.
        average_negatives: Whether MCInfoNCE averages the negatives in its denominator, as the published code does.
        mu_phase_negatives: Number of negatives of each anchor in a phase that trains mu alone. None: the same.
        group: Number of anchors that share their negatives. None: all anchors if the negatives come from the batch
            (only the exact loss can use smaller groups), one anchor if they are drawn.
        encoder_dim: Dimension of the encoder's posteriors. None: `dim`.
        encoder_modes: Number of components of the encoder's posteriors. None: `modes`.
        encoder_kappa_of: What the encoder computes kappa from; see `controlled_encoder`.
        widths: Widths of the encoder's hidden layers. None: the paper's.
        kappa_widths: Widths of the hidden layers of kappa's own network. None: `widths`.
        initialisation: Of the encoder's weights; see `controlled_encoder`.
        calibrated: Whether kappa starts out covering exactly `kappa_start`, as in the paper.
        kappa_start: Smallest and largest kappa of the untrained encoder.
        kernel: Kernel of the loss. "acceptance" is the rule by which the process accepts pairs, "vmf" the paper's
            approximation.
        terms: Number of terms of the exact loss's series. None: as many as the kernel can need.
        samples: Number of samples of the Monte-Carlo losses.
        a: Scale of HIB.
        b: Offset of HIB.
        learnable: Whether kappa_pos (for HIB: a and b) is learned.
        fitted_constants: Whether ELK takes the published code's fit of the normalising constant; see `FittedELK`.
        smoothing_steps: Training steps that smooth the networks of the process.
        points: Number of inputs that are measured.
        recipe: Arguments of `Recipe`.
    """

    name: str = "ambiguous"
    loss: LossName = "exact"
    dim: int = 10
    modes: int = 1
    kappa_range: tuple[float, float] = (16.0, 32.0)
    family: Family = "vmf"
    kappa_pos: float = 20.0
    accept_offset: float | None = None
    kappa_of: ProcessKappaOf = "input"
    smoothing: Smoothing = "sphere"
    range_of: RangeOf = "kappa_of"
    positives: PositiveLaw = "ratio"
    rule: NegativeLaw = "marginal"
    loss_rule: NegativeLaw | None = None
    targets: Literal["drawn", "chosen", "soft"] = "drawn"
    choices: int = 1
    batch_size: int = 512
    negatives: int | str = "batch"
    average_negatives: bool = False
    mu_phase_negatives: int | None = None
    group: int | None = None
    encoder_dim: int | None = None
    encoder_modes: int | None = None
    encoder_kappa_of: ControlledKappaOf = "input"
    widths: tuple[int, ...] | None = None
    kappa_widths: tuple[int, ...] | None = None
    initialisation: Initialisation = "he"
    calibrated: bool = False
    kappa_start: tuple[float, float] = (16.0, 32.0)
    kernel: KernelName = "acceptance"
    terms: int | None = None
    samples: int = 512
    a: float = 1.0
    b: float = 0.0
    learnable: bool = False
    fitted_constants: bool = False
    smoothing_steps: int = 5000
    points: int = 10_000
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def assumed_rule(self) -> NegativeLaw:
        """The law of negatives that the exact loss assumes."""
        return self.rule if self.loss_rule is None else self.loss_rule


def run_seed(
    setting: Setting, seed: int, device: str = "cpu", folder: Path | None = None, progress: bool | None = None
) -> Outcome:
    """Train an encoder, from the last checkpoint in the folder if there is one, and compare it with the truth."""
    process = make_process(setting, seed, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = controlled_encoder(
            setting.dim,
            setting.encoder_dim,
            kappa_of=setting.encoder_kappa_of,
            kappa_range=setting.kappa_start,
            initialisation=setting.initialisation,
            widths=setting.widths,
            kappa_widths=setting.kappa_widths,
            modes=setting.encoder_modes or setting.modes,
        ).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    if setting.calibrated:
        _set_kappa_range(encoder, process.inputs(1000, generator=generator), setting.range_of)
    fitted = setting.loss == "elk" and setting.fitted_constants
    loss = FittedELK(setting.kappa_pos, setting.learnable) if fitted else make_loss(setting)
    batches: Any = process_batches(process, setting)
    if setting.mu_phase_negatives is not None:
        fewer = replace(setting, negatives=setting.mu_phase_negatives, group=None)  # 0: "rolled" of the recipe
        batches = {"mu": process_batches(process, fewer), "kappa": batches}
    recipe = Recipe(**{"seed": seed, **setting.recipe})
    result = fit(encoder, loss, batches, recipe, folder=folder, device=device, loggers=(), progress=progress)
    several = process.modes > 1 or encoder.modes > 1
    outcome = (measure_modes if several else measure)(process, encoder, setting.points, generator)
    if setting.loss == "infonce":  # its kappa is not learned
        mu_metrics = {name: value for name, value in outcome.metrics.items() if name.startswith("mu_")}
        outcome = Outcome(mu_metrics, outcome.arrays)
    outcome.metrics["loss"] = result.history[-1]["loss"]
    return outcome


def _set_kappa_range(encoder: Encoder, x: Tensor, range_of: RangeOf) -> None:
    """Let kappa start out covering the encoder's `kappa_range` on inputs x (N, D)."""
    if encoder.kappa_of == "mu" and range_of == "input":
        assert encoder.kappa_head is not None
        encoder.kappa_head.cover(x, encoder.kappa_range)  # x in the place of mu
    else:
        encoder.set_kappa_range(x)


def make_process(setting: Setting, seed: int, device: str) -> GenerativeProcess:
    """The process of a setting. Rows of a table that have the same process share it."""
    return _process(
        setting.dim,
        setting.kappa_range,
        setting.family,
        setting.kappa_pos,
        setting.accept_offset,
        seed,
        device,
        setting.smoothing_steps,
        setting.kappa_of,
        setting.smoothing,
        setting.modes,
        setting.range_of,
    )


@lru_cache(maxsize=4)
def _process(
    dim: int,
    kappa_range: tuple[float, float],
    family: Family,
    kappa_pos: float,
    accept_offset: float | None,
    seed: int,
    device: str,
    smoothing_steps: int,
    kappa_of: ProcessKappaOf,
    smoothing: Smoothing,
    modes: int,
    range_of: RangeOf,
) -> GenerativeProcess:
    """The process, cached, since it takes seconds to make."""
    right = accept_offset is None
    kernel = AcceptanceKernel(kappa_pos) if right else ShiftedRule(kappa_pos, accept_offset)  # type: ignore[arg-type]
    options = (seed, device, smoothing_steps, kappa_of, smoothing, modes, range_of)
    return GenerativeProcess(dim, kappa_range, family, kernel, *options)


def process_batches(process: GenerativeProcess, setting: Setting) -> Callable[[int, Generator], Any]:
    """Batches of pairs from the process, with the negatives that the setting asks for; or with soft targets."""
    if setting.targets != "drawn":
        choices = setting.choices if setting.targets == "chosen" else None
        return process.soft_batches(setting.batch_size, setting.group, choices)
    if setting.negatives == "rolled":
        return RolledNegatives(process.batches(setting.batch_size, positives=setting.positives))
    drawn = 0 if setting.negatives == "batch" else int(setting.negatives)
    return process.batches(setting.batch_size, drawn, setting.positives, group=setting.group or 1, rule=setting.rule)


@torch.no_grad()
def measure(process: GenerativeProcess, encoder: Encoder, points: int, generator: torch.Generator) -> Outcome:
    """Compare learned and true posteriors at fresh inputs.

    The arrays hold the first 2,000 of the points, for the figures.
    """
    x = process.inputs(points, generator=generator)
    true, learned = process.posterior(x), encoder(x)
    assert not isinstance(true, VMFMixture)  # `measure_modes` takes mixtures
    directions = pairwise_agreement(true.mu, learned.mu)
    kappa = learned.kappa.double()
    metrics = {
        "mu_rmse": directions.rmse,
        "mu_mae": directions.mae,
        "mu_rank": directions.rank,
        "kappa_smallest": kappa.min().item(),
        "kappa_median": kappa.median().item(),
        "kappa_largest": kappa.max().item(),
    }
    if process.family == "vmf":
        metrics["kappa_rmse"] = rmse(kappa, true.kappa)
        metrics["kappa_mae"] = mae(kappa, true.kappa)
        metrics["kappa_rank"] = rank_correlation(kappa, true.kappa)
    if process.family != "point":
        true_spread = true.spread(generator=generator) if isinstance(true, NoisyDirection) else spread(true)
        metrics["spread_rmse"] = rmse(spread(learned), true_spread)
        metrics["spread_mae"] = mae(spread(learned), true_spread)
        metrics["spread_rank"] = rank_correlation(spread(learned), true_spread)
    if learned.dim == process.dim:
        rotation = aligning_rotation(true.mu, learned.mu)
        latents = true.sample((16,), generator).double() @ rotation
        for level, share in zip(LEVELS, cap_coverage(learned, latents, LEVELS), strict=True):
            metrics[f"coverage_{round(100 * level)}"] = share
    few = slice(0, 2000)
    arrays = {
        "true_mu": true.mu[few],
        "true_kappa": true.kappa[few].clamp_max(torch.finfo(torch.float32).max),
        "learned_mu": learned.mu[few],
        "learned_kappa": learned.kappa[few],
        "learned_spread": spread(learned[few]),
    }
    if process.family != "point":
        arrays["true_spread"] = true_spread[few]
    return Outcome(metrics, {name: value.cpu() for name, value in arrays.items()})
