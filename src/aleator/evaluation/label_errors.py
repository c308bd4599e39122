"""Which labels are likely wrong? Each label is compared with the predictions of models that did not see it.

Three judges give P(class | item) out of sample: a linear head and a head with a hidden layer, both cross-fitted, and
the labels of the nearest neighbours. They err differently, so their mean is better than each; those that predict
labels better count more (`judge_weights`). The score of an item is
log P(likeliest other class) - log P(its label). Northcutt et al. (2021, Confident Learning) rank by P(its label) or by
the difference of the two. The ratio found at least as many errors in every comparison (benchmarks/audit.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation.cross_fitting import Trainer, cross_fit
from aleator.evaluation.feature_neighbours import Neighbours
from aleator.evaluation.label_heads import (
    HeadSettings,
    choose_head_settings,
    hidden_layer_head,
    linear_head,
    standardise,
)
from aleator.foundation import require

JUDGES = ("linear head", "hidden layer", "neighbours")
_SMALLEST = 1e-12  # probabilities are not below it
_WEIGHT_ROUNDS = 100


@dataclass(frozen=True)
class LabelErrors:
    """What the judges say about each label.

    Args:
        score: log P(likelier) - log P(given), shape (N,): positive if another class is likelier than the label, -inf
            for a label that no item of another fold has.
        likelier: The likeliest class other than the label, shape (N,).
        p_given: Probability of the label, shape (N,).
        p_likelier: Probability of the likelier class, shape (N,).
        probabilities: P(class | item) out of sample, shape (N, C).
        judges: Mean log-likelihood of the labels under each judge.
        weights: Weight of each judge in the mean.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import score_labels
        >>> errors = score_labels(np.array([[0.9, 0.1], [0.9, 0.1]]), np.eye(2))
        >>> errors.order()
        array([1, 0])
    """

    score: np.ndarray
    likelier: np.ndarray
    p_given: np.ndarray
    p_likelier: np.ndarray
    probabilities: np.ndarray
    judges: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def order(self) -> np.ndarray:
        """Sort the items by score.

        Returns:
            Item numbers, the most suspicious first, shape (N,).
        """
        return np.argsort(-self.score, kind="stable")


def judge_labels(
    features: Tensor,
    targets: Tensor,
    neighbours: Neighbours,
    fold: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    settings: HeadSettings | None = None,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> LabelErrors:
    """Compare each label with what models say that did not see it.

    Args:
        features: Features, shape (N, F). They are standardised here.
        targets: Label distributions, shape (N, C); one-hot rows for hard labels.
        neighbours: Neighbours of each item.
        fold: Fold of each item; see `deal_into_folds`.
        groups: Group of each item, shape (N,): items of a group do not vote for each other. Default: none.
        settings: Scaling of the features, and penalty of the linear head. Default: `choose_head_settings`.
        seed: Seed of the heads.
        done: Called after each trained head, 2 x folds times.

    Returns:
        The judgement of each label.

    Examples:
        >>> import numpy as np, torch
        >>> from aleator.evaluation import deal_into_folds, judge_labels, neighbour_graph
        >>> classes = np.arange(60) % 2
        >>> features = torch.eye(2)[classes] + 0.1 * torch.randn(60, 2, generator=torch.manual_seed(0))
        >>> classes[4] = 1  # a wrong label
        >>> neighbours = neighbour_graph(features - features.mean(0), 10)
        >>> errors = judge_labels(features, torch.eye(2)[classes], neighbours, deal_into_folds(classes, 5))
        >>> int(errors.order()[0]), int(errors.likelier[4])
        (4, 0)
    """
    require(
        len(features) == len(targets), "targets", len(targets), f"there are {len(features)} items", "pass a row each"
    )
    targets = targets.float()
    settings = settings or choose_head_settings(features, targets, seed)
    features, penalty = standardise(features, settings.each), settings.penalty
    trainers: tuple[Trainer, ...] = (
        lambda x, y: linear_head(x, y, penalty),
        lambda x, y: hidden_layer_head(x, y, seed),
    )
    answers = [cross_fit(features, targets, fold, train, done=done) for train in trainers]
    answers.append(neighbour_votes(neighbours, targets, groups))
    judges = {
        name: float((targets * answer.clamp_min(_SMALLEST).log()).sum(1).mean())
        for name, answer in zip(JUDGES, answers, strict=True)
    }
    truth = targets.cpu().double().numpy()
    columns = [answer.double().numpy() for answer in answers]
    weights = judge_weights(np.stack([(truth * column).sum(1) for column in columns], 1))
    errors = score_labels(sum(w * column for w, column in zip(weights, columns, strict=True)), truth)
    errors.score[_unjudged(truth, fold)] = -np.inf
    return LabelErrors(**vars(errors) | {"judges": judges, "weights": dict(zip(JUDGES, weights.tolist(), strict=True))})


def judge_weights(p_label: np.ndarray) -> np.ndarray:
    """Weights of judges in their mean: half is shared equally, half is shared as predicts the labels best.

    The second half maximises the log-likelihood of the labels under the mean, by expectation-maximisation. Alone, it
    would often leave one judge, and the mean of several finds more errors.

    Args:
        p_label: Probability that each judge gives to each label, shape (N, judges).

    Returns:
        Weights that sum to 1, shape (judges,).

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import judge_weights
        >>> judge_weights(np.array([[0.9, 0.1], [0.8, 0.3]])).round(2)
        array([0.75, 0.25])
    """
    p_label = np.maximum(p_label, _SMALLEST)
    count = p_label.shape[1]
    best = np.full(count, 1 / count)
    for _ in range(_WEIGHT_ROUNDS):
        share = p_label * best
        best = (share / share.sum(1, keepdims=True)).mean(0)
    return (best + 1 / count) / 2


def score_labels(probabilities: np.ndarray, targets: np.ndarray) -> LabelErrors:
    """Compare labels with probabilities out of sample.

    For soft labels w, P(given) = sum_k w_k / max(w) P(k): every class that as many people chose as the most popular one
    is given. The likelier class is the best of (1 - w_k / max(w)) P(k).

    Args:
        probabilities: P(class | item), shape (N, C).
        targets: Label distributions, shape (N, C); one-hot rows for hard labels.

    Returns:
        The judgement of each label.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import score_labels
        >>> errors = score_labels(np.array([[0.1, 0.8, 0.1], [0.6, 0.2, 0.2]]), np.eye(3)[[0, 0]])
        >>> errors.likelier, errors.score.round(2)
        (array([1, 1]), array([ 2.08, -1.1 ]))
    """
    probabilities = np.maximum(probabilities, _SMALLEST)
    given = targets / targets.max(1, keepdims=True)
    p_given = (given * probabilities).sum(1)
    other = (1 - given) * probabilities
    likelier = other.argmax(1)
    p_likelier = np.maximum(other.max(1), _SMALLEST)
    return LabelErrors(np.log(p_likelier) - np.log(p_given), likelier, p_given, p_likelier, probabilities)


def neighbour_votes(neighbours: Neighbours, targets: Tensor, groups: np.ndarray | None = None) -> Tensor:
    """P(class | item) from the labels of its neighbours: their mean, and the class shares as one vote more.

    Args:
        neighbours: Neighbours of each item.
        targets: Label distributions, shape (N, C).
        groups: Group of each item, shape (N,): items of a group do not vote for each other. Default: none.

    Returns:
        Probabilities, shape (N, C).

    Examples:
        >>> import numpy as np, torch
        >>> from aleator.evaluation import Neighbours, neighbour_votes
        >>> neighbours = Neighbours(np.array([[1], [0]]), np.array([[0.5], [0.5]]))
        >>> neighbour_votes(neighbours, torch.eye(2))
        tensor([[0.2500, 0.7500],
                [0.7500, 0.2500]])
    """
    items = neighbours.items
    allowed = items >= 0
    if groups is not None:
        allowed &= groups[items] != groups[:, None]
    votes = torch.zeros(targets.shape, dtype=targets.dtype)
    for column in range(items.shape[1]):
        votes += targets.cpu()[items[:, column]] * torch.as_tensor(allowed[:, column, None])
    return (votes + targets.cpu().mean(0)) / torch.as_tensor(allowed.sum(1) + 1)[:, None]


@dataclass(frozen=True)
class Confusion:
    """Two classes that the judges confuse.

    Args:
        given: The class that items have.
        other: Another class.
        probability: Mean probability of `other` for items of `given`.
        items: Number of items of `given` for which `other` is likelier.
        examples: Numbers of these items, the most confused first.

    Examples:
        >>> from aleator.evaluation import Confusion
        >>> Confusion(given=0, other=1, probability=0.3, items=2, examples=(7, 4)).items
        2
    """

    given: int
    other: int
    probability: float
    items: int
    examples: tuple[int, ...]


def confused_classes(errors: LabelErrors, classes: np.ndarray, limit: int = 1000, examples: int = 5) -> list[Confusion]:
    """Pairs of classes that the judges confuse, the most confused first.

    Args:
        errors: Judgement of each label.
        classes: Class of each item, shape (N,).
        limit: Largest number of pairs.
        examples: Largest number of examples of each pair.

    Returns:
        The pairs. A pair in the other order is another pair.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import confused_classes, score_labels
        >>> probabilities = np.array([[0.4, 0.6], [0.1, 0.9]])
        >>> confused_classes(score_labels(probabilities, np.eye(2)), np.array([0, 1]), limit=1)
        [Confusion(given=0, other=1, probability=0.6, items=1, examples=(0,))]
    """
    count = errors.probabilities.shape[1]
    sizes = np.bincount(classes, minlength=count)
    mean = np.zeros((count, count))
    np.add.at(mean, classes, errors.probabilities)
    mean /= np.maximum(sizes, 1)[:, None]
    np.fill_diagonal(mean, 0)
    largest = np.argsort(-mean, axis=None, kind="stable")[:limit]
    wrong = errors.order()
    wrong = wrong[errors.score[wrong] > 0]
    by_pair: dict[tuple[int, int], list[int]] = {}
    for item in wrong.tolist():
        by_pair.setdefault((int(classes[item]), int(errors.likelier[item])), []).append(item)
    pairs = [divmod(int(place), count) for place in largest]
    return [
        Confusion(a, b, float(mean[a, b]), len(by_pair.get((a, b), ())), tuple(by_pair.get((a, b), ())[:examples]))
        for a, b in pairs
        if mean[a, b] > 0
    ]


def _unjudged(targets: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Which items have a label that no item outside their fold has, shape (N,)."""
    classes = targets.argmax(1)
    count = np.zeros((int(fold.max()) + 1, targets.shape[1]))
    np.add.at(count, (fold, classes), 1)
    return count.sum(0)[classes] - count[fold, classes] == 0
