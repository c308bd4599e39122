"""Cosines of samples of mixtures: one sample of every component, with the weight of the component.

A Monte-Carlo loss takes means over samples. For a mixture the mean over its components is taken exactly, by their
weights, and only the place within each component is sampled. So the weights get gradients, and those vary little.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from aleator.foundation import gather_batch
from aleator.losses.base import are_own_negatives
from aleator.posteriors import PosteriorBatch, VonMisesFisher


class WeightedCosines(NamedTuple):
    """Cosines of samples of component k of an anchor with samples of component j of another, S of each pair."""

    to_positive: Tensor  # (S, B, K, J)
    to_negatives: Tensor  # (S, B, M, K, J)
    log_anchor: Tensor  # (B, K): log weights of the anchors' components
    log_positive: Tensor  # (B, J)
    log_negatives: Tensor  # (B, M, J), or with 1 in place of B


def weighted_cosines(
    samples: int,
    anchor: PosteriorBatch,
    positive: PosteriorBatch,
    negative: PosteriorBatch | None,
    generator: Generator | None,
    noise: tuple[Tensor, Tensor, Tensor | None] | None,
) -> WeightedCosines:
    """Cosines with the positive (B,) and the negatives (B, M), (G, M) or, for None, all anchors of all processes.

    `noise` has a dimension of components before the last: (S, B, K, D), (S, B, J, D) and (S, B, M, J, D).
    """
    of_anchor, of_positive, of_negative = noise if noise is not None else (None, None, None)
    z = weighted_samples(anchor, samples, generator, of_anchor)  # (S, B, K, D)
    to_positive = z @ weighted_samples(positive, samples, generator, of_positive).mT
    if negative is None:
        others, log_weights = gather_batch(z, dim=1), gather_batch(anchor.log_weights)[None]
        return WeightedCosines(
            to_positive, all_cosines(z, others), anchor.log_weights, positive.log_weights, log_weights
        )
    others, log_weights = weighted_samples(negative, samples, generator, of_negative), negative.log_weights
    if are_own_negatives(negative, anchor):
        to_negatives = z.unsqueeze(2) @ others.mT  # (S, B, 1, K, D) with (S, B, M, D, J)
    else:
        groups = negative.batch_shape[0]
        to_negatives = all_cosines(z.unflatten(1, (groups, -1)), others).flatten(1, 2)
        log_weights = log_weights.repeat_interleave(len(anchor) // groups, 0)
    return WeightedCosines(to_positive, to_negatives, anchor.log_weights, positive.log_weights, log_weights)


def weighted_samples(q: PosteriorBatch, samples: int, generator: Generator | None, noise: Tensor | None) -> Tensor:
    """Samples of every component, (S, ..., K, D). Noise for posteriors of one mode has no dimension of components."""
    if noise is not None and isinstance(q, VonMisesFisher):
        noise = noise.unsqueeze(-2)
    return q.components.rsample((samples,), generator, noise)


def all_cosines(z: Tensor, others: Tensor) -> Tensor:
    """Cosines of z (..., B, K, D) with others (..., M, J, D): (..., B, M, K, J)."""
    K, J = z.shape[-2], others.shape[-2]
    cosines = z.flatten(-3, -2) @ others.flatten(-3, -2).mT
    return cosines.unflatten(-1, (-1, J)).unflatten(-3, (-1, K)).transpose(-3, -2)


def log_mean(log_values: Tensor, log_weights: Tensor, dims: tuple[int, ...]) -> Tensor:
    """log of sum over `dims` of weight times value."""
    return torch.logsumexp(log_values + log_weights, dims)
