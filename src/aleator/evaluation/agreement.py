"""Agreement of posteriors with the truth: functions from arrays to numbers.

Inputs are tensors on any device, or anything that `torch.as_tensor` takes. Computations are in float64.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.posteriors import PosteriorBatch, VonMisesFisher

# Number of pairs or similarities in memory at once.
_BLOCK = 2**22


def rmse(predicted: Any, true: Any) -> float:
    """Root mean squared error.

    Args:
        predicted: Predicted values, any shape.
        true: True values, the same shape.

    Returns:
        The error.

    Examples:
        >>> from aleator.evaluation import rmse
        >>> rmse([1.0, 2.0], [4.0, 6.0])  # sqrt((9 + 16) / 2)
        3.5355339059327378
    """
    predicted, true = as_vectors(predicted=predicted, true=true)
    return (predicted - true).square().mean().sqrt().item()


def mae(predicted: Any, true: Any) -> float:
    """Mean absolute error. The paper calls it RMSE, but this is what its code computes.

    Args:
        predicted: Predicted values, any shape.
        true: True values, the same shape.

    Returns:
        The error.

    Examples:
        >>> from aleator.evaluation import mae
        >>> mae([1.0, 2.0], [4.0, 6.0])
        3.5
    """
    predicted, true = as_vectors(predicted=predicted, true=true)
    return (predicted - true).abs().mean().item()


def ranks(values: Tensor) -> Tensor:
    """Ranks of the values of a vector, from 1. Equal values share their average rank.

    Args:
        values: Vector, shape (N,).

    Returns:
        Ranks in float64, shape (N,).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import ranks
        >>> ranks(torch.tensor([0.3, 0.1, 0.3]))
        tensor([2.5000, 1.0000, 2.5000], dtype=torch.float64)
    """
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[group]


def rank_correlation(predicted: Any, true: Any) -> float:
    """Spearman's rank correlation, with ties.

    Args:
        predicted: Predicted values, any shape.
        true: True values, the same shape.

    Returns:
        The correlation, in [-1, 1]. NaN if one side is constant.

    Examples:
        >>> from aleator.evaluation import rank_correlation
        >>> round(rank_correlation([1.0, 2.0, 30.0, 20.0], [1.0, 2.0, 3.0, 4.0]), 3)
        0.8
    """
    predicted, true = as_vectors(predicted=predicted, true=true)
    a, b = ranks(predicted), ranks(true)
    a, b = a - a.mean(), b - b.mean()
    return ((a @ b) / (a.norm() * b.norm())).item()


@dataclass(frozen=True)
class PairwiseAgreement:
    """How well the cosines of all pairs agree. See `pairwise_agreement`.

    Args:
        rmse: Root mean squared error.
        mae: Mean absolute error.
        rank: Spearman's rank correlation.
        rank_error: Upper bound of the error of `rank`; 0 if `rank` is exact.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import pairwise_agreement
        >>> pairwise_agreement(torch.eye(3), torch.eye(3)).rmse
        0.0
    """

    rmse: float
    mae: float
    rank: float
    rank_error: float


def pairwise_agreement(
    mu_true: Any, mu_predicted: Any, bins: int = 2**20, exact_pairs: int = _BLOCK
) -> PairwiseAgreement:
    r"""RMSE, MAE and rank correlation of the cosines mu_i.mu_j over all pairs i < j (the paper's Table 1).

    Cosines do not change under rotations, so this compares directions up to a rotation.

    10,000 points make 5e7 pairs, which are computed block by block and never stored. Above `exact_pairs`, each side is
    ranked by a histogram over its range, and the pairs of a bin count as ties. That replaces each rank by the mean of
    its bin. Let p_k be the share of pairs in bin k, and let rank/N be the rank divided by the number of pairs. Then
    E|change of rank/N| <= sum_k p_k^2 / 4, a rank/N lies within 1/2 of its mean, and the correlation is 12 times a
    covariance of rank/N. So it changes by less than 1.5 (sum_k p_k^2 + sum_k p'_k^2), about 5/bins. Exact ties count
    in this bound, although they cause no error.

    Args:
        mu_true: Unit vectors, shape (N, D).
        mu_predicted: Unit vectors, shape (N, D'). D' may differ from D.
        bins: Number of bins of the histogram.
        exact_pairs: Up to this number of pairs, ranks are exact.

    Returns:
        The three numbers, and a bound of the error of the rank correlation.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import pairwise_agreement
        >>> mu = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> agreement = pairwise_agreement(mu, mu @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))  # rotated by 90 degrees
        >>> agreement.rmse, round(agreement.rank, 6)
        (0.0, 1.0)
    """
    first, second = (matrix(name, x) for name, x in (("mu_true", mu_true), ("mu_predicted", mu_predicted)))
    n = len(first)
    require(len(second) == n, "mu_predicted", len(second), f"there are {n} true directions", "pass one for each")
    require(n >= 2, "mu_true", n, "one point makes no pair", "pass two or more")
    pairs = n * (n - 1) // 2
    if pairs <= exact_pairs:
        a, b = (torch.cat(part) for part in zip(*_pair_cosines(first, second), strict=True))
        return PairwiseAgreement(rmse(b, a), mae(b, a), rank_correlation(b, a), 0.0)

    squares = absolute = torch.zeros((), dtype=torch.float64, device=first.device)
    lowest, highest = first.new_full((2,), 2.0), first.new_full((2,), -2.0)
    for a, b in _pair_cosines(first, second):
        squares, absolute = squares + (a - b).square().sum(), absolute + (a - b).abs().sum()
        lowest = torch.minimum(lowest, torch.stack([a.min(), b.min()]))
        highest = torch.maximum(highest, torch.stack([a.max(), b.max()]))
    scale = bins / (highest - lowest).clamp_min(1e-300)

    def cell(side: int, value: Tensor) -> Tensor:
        return ((value - lowest[side]) * scale[side]).long().clamp_(0, bins - 1)

    count = torch.zeros(2, bins, dtype=torch.float64, device=first.device)
    for a, b in _pair_cosines(first, second):
        count[0] += torch.bincount(cell(0, a), minlength=bins)
        count[1] += torch.bincount(cell(1, b), minlength=bins)
    share = count / pairs
    centred = share.cumsum(1) - share / 2 - 0.5  # the mean of rank/N over a bin, less 1/2
    covariance = torch.zeros_like(squares)
    for a, b in _pair_cosines(first, second):
        covariance += centred[0][cell(0, a)] @ centred[1][cell(1, b)]
    spread = (share * centred.square()).sum(1).prod().sqrt()
    return PairwiseAgreement(
        rmse=(squares / pairs).sqrt().item(),
        mae=(absolute / pairs).item(),
        rank=(covariance / pairs / spread).item(),
        rank_error=1.5 * share.square().sum().item(),
    )


def _pair_cosines(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cosines of all pairs i < j in both matrices, block by block: two vectors of the same length."""
    n = len(first)
    rows = max(1, _BLOCK // n)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        a, b = first[start:stop], second[start:stop]
        if stop < n:  # these rows with all later ones
            yield (a @ first[stop:].T).flatten(), (b @ second[stop:].T).flatten()
        if stop - start > 1:  # these rows among themselves
            i, j = torch.triu_indices(stop - start, stop - start, 1, device=first.device)
            yield (a @ a.T)[i, j], (b @ b.T)[i, j]


def spread(posterior: VonMisesFisher) -> Tensor:
    """Mean cosine distance of a latent from the mode of its posterior: E[1 - mu.z] = 1 - A_1(kappa).

    Args:
        posterior: Posteriors, batch shape (...).

    Returns:
        The spread in float64, shape (...): 0 for a point mass, 1 for the uniform distribution.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import spread
        >>> spread(al.VonMisesFisher(torch.eye(3)[:2], torch.tensor([0.0, 20.0])))
        tensor([1.0000, 0.0500], dtype=torch.float64)
    """
    return 1 - posterior.double().mean_resultant_length


def aligning_rotation(source: Any, target: Any) -> Tensor:
    """The orthogonal matrix Q for which source @ Q is closest to target.

    Orthogonal Procrustes (Schönemann, Psychometrika 1966): with source^T target = U S V^T, Q = U V^T. Reflections
    are allowed, because a contrastive loss cannot tell them from rotations.

    Args:
        source: Vectors, shape (N, D).
        target: Vectors, shape (N, D'). Row n belongs to row n of `source`.

    Returns:
        Q in float64, shape (D, D').

    Examples:
        >>> import torch
        >>> from aleator.evaluation import aligning_rotation
        >>> quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> torch.allclose(aligning_rotation(torch.eye(2), torch.eye(2) @ quarter), quarter.double())
        True
    """
    source, target = matrix("source", source), matrix("target", target)
    require(len(source) == len(target), "target", len(target), f"source has {len(source)} rows", "pass one for each")
    U, _, Vt = torch.linalg.svd(source.T @ target, full_matrices=False)
    return U @ Vt


def cap_coverage(posterior: PosteriorBatch, latents: Tensor, levels: Sequence[float]) -> list[float]:
    """Share of true latents that lie inside the credible cap or region of their posterior, for each level.

    The share is p at level p if the posteriors are right. Rotate the latents into the space of the posteriors first;
    see `aligning_rotation`.

    Args:
        posterior: Posteriors, batch shape (B,).
        latents: Unit vectors, shape (..., B, D).
        levels: Probabilities of the caps or regions, for example (0.5, 0.95).

    Returns:
        One share for each level.

    Raises:
        ValueError: If latents and posteriors differ in dimension.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import cap_coverage
        >>> _ = torch.manual_seed(0)
        >>> q = al.VonMisesFisher(torch.eye(3), torch.tensor([5.0, 20.0, 80.0]))
        >>> (share,) = cap_coverage(q, q.sample((100,)), [0.9])
        >>> abs(share - 0.9) < 0.05
        True
    """
    require(
        latents.shape[-1] == posterior.dim,
        "latents",
        tuple(latents.shape),
        f"the posteriors have dimension {posterior.dim}",
        "rotate them into that space first",
    )
    level = posterior.double().region_level(latents.double())
    return [(level <= p).double().mean().item() for p in levels]


def as_vectors(**named: Any) -> tuple[Tensor, Tensor]:
    """Two arrays of the same shape as float64 vectors on the device of the first."""
    (name, first), (other, second) = named.items()
    first = torch.as_tensor(first).detach()
    second = torch.as_tensor(second, device=first.device).detach()
    require(
        first.shape == second.shape,
        other,
        tuple(second.shape),
        f"{name} has shape {tuple(first.shape)}",
        "pass arrays of one shape",
    )
    require(first.numel() > 0, name, tuple(first.shape), "is empty", "pass at least one value")
    _require_numbers(name, first)
    _require_numbers(other, second)
    return first.double().flatten(), second.double().flatten()


def matrix(name: str, value: Any) -> Tensor:
    """A matrix in float64; `name` is for the error."""
    value = torch.as_tensor(value).detach()
    require(value.dim() == 2, name, tuple(value.shape), "not a matrix", "pass one vector per row")
    _require_numbers(name, value)
    return value.double()


def _require_numbers(name: str, value: Tensor) -> None:
    require(not torch.isnan(value).any(), name, math.nan, "is not a number", "leave such items out")
