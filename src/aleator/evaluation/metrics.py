"""How good posteriors and rankings are: pure functions from arrays or tensors to numbers.

Inputs are tensors, on any device, or anything that torch.as_tensor takes; sums are in float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.posteriors import VonMisesFisher

# Pairs or similarities held at once.
_BLOCK = 2**22


def rmse(predicted: Any, true: Any) -> float:
    """The root of the mean squared difference; any shape."""
    predicted, true = as_vectors(predicted=predicted, true=true)
    return (predicted - true).square().mean().sqrt().item()


def mae(predicted: Any, true: Any) -> float:
    """The mean absolute difference; any shape. The figures that the paper calls RMSE are of this kind."""
    predicted, true = as_vectors(predicted=predicted, true=true)
    return (predicted - true).abs().mean().item()


def ranks(values: Tensor) -> Tensor:
    """1-based ranks of a vector (N,), ties sharing their average rank; float64."""
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[group]


def rank_correlation(predicted: Any, true: Any) -> float:
    """Spearman's rank correlation, ties included; any shape. NaN where one side is constant and has no order."""
    predicted, true = as_vectors(predicted=predicted, true=true)
    a, b = ranks(predicted), ranks(true)
    a, b = a - a.mean(), b - b.mean()
    return ((a @ b) / (a.norm() * b.norm())).item()


@dataclass(frozen=True)
class PairwiseAgreement:
    """How well the cosines of all pairs agree; `rank_error` bounds the error of `rank`, 0 where it is exact."""

    rmse: float
    mae: float
    rank: float
    rank_error: float


def pairwise_agreement(
    mu_true: Any, mu_predicted: Any, bins: int = 2**20, exact_pairs: int = _BLOCK
) -> PairwiseAgreement:
    r"""RMSE, MAE and rank correlation of mu_i.mu_j over all pairs i < j: mu up to rotation (the paper's Table 1).

    Args:
        mu_true, mu_predicted: unit vectors (N, D) and (N, D'); the dimensions may differ.
        bins: of the histogram that ranks the pairs where there are many.
        exact_pairs: up to so many pairs are ranked exactly.

    10,000 points make 5e7 pairs, which are visited block by block and never stored. Each side is ranked by a
    histogram over its range: the pairs of a bin count as ties. That is as if each rank were replaced by the mean
    over its bin, so with p_k the share of bin k, E|change of rank/N| <= sum_k p_k^2 / 4, a rank/N lies within 1/2
    of its mean, and correlation is 12 times a covariance of ranks/N: it changes by less than
    1.5 (sum_k p_k^2 + sum_k p'_k^2), about 5/bins. Exact ties cost nothing but count in the bound.
    """
    first, second = (_matrix(name, x) for name, x in (("mu_true", mu_true), ("mu_predicted", mu_predicted)))
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
    """The cosines of all pairs i < j in both matrices, block by block: vectors of one length."""
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
    """E |1 - mu.z| = 1 - A_1(kappa), the average cosine distance of a vMF from its mode; (...), float64."""
    return 1 - posterior.double().mean_resultant_length


def aligning_rotation(source: Any, target: Any) -> Tensor:
    """The orthogonal Q (D, D') that brings source @ Q closest to target; rows (N, D) and (N, D') correspond.

    Orthogonal Procrustes (Schönemann, Psychometrika 1966): with source^T target = U S V^T, Q = U V^T. Reflections
    are allowed, since a contrastive loss cannot tell them from rotations.
    """
    source, target = _matrix("source", source), _matrix("target", target)
    require(len(source) == len(target), "target", len(target), f"source has {len(source)} rows", "pass one for each")
    U, _, Vt = torch.linalg.svd(source.T @ target, full_matrices=False)
    return U @ Vt


def cap_coverage(posterior: VonMisesFisher, latents: Tensor, levels: Sequence[float]) -> list[float]:
    """For each level p, the share of latents (..., B, D) inside the credible cap of level p of their posterior (B,).

    Calibrated posteriors give p. Rotate the latents into the posteriors' space first (`aligning_rotation`).
    """
    require(
        latents.shape[-1] == posterior.dim,
        "latents",
        tuple(latents.shape),
        f"the posteriors have dimension {posterior.dim}",
        "rotate them into that space first",
    )
    half_chord = (latents.double() - posterior.mu.double()).norm(dim=-1) / 2
    angle = 2 * torch.asin(half_chord.clamp_max(1.0))  # exact where the cosine is close to 1
    level = posterior.double().cap_angle_probability(angle)
    return [(level <= p).double().mean().item() for p in levels]


def auroc(score: Any, positive: Any) -> float:
    """P(a positive scores higher than a negative), ties counting half; score (N,), positive (N,) of 0 and 1."""
    score, positive = _scores_and_labels(score, positive)
    n_positive = positive.sum()
    n_negative = len(positive) - n_positive
    wins = ranks(score)[positive].sum() - n_positive * (n_positive + 1) / 2
    return (wins / (n_positive * n_negative)).item()


def average_precision(score: Any, positive: Any) -> float:
    """The area under precision over recall as a step function; score (N,), positive (N,) of 0 and 1.

    Items with the same score enter together, so the order of ties does not matter.
    """
    score, positive = _scores_and_labels(score, positive)
    _, group, count = (-score).unique(return_inverse=True, return_counts=True)  # highest score first
    hits = torch.zeros_like(count, dtype=torch.float64).index_add_(0, group, positive.double())
    precision = hits.cumsum(0) / count.cumsum(0)
    return ((hits * precision).sum() / hits.sum()).item()


