"""Known posteriors in the plane, recovered from matching pairs alone."""

from pathlib import Path
from typing import Any

import torch

from aleator.data import GenerativeProcess
from aleator.encoders import controlled_encoder
from aleator.evaluation import aligning_rotation, cap_coverage, pairwise_agreement, plots, rank_correlation, rmse
from aleator.foundation import one_thread, save_figure
from aleator.losses import ExactInfoNCE
from aleator.posteriors import VonMisesFisher
from aleator.training import Recipe, fit

KAPPA_RANGE = (4.0, 64.0)
LEVELS = (0.5, 0.8, 0.95)


def recover_circle(figures: Path, seed: int, steps: int, progress: bool | None = None) -> dict[str, Any]:
    """Train on pairs from a process whose posteriors are known, and compare. Draws circle.png and circle-kappa.png.

    Args:
        figures: Where the figures go.
        seed: Seed of everything random.
        steps: Number of training steps.
        progress: Whether to show a progress bar. None: on a terminal.

    Returns:
        Errors and rank correlations of mu and kappa, and the coverage of credible caps.
    """
    process = GenerativeProcess(dim=2, kappa_range=KAPPA_RANGE, seed=seed, smoothing_steps=500)
    torch.manual_seed(seed)
    # Start with small kappas: otherwise training may end with two arcs of the circle mapped onto each other
    # (docs/understanding-learning.md).
    encoder = controlled_encoder(2, kappa_range=(1.0, 4.0), initialisation="he", widths=(64, 64))
    recipe = Recipe(steps, optimiser="soap", learning_rate=0.01, schedule="one-cycle", seed=seed)
    with one_thread():
        fit(encoder, ExactInfoNCE(process.kernel), process.batches(256), recipe, progress=progress, loggers=())

    generator = torch.Generator().manual_seed(seed)
    x = process.inputs(2000, generator=generator)
    with torch.no_grad():
        true, learned = process.posterior(x), encoder(x)
    assert isinstance(true, VonMisesFisher)
    rotation = aligning_rotation(learned.mu, true.mu).to(learned.mu.dtype)
    aligned = learned.rotate(rotation)
    directions = pairwise_agreement(true.mu, learned.mu)
    coverage = cap_coverage(aligned, true.sample((), generator), LEVELS)
    five = plots.spread_out(true, 5)
    panels = {"true posteriors": true, "learned": learned, "learned, turned to match": aligned}
    save_figure(plots.circle({title: q[five] for title, q in panels.items()}), figures / "circle.png")
    save_figure(plots.agreement(true.kappa, learned.kappa), figures / "circle-kappa.png")
    return {
        "mu_rmse": directions.rmse,
        "mu_rank": directions.rank,
        "kappa_rmse": rmse(true.kappa, learned.kappa),
        "kappa_rank": rank_correlation(true.kappa, learned.kappa),
        "coverage": {str(level): float(share) for level, share in zip(LEVELS, coverage, strict=True)},
    }
