"""Metrics of rankings and of nearest neighbours: functions from arrays to numbers.

Inputs are tensors on any device, or anything that `torch.as_tensor` takes. Computations are in float64.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from aleator.evaluation.agreement import as_vectors, matrix, ranks
from aleator.foundation import require, require_class_numbers, require_count, require_one_of

Nearness = Literal["cosine", "euclidean"]

# Number of similarities in memory at once.
_BLOCK = 2**22


def auroc(score: Any, positive: Any) -> float:
    """Area under the ROC curve: the probability that a positive scores higher than a negative. Ties count half.

    Args:
        score: Scores, shape (N,).
        positive: Labels 0 and 1, or booleans, shape (N,).

    Returns:
        The area: 1 if every positive scores highest, 0.5 by chance.

    Raises:
        ValueError: If all labels are equal.

    Examples:
        >>> from aleator.evaluation import auroc
        >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        0.75
    """
    score, positive = _scores_and_labels(score, positive)
    n_positive = positive.sum()
    n_negative = len(positive) - n_positive
    wins = ranks(score)[positive].sum() - n_positive * (n_positive + 1) / 2
    return (wins / (n_positive * n_negative)).item()


def average_precision(score: Any, positive: Any) -> float:
    """Area under the curve of precision against recall, as a step function.

    Items with the same score are added together, so the order of ties does not matter.

    Args:
        score: Scores, shape (N,).
        positive: Labels 0 and 1, or booleans, shape (N,).

    Returns:
        The average precision, in (0, 1].

    Raises:
        ValueError: If all labels are equal.

    Examples:
        >>> from aleator.evaluation import average_precision
        >>> round(average_precision([4, 3, 2, 1], [1, 0, 1, 0]), 4)  # (1 + 2/3) / 2
        0.8333
    """
    score, positive = _scores_and_labels(score, positive)
    _, group, count = (-score).unique(return_inverse=True, return_counts=True)  # highest score first
    hits = torch.zeros_like(count, dtype=torch.float64).index_add_(0, group, positive.double())
    precision = hits.cumsum(0) / count.cumsum(0)
    return ((hits * precision).sum() / hits.sum()).item()


def neighbour_hits(embeddings: Any, labels: Any) -> Tensor:
    """Whether the nearest other item, by cosine, has the same label.

    Args:
        embeddings: Vectors of any length, shape (N, D), for example mu.
        labels: Class numbers, shape (N,).

    Returns:
        Booleans, shape (N,).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import neighbour_hits
        >>> neighbour_hits([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], [7, 7, 3])
        tensor([ True,  True, False])
    """
    embeddings, labels = _labelled(embeddings, labels)
    nearest = [similarity.argmax(1) for _, similarity in _similarities(embeddings)]
    return labels[torch.cat(nearest)] == labels


def nearest_neighbours(
    questions: Any, gallery: Any, count: int = 1, by: Nearness = "cosine", *, own: Any = None
) -> Tensor:
    """The items of a gallery that are nearest to each question.

    Args:
        questions: Vectors, shape (Q, D).
        gallery: Vectors, shape (N, D).
        count: Number of neighbours, at most N, or N - 1 if a question is in the gallery.
        by: "cosine" or "euclidean".
        own: Position of each question in the gallery, shape (Q,); -1 for a question that is not in it. No question is
            its own neighbour. Default: none is in it.

    Returns:
        Item numbers, shape (Q, count), the nearest first.

    Raises:
        ValueError: If the vectors differ in length, or `count` is more than N.

    Examples:
        >>> from aleator.evaluation import nearest_neighbours
        >>> nearest_neighbours([[1.0, 0.0]], [[0.0, 1.0], [9.0, 1.0], [0.5, 0.4]], count=2)
        tensor([[1, 2]])
        >>> nearest_neighbours([[1.0, 0.0]], [[0.0, 1.0], [9.0, 1.0], [0.5, 0.4]], by="euclidean")
        tensor([[2]])
        >>> nearest_neighbours([[1.0, 0.0]], [[0.0, 1.0], [9.0, 1.0], [0.5, 0.4]], own=[1])
        tensor([[2]])
    """
    require_one_of("by", by, get_args(Nearness))
    questions, gallery = (
        torch.as_tensor(value).detach().to(torch.promote_types(torch.as_tensor(value).dtype, torch.float32))
        for value in (questions, gallery)
    )
    for name, value in (("questions", questions), ("gallery", gallery)):
        require(value.dim() == 2, name, tuple(value.shape), "not a matrix", "pass one vector per row")
    width = questions.shape[1]
    way_out = f"pass vectors of length {width}"
    require(gallery.shape[1] == width, "gallery", tuple(gallery.shape), "has vectors of another length", way_out)
    require_count("count", count, "pass 1 or more")
    own = torch.full((len(questions),), -1) if own is None else torch.as_tensor(own).to(questions.device)
    fits = own.shape == (len(questions),) and bool((own < len(gallery)).all())
    way_out = "pass for each question its place in the gallery, or -1"
    require(fits, "own", tuple(own.shape), f"there are {len(questions)} questions and {len(gallery)} items", way_out)
    others = len(gallery) - int((own >= 0).any())
    require(count <= others, "count", count, f"the gallery has {others} items", "pass fewer")
    if by == "cosine":
        questions, gallery = (torch.nn.functional.normalize(value, dim=-1) for value in (questions, gallery))
    else:  # distances do not change with the origin; in the middle, large numbers do not cancel
        middle = gallery.double().mean(0)
        questions, gallery = ((value.double() - middle).to(value.dtype) for value in (questions, gallery))
    # The squared distance is |a|^2 + |b|^2 - 2 a.b; |a|^2 does not change the order.
    offset = gallery.square().sum(1) / 2 if by == "euclidean" else 0.0
    nearest = []
    rows = max(1, _BLOCK // len(gallery))
    for block, own_of_block in zip(questions.split(rows), own.split(rows), strict=True):
        nearness = block @ gallery.T - offset
        inside = torch.nonzero(own_of_block >= 0)[:, 0]
        nearness[inside, own_of_block[inside]] = -torch.inf
        nearest.append(nearness.topk(count).indices)
    return torch.cat(nearest)


def recall_at_1(embeddings: Any, labels: Any) -> float:
    """Share of items whose nearest other item has the same label.

    Args:
        embeddings: Vectors of any length, shape (N, D).
        labels: Class numbers, shape (N,).

    Returns:
        The share.

    Examples:
        >>> from aleator.evaluation import recall_at_1
        >>> recall_at_1([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], [7, 7, 3, 7])
        0.5
    """
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
    """Mean average precision at R (Musgrave, Belongie, Lim, ECCV 2020).

    R is the number of other items with the query's label. Each hit among the R nearest items adds the precision up to
    it, divided by R. Queries with R = 0 are left out.

    Args:
        embeddings: Vectors of any length, shape (N, D).
        labels: Class numbers, shape (N,).

    Returns:
        The mean over queries, in [0, 1].

    Raises:
        ValueError: If no two items share a label.

    Examples:
        >>> from aleator.evaluation import map_at_r
        >>> map_at_r([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], [7, 7, 3, 3])
        1.0
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
    """Mean of a value over the most certain items, for each share of items that is kept.

    Args:
        certainty: Certainty of each item, shape (N,), for example kappa.
        value: Value of each item, shape (N,), for example `neighbour_hits`.
        kept: Shares of the items, each in (0, 1].

    Returns:
        One mean for each share. At least one item is always kept.

    Raises:
        ValueError: If a share is not in (0, 1].

    Examples:
        >>> from aleator.evaluation import reject_curve
        >>> reject_curve([0.1, 0.9, 0.5, 0.7], [0.0, 1.0, 0.0, 1.0], (0.5, 1.0))
        [1.0, 0.5]
    """
    certainty, value = as_vectors(certainty=certainty, value=value)
    for share in kept:
        require(0 < share <= 1, "kept", share, "not a share in (0, 1]", "pass for example (0.5, 1.0)")
    order = certainty.argsort(descending=True, stable=True)
    mean = value[order].cumsum(0) / torch.arange(1, len(value) + 1, device=value.device)
    return [mean[max(1, round(share * len(value))) - 1].item() for share in kept]


def _similarities(embeddings: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers (R,), and cosines (R, N) with every other item, block by block. The item itself has -inf."""
    unit = torch.nn.functional.normalize(embeddings, dim=-1)
    rows = torch.arange(len(unit), device=unit.device)
    for block in rows.split(max(1, _BLOCK // len(unit))):
        similarity = unit[block] @ unit.T
        similarity[torch.arange(len(block), device=unit.device), block] = -torch.inf
        yield block, similarity


def _scores_and_labels(score: Any, positive: Any) -> tuple[Tensor, Tensor]:
    """Scores in float64 and labels as booleans; both labels occur."""
    score, flag = as_vectors(score=score, positive=positive)
    require((flag == 0) | (flag == 1), "positive", flag, "not a label", "pass 0 or 1, or booleans")
    both = bool((flag == 0).any()) and bool((flag == 1).any())
    require(both, "positive", flag, "all labels are equal", "pass items of both kinds")
    return score, flag.bool()


def _labelled(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Embeddings in float64 and one label for each, at least two."""
    embeddings = matrix("embeddings", embeddings)
    require_class_numbers(labels)
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