def neighbour_hits(embeddings: Any, labels: Any) -> Tensor:
    """Whether the nearest other item, by cosine, carries the same label; embeddings (N, D), labels (N,) -> (N,)."""
    embeddings, labels = _labelled(embeddings, labels)
    nearest = [similarity.argmax(1) for _, similarity in _similarities(embeddings)]
    return labels[torch.cat(nearest)] == labels


def recall_at_1(embeddings: Any, labels: Any) -> float:
    """The share of items whose nearest neighbour carries their label; embeddings (N, D), labels (N,)."""
    return neighbour_hits(embeddings, labels).double().mean().item()


def r_auroc(certainty: Any, hits: Any) -> float | None:
    """R-AUROC: how well certainty tells the hits of recall@1 from its misses (Kirchhof et al., 2023).

    Args:
        certainty: Certainty of each item, shape (N,), for example kappa.
        hits: Whether the nearest neighbour carries the item's label, shape (N,), from `neighbour_hits`.

    Returns:
        The AUROC, or None if all items are hits or all are misses. Then there is nothing to tell apart.

    Examples:
        >>> from aleator.evaluation import r_auroc
        >>> r_auroc([5.0, 30.0, 40.0], [False, True, True])
        1.0
        >>> r_auroc([5.0, 30.0, 40.0], [True, True, True]) is None
        True
    """
    hits = torch.as_tensor(hits).double()
    if not 0 < hits.mean() < 1:
        return None
    return auroc(torch.as_tensor(certainty, device=hits.device), hits)


def map_at_r(embeddings: Any, labels: Any) -> float:
    """Mean average precision at R (Musgrave, Belongie, Lim, ECCV 2020); embeddings (N, D), labels (N,).

    R is the number of other items with the query's label. Of the R nearest, each hit contributes the precision up
    to it, divided by R. Queries without a partner (R = 0) are left out.
    """
    embeddings, labels = _labelled(embeddings, labels)
    _, group, count = labels.unique(return_inverse=True, return_counts=True)
    R = count[group] - 1  # (N,)
    require(bool((R > 0).any()), "labels", labels, "no label occurs twice", "pass labels that items share")
    most = int(R.max())
    position = torch.arange(1, most + 1, device=labels.device)
    total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
    for rows, similarity in _similarities(embeddings):
        nearest = similarity.topk(most).indices
        hit = (labels[nearest] == labels[rows, None]) & (position <= R[rows, None])
        precision = hit.cumsum(1).double() / position
        total += ((hit * precision).sum(1) / R[rows].clamp_min(1)).sum()
    return (total / (R > 0).sum()).item()


def reject_curve(certainty: Any, value: Any, kept: Sequence[float]) -> list[float]:
    """The mean of value (N,), such as hits, over the most certain items, for each share kept of them in (0, 1]."""
    certainty, value = as_vectors(certainty=certainty, value=value)
    for share in kept:
        require(0 < share <= 1, "kept", share, "not a share in (0, 1]", "pass for example (0.5, 1.0)")
    order = certainty.argsort(descending=True, stable=True)
    mean = value[order].cumsum(0) / torch.arange(1, len(value) + 1, device=value.device)
    return [mean[max(1, round(share * len(value))) - 1].item() for share in kept]


def _similarities(embeddings: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(row indices, cosines (rows, N) with each item's own at -inf), block by block."""
    unit = torch.nn.functional.normalize(embeddings, dim=-1)
    rows = torch.arange(len(unit), device=unit.device)
    for block in rows.split(max(1, _BLOCK // len(unit))):
        similarity = unit[block] @ unit.T
        similarity[torch.arange(len(block), device=unit.device), block] = -torch.inf
        yield block, similarity


def as_vectors(**named: Any) -> tuple[Tensor, Tensor]:
    """Two arrays as flat float64 tensors of one size and device."""
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
    return first.double().flatten(), second.double().flatten()


def _scores_and_labels(score: Any, positive: Any) -> tuple[Tensor, Tensor]:
    score, flag = as_vectors(score=score, positive=positive)
    require((flag == 0) | (flag == 1), "positive", flag, "not a label", "pass 0 or 1, or booleans")
    both = bool((flag == 0).any()) and bool((flag == 1).any())
    require(both, "positive", flag, "all labels are equal", "pass items of both kinds")
    return score, flag.bool()


def _matrix(name: str, value: Any) -> Tensor:
    value = torch.as_tensor(value).detach()
    require(value.dim() == 2, name, tuple(value.shape), "not a matrix", "pass one vector per row")
    return value.double()


def _labelled(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    embeddings = _matrix("embeddings", embeddings)
    labels = torch.as_tensor(labels, device=embeddings.device)
    require(
        labels.shape == embeddings.shape[:1],
        "labels",
        tuple(labels.shape),
        f"there are {len(embeddings)} embeddings",
        "pass one label per embedding",
    )
    require(len(labels) >= 2, "embeddings", len(labels), "one item has no neighbour", "pass two or more")
    return embeddings, labels
