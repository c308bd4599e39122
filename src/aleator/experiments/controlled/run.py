"""One run of the controlled experiment: a process with known posteriors, an encoder trained on its pairs, and how far
the two agree. What a run is made of is a `Setting`; the experiments (tables.py) are lists of settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from aleator.data import GenerativeProcess, NoisyDirection, RolledNegatives
from aleator.encoders import ControlledKappaOf, Encoder, Initialisation, controlled_encoder
from aleator.evaluation import aligning_rotation, cap_coverage, mae, pairwise_agreement, rank_correlation, rmse, spread
from aleator.experiments.runner import Outcome
from aleator.foundation import require_one_of
from aleator.losses import ELK, HIB, ExactInfoNCE, InfoNCE, MCInfoNCE
from aleator.matching import AcceptanceKernel, VMFKernel, ZonalKernel
from aleator.training import Recipe, fit

LOSSES = ("exact", "mcinfonce", "hib", "elk", "infonce")
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Setting:
    """What one row of a table is made of; the defaults are the paper's Ambiguous setting with our loss.

    Args:
        name: of the row's setting, as in the results.
        loss: one of LOSSES.
        dim, kappa_range, family, kappa_pos, kappa_of: of the process.
        positives: the law of positive pairs.
        negatives: how many are drawn for each anchor from P(x); "batch" takes the other anchors, "rolled" the positive
            of the pair before, the paper's M = 0.
        mu_negatives: how many are drawn instead in a phase that trains mu alone.
        group: how many anchors share their negatives. None: all of them where the batch gives the negatives (the exact
            loss alone can do with fewer), none where they are drawn.
        encoder_dim: the encoder's dimension where it differs from the process's.
        encoder_kappa_of, widths, initialisation: see `controlled_encoder`.
        calibrated: whether kappa starts out spanning `kappa_start`, as in the paper.
        kernel: of the loss; "acceptance" is the rule that the pairs really follow, "vmf" the paper's approximation.
        terms: of the exact loss's series; None for as many as the kernel ever needs.
        samples: of the Monte-Carlo losses; a, b: of HIB. learnable: kappa_pos (or a and b) of the loss.
        recipe: arguments of `Recipe`.
    """

    name: str = "ambiguous"
    loss: str = "exact"
    dim: int = 10
    kappa_range: tuple[float, float] = (16.0, 32.0)
    family: str = "vmf"
    kappa_pos: float = 20.0
    kappa_of: str = "input"
    positives: str = "ratio"
    batch_size: int = 512
    negatives: int | str = "batch"
    mu_negatives: int | None = None
    group: int | None = None
    encoder_dim: int | None = None
    encoder_kappa_of: ControlledKappaOf = "input"
    widths: tuple[int, ...] | None = None
    initialisation: Initialisation = "he"
    calibrated: bool = False
    kappa_start: tuple[float, float] = (16.0, 32.0)
    kernel: str = "acceptance"
    terms: int | None = None
    samples: int = 512
    a: float = 1.0
    b: float = 0.0
    learnable: bool = False
    smoothing_steps: int = 5000
    points: int = 10_000
    recipe: Mapping[str, Any] = field(default_factory=dict)


def run_seed(
    setting: Setting, seed: int, device: str = "cpu", folder: Path | None = None, progress: bool | None = None
) -> Outcome:
    """Train from scratch, or go on from the folder's last checkpoint, and measure."""
    process = _process(
        setting.dim,
        setting.kappa_range,
        setting.family,
        setting.kappa_pos,
        seed,
        device,
        setting.smoothing_steps,
        setting.kappa_of,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = controlled_encoder(
            setting.dim,
            setting.encoder_dim,
            kappa_of=setting.encoder_kappa_of,
            kappa_range=setting.kappa_start,
            initialisation=setting.initialisation,
            widths=setting.widths,
        ).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    if setting.calibrated:
        encoder.set_kappa_range(process.inputs(1000, generator=generator))
    loss = make_loss(setting)
    batches: Any = make_batches(process, setting)
    if setting.mu_negatives is not None:
        few = replace(setting, negatives=setting.mu_negatives, group=None)
        batches = {"mu": make_batches(process, few), "kappa": batches}
    recipe = Recipe(**{"seed": seed, **setting.recipe})
    result = fit(encoder, loss, batches, recipe, folder=folder, device=device, loggers=(), progress=progress)
    outcome = measure(process, encoder, setting.points, generator)
    if setting.loss == "infonce":  # its kappa is not learned
        kept = {name: value for name, value in outcome.metrics.items() if name.startswith("mu_")}
        outcome = Outcome(kept, outcome.arrays)
    outcome.metrics["loss"] = result.history[-1]["loss"]
    return outcome


@lru_cache(maxsize=4)
def _process(
    dim: int,
    kappa_range: tuple[float, float],
    family: str,
    kappa_pos: float,
    seed: int,
    device: str,
    smoothing_steps: int,
    kappa_of: str,
) -> GenerativeProcess:
    """Rows of a table share their processes, which take seconds to smooth."""
    kernel = AcceptanceKernel(kappa_pos)
    return GenerativeProcess(dim, kappa_range, family, kernel, seed, device, smoothing_steps, kappa_of)


def make_batches(process: GenerativeProcess, setting: Setting) -> Callable[[int, Generator], tuple[Any, ...]]:
    if setting.negatives == "rolled":
        return RolledNegatives(process.batches(setting.batch_size, positives=setting.positives))
    drawn = 0 if setting.negatives == "batch" else int(setting.negatives)
    return process.batches(setting.batch_size, drawn, setting.positives, group=setting.group or 1)


def make_loss(setting: Setting) -> nn.Module:
    require_one_of("loss", setting.loss, LOSSES)
    require_one_of("kernel", setting.kernel, ("acceptance", "vmf"))
    kind: Callable[..., ZonalKernel] = AcceptanceKernel if setting.kernel == "acceptance" else VMFKernel
    if setting.loss == "exact":
        return ExactInfoNCE(kind(setting.kappa_pos, setting.learnable), setting.terms, setting.group)
    if setting.loss == "mcinfonce":
        return MCInfoNCE(kind(setting.kappa_pos, setting.learnable), setting.samples)
    if setting.loss == "hib":
        return HIB(setting.a, setting.b, setting.samples, setting.learnable)
    return (ELK if setting.loss == "elk" else InfoNCE)(setting.kappa_pos, setting.learnable)


@torch.no_grad()
def measure(process: GenerativeProcess, encoder: Encoder, points: int, generator: torch.Generator) -> Outcome:
    """Agreement of learned and true posteriors over fresh inputs; the paper takes 10,000."""
    x = process.inputs(points, generator=generator)
    true, learned = process.posterior(x), encoder(x)
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
