"""Posteriors of several modes: what the experiment `modes` measures.

Learned and true mixtures are compared after the rotation that aligns their means. A mean is linear in the posterior, so
it needs no order of the components.
"""

import math

import torch
from torch import Generator, Tensor

from aleator.data import GenerativeProcess
from aleator.encoders import Encoder
from aleator.evaluation import (
    aligning_rotation,
    mae,
    match_components,
    pairwise_agreement,
    rank_correlation,
    total_variation,
)
from aleator.experiments.runner import Outcome
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher
from aleator.special import log_sphere_area

LATENTS = 16  # of each input, to measure coverage
_FEW = 2000  # inputs whose regions and densities are measured
_LEVEL = 0.95


@torch.no_grad()
def measure_modes(process: GenerativeProcess, encoder: Encoder, points: int, generator: Generator) -> Outcome:
    """Compare learned and true posteriors of any number of modes at fresh inputs."""
    x = process.inputs(points, generator=generator)
    true, learned = process.posterior(x), encoder(x)
    assert isinstance(true, PosteriorBatch)
    rotation = aligning_rotation(true.mean, learned.mean).to(true.dtype)
    latents, true = true.sample((LATENTS,), generator) @ rotation, true.rotate(rotation)
    few = slice(0, _FEW)
    entropy = {"learned_entropy": _entropy(learned[few], generator), "true_entropy": _entropy(true[few], generator)}
    metrics = {
        **_as_one_vmf(learned, true),
        "total_variation": total_variation(learned[few], true[few], generator=generator).mean().item(),
        "posterior_entropy_rank": rank_correlation(*entropy.values()),
        "posterior_entropy_mae": mae(*entropy.values()),
        **_regions(learned[few], latents[:, few]),
    }
    if learned.modes == true.modes > 1:
        metrics |= _components(match_components(learned, true), true)
    return Outcome(metrics, {name: value.cpu().float() for name, value in entropy.items()})


def _as_one_vmf(learned: PosteriorBatch, true: PosteriorBatch) -> dict[str, float]:
    """The metrics of posteriors of one mode, for the vMFs that are closest to the mixtures."""
    first, second = (q.closest_vmf() if isinstance(q, VMFMixture) else q for q in (learned, true))
    assert isinstance(first, VonMisesFisher)
    assert isinstance(second, VonMisesFisher)
    directions = pairwise_agreement(second.mu, first.mu)
    return {
        "mu_rmse": directions.rmse,
        "mu_mae": directions.mae,
        "mu_rank": directions.rank,
        "kappa_mae": mae(first.kappa, second.kappa),
        "kappa_rank": rank_correlation(first.kappa, second.kappa),
    }


def _entropy(q: PosteriorBatch, generator: Generator) -> Tensor:
    """Entropy, estimated for mixtures."""
    return q.entropy(256, generator) if isinstance(q, VMFMixture) else q.entropy()


def _regions(learned: PosteriorBatch, latents: Tensor) -> dict[str, float]:
    """Coverage of the 95 % regions, and their area: as they are, and at the level at which they hold 95 %."""
    level = learned.region_level(latents)
    fair = float(level.double().flatten().quantile(_LEVEL).clamp(1e-4, 1 - 1e-4))
    whole = log_sphere_area(learned.dim)

    def area(p: float) -> float:
        """Mean share of the sphere."""
        return float((learned.double().region(p).log_area() - whole).exp().mean())

    return {
        "coverage_95": (level <= _LEVEL).double().mean().item(),
        "area_95": area(_LEVEL),
        "area_holding_95": area(fair),
    }


def _components(learned: VMFMixture, true: PosteriorBatch) -> dict[str, float]:
    """Errors of matched components, each counted by its true weight."""
    weights = true.log_weights.exp().double()
    cosine = (learned.components.mu * true.components.mu).sum(-1).double().clamp(-1, 1)

    def mean(error: Tensor) -> float:
        return float((weights * error).sum(-1).mean())

    return {
        "component_angle": math.degrees(mean(torch.acos(cosine))),
        "component_kappa_mae": mean((learned.components.kappa - true.components.kappa).abs().double()),
        "component_weight_mae": mean((learned.weights.double() - weights).abs()),
    }
