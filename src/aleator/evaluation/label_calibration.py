"""Fit label probabilities on held-out items: temperature, floor, kernel and size of the gallery.

Items that were trained on lie closer to their class than new ones. So the numbers are fitted in the way in which they
will be used: held-out items ask, training items are the gallery.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation.label_model import LabelModel, tempered_labels, with_floor
from aleator.foundation import require, sample_numbers
from aleator.matching import VMFKernel, ZonalKernel, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch, VonMisesFisher, kappa_from_mean_resultant_length

_MOST_QUESTIONS = 4_000  # of more held-out items, these many are used
_MOST_ENTRIES = 1_000  # of a condensed gallery
_PER_CLASS = 8  # entries for each class, while the gallery stays within _MOST_ENTRIES
_ROUNDS = 10  # of k-means
_SHARPEST = 1e6  # kappa of an entry whose items are all the same point
_LOG_BETA, _LOG_FLOOR = (-4.0, 4.0), (-14.0, math.log(0.5))
# The fit counts half an imaginary question more, which the floor alone explains. So the floor is never zero, and a
# mistake that no held-out item made has a finite cost.
_IMAGINARY = 0.5
# Where all of a few questions are answered rightly, every larger beta is likelier. All answers would be equally sure
# then. So log beta has a normal prior around 0, the beta of the posteriors as they are, of this deviation.
_LOG_BETA_DEVIATION = math.sqrt(0.5)
_TINY = float(np.finfo(np.float64).tiny)


def gallery_of_one_mode(gallery: PosteriorBatch, labels: Tensor) -> tuple[VonMisesFisher, Tensor]:
    """Every component of a mixture as an entry of its own, with its weight's share of the item's labels.

    r is linear in the item, so label probabilities with beta = 1 stay the same.

    Args:
        gallery: Posteriors of labelled items, batch shape (N,), of K modes.
        labels: Their labels as rows of probabilities, shape (N, C).

    Returns:
        N K posteriors of one mode, and rows of labels, shape (N K, C).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import gallery_of_one_mode
        >>> q = al.VMFMixture(torch.tensor([[0.75, 0.25]]).log(), al.VonMisesFisher(torch.eye(2)[None], 20.0))
        >>> entries, labels = gallery_of_one_mode(q, torch.tensor([[0.0, 1.0]]))
        >>> len(entries)
        2
        >>> labels
        tensor([[0.0000, 0.7500],
                [0.0000, 0.2500]])
    """
    if isinstance(gallery, VonMisesFisher):
        return gallery, labels
    shares = gallery.log_weights.exp().to(labels.dtype).unsqueeze(-1) * labels.unsqueeze(1)
    return gallery.components.flatten(), shares.flatten(0, 1)


def condense_gallery(gallery: PosteriorBatch, labels: Tensor, per_class: int) -> tuple[VonMisesFisher, Tensor]:
    """A small gallery in place of a large one: a few posteriors for each class.

    The items of a class (of the most probable one, for soft labels) are split into clusters by k-means on their mean
    vectors. The posterior of a cluster has the mean vector of the mixture of its items, and so is the closest von
    Mises-Fisher distribution to it (in KL divergence).

    Args:
        gallery: Posteriors of labelled items, batch shape (N,).
        labels: Their labels as rows of probabilities, shape (N, C).
        per_class: Largest number of entries for a class.

    Returns:
        M posteriors, and the sum of the labels of each cluster, shape (M, C), float64.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import condense_gallery
        >>> q = al.VonMisesFisher(torch.eye(3)[[0, 0, 1, 1]], 20.0)
        >>> entries, weights = condense_gallery(q, torch.eye(2)[[0, 0, 1, 1]], per_class=1)
        >>> entries.kappa.round(), weights.tolist()
        (tensor([20., 20.]), [[2.0, 0.0], [0.0, 2.0]])
    """
    gallery, labels = gallery_of_one_mode(gallery, labels.double())
    means = gallery.mean.double()
    classes = labels.argmax(1)
    cluster = torch.zeros(len(means), dtype=torch.long)
    count = 0
    for c in classes.unique().tolist():
        members = (classes == c).nonzero()[:, 0]
        own = _clusters(means[members], per_class)
        cluster[members] = own + count
        count += int(own.max()) + 1
    sizes = torch.bincount(cluster, minlength=count).double()
    centre = torch.zeros(count, means.shape[1], dtype=torch.float64).index_add_(0, cluster, means) / sizes[:, None]
    length = centre.norm(dim=1)
    kappa = kappa_from_mean_resultant_length(length, gallery.dim).clamp(max=_SHARPEST)
    # A mean of zero has no direction. kappa is then 0, and any direction is right.
    mu = torch.where(length[:, None] > 0, centre / length[:, None].clamp_min(1e-300), gallery.mu[0].double())
    weights = torch.zeros(count, labels.shape[1], dtype=torch.float64).index_add_(0, cluster, labels)
    return VonMisesFisher(mu.to(gallery.mu.dtype), kappa.to(gallery.mu.dtype)), weights


def entries_per_class(classes: int) -> int:
    """How many entries a condensed gallery has for each class: eight, fewer if there are many classes.

    Args:
        classes: Number of classes.

    Returns:
        Number of entries for `condense_gallery`.

    Examples:
        >>> from aleator.evaluation import entries_per_class
        >>> entries_per_class(10), entries_per_class(500)
        (8, 2)
    """
    return max(1, min(_PER_CLASS, _MOST_ENTRIES // classes))


@torch.no_grad()
def fit_label_model(
    gallery: PosteriorBatch,
    labels: Tensor,
    questions: PosteriorBatch,
    question_labels: Tensor,
    kernel: ZonalKernel,
    names: Sequence[str],
    *,
    per_class: Sequence[int | None] = (),
    learned: LabelModel | None = None,
) -> LabelModel:
    """Fit label probabilities so that the labels of held-out items are most likely.

    Galleries of several sizes are tried, each with the given kernel and with kappa_pos = inf (the expected likelihood
    kernel, which compares the posteriors themselves). For each, beta and floor are fitted, beta with a prior around 1
    that counts where questions are few. The likeliest model is returned. Class posteriors that were learned with the
    encoder can be tried as well.

    Args:
        gallery: Posteriors of labelled items, such as those that were trained on, batch shape (N,).
        labels: Their labels: numbers, shape (N,), or soft labels, shape (N, C).
        questions: Posteriors of held-out items, batch shape (Q,). Of more than 4,000 items, 4,000 are used.
        question_labels: Their labels: numbers, shape (Q,), or soft labels, shape (Q, C).
        kernel: Kernel that the encoder was trained with.
        names: Names of the C labels.
        per_class: Sizes of the gallery to try: entries for each class, see `condense_gallery`, or None for all items
            as they are. Default: one entry, and eight (fewer if there are more than 125 classes).
        learned: A model to be tried as well, with these names: class posteriors of a `PrototypeLoss`, for example. Its
            gallery and its kernel are used, its beta and floor are fitted.

    Returns:
        The model.

    Raises:
        ValueError: If there are no questions, or a label has no name.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import fit_label_model, label_log_likelihood
        >>> _ = torch.manual_seed(0)
        >>> label = torch.arange(400) % 3
        >>> q = al.VonMisesFisher(al.VonMisesFisher(torch.eye(3)[label], 8.0).sample(), 200.0)  # far too sure
        >>> model = fit_label_model(q[:200], label[:200], q[200:], label[200:], al.VMFKernel(20.0), ["a", "b", "c"])
        >>> label_log_likelihood(model.probabilities(q[200:]), label[200:]) > -0.2
        True
    """
    require(len(questions) > 0, "questions", 0, "there are none", "hold out some items")
    count = len(names)
    rows, asked = _label_rows("labels", labels, count), _label_rows("question_labels", question_labels, count)
    if len(questions) > _MOST_QUESTIONS:
        chosen = torch.as_tensor(sample_numbers(np.arange(len(questions)), _MOST_QUESTIONS, seed=0))
        questions, asked = questions[chosen], asked[chosen]
    kernels = [kernel, VMFKernel(math.inf)]
    tried: list[tuple[VonMisesFisher, Tensor, list[ZonalKernel]]] = []
    if learned is not None:
        tried.append((learned.gallery, learned.weights.double(), [learned.kernel]))
    for size in per_class or sorted({1, entries_per_class(count)}):
        entries, weights = gallery_of_one_mode(gallery, rows) if size is None else condense_gallery(gallery, rows, size)
        tried.append((entries, weights, kernels))
    best, best_cost = None, math.inf
    for entries, weights, candidates in tried:
        for candidate in candidates:
            log_r = pairwise_log_positivity(questions, entries, candidate)
            cost, beta, floor = _fit_beta_and_floor(log_r, weights, asked)
            if cost < best_cost:
                best_cost, best = cost, LabelModel(entries, weights, tuple(names), candidate, beta, floor)
    assert best is not None
    return best


def _label_rows(argument: str, labels: Tensor, count: int) -> Tensor:
    """Labels as rows of probabilities (N, C), float64."""
    if labels.dim() == 2:
        width = labels.shape[1]
        require(width == count, argument, tuple(labels.shape), f"there are {count} names", "pass a column for each")
        return labels.double()
    inside = (labels >= 0) & (labels < count)
    require(inside, argument, labels, f"there are {count} names", "pass label numbers from 0")
    return torch.nn.functional.one_hot(labels.long(), count).double()


def _fit_beta_and_floor(log_r: Tensor, weights: Tensor, asked: Tensor) -> tuple[float, float, float]:
    """The least cost (minus log-likelihood) of labels (Q, C) given log r (Q, M); and the beta and floor there."""
    # The floor is tried thousands of times, so only the entries that are asked about are kept, as arrays of numpy.
    entries = asked.nonzero(as_tuple=True)
    share = (asked[entries] / len(asked)).cpu().numpy()
    prior = (weights.sum(0) / weights.sum())[entries[1]].cpu().numpy()

    def cost_of_beta(log_beta: float) -> tuple[float, float]:
        p = tempered_labels(log_r, weights, math.exp(log_beta))[entries].cpu().numpy()

        def cost_of_floor(log_floor: float) -> float:
            predicted = np.maximum(with_floor(p, prior, math.exp(log_floor)), _TINY)
            return -float(share @ np.log(predicted)) - _IMAGINARY / len(asked) * log_floor

        cost, log_floor = _least(cost_of_floor, _LOG_FLOOR)  # the likelihood is concave in the floor
        return cost + (log_beta / _LOG_BETA_DEVIATION) ** 2 / (2 * len(asked)), log_floor

    # A coarse search first: the cost can have more than one valley in beta.
    grid = np.linspace(*_LOG_BETA, 17)
    middle = grid[int(np.argmin([cost_of_beta(log_beta)[0] for log_beta in grid]))]
    step = grid[1] - grid[0]
    _, log_beta = _least(lambda x: cost_of_beta(x)[0], (middle - step, middle + step))
    cost, log_floor = cost_of_beta(log_beta)
    return cost, math.exp(log_beta), math.exp(log_floor)


def _least(cost: Any, bounds: tuple[float, float]) -> tuple[float, float]:
    """The least value of a function of one number, and where it is."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-2})
    return float(found.fun), float(found.x)


def _clusters(points: Tensor, count: int) -> Tensor:
    """k-means: the cluster (n,) of each point (n, D), numbered from 0 without gaps. It starts with points far apart."""
    if count == 1 or len(points) == 1:
        return torch.zeros(len(points), dtype=torch.long)
    first = (points - points.mean(0)).square().sum(1).argmin()
    chosen, distance = [first], (points - points[first]).square().sum(1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(distance.argmax())
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1))
    centres = points[torch.stack(chosen)]
    for _ in range(_ROUNDS):
        cluster = torch.cdist(points, centres).argmin(1)
        sizes = torch.bincount(cluster, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, cluster, points)
        centres = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp_min(1), centres)
    return torch.unique(cluster, return_inverse=True)[1]
