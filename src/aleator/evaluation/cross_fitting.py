"""Cross-fitting: every item is predicted by a model that was trained without it.

A model that has seen a wrong label learns it by heart, and then finds nothing wrong with it. So labels are judged by
predictions out of sample: the items are dealt into folds, and each fold is predicted by a model that was trained on the
others. Items that belong together, such as copies of one image, stay in one fold.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import require

# A trained model: features (n, F) -> probabilities (n, C).
Predictor = Callable[[Tensor], Tensor]
# Trains one: features (n, F) and targets (n, C), each row a distribution over classes.
Trainer = Callable[[Tensor, Tensor], Predictor]


def deal_into_folds(classes: np.ndarray, folds: int, groups: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Deal items into folds, so that every fold has about the same share of each class.

    Args:
        classes: Class of each item, shape (N,).
        folds: Number of folds.
        groups: Group of each item, shape (N,). A group stays in one fold; it is dealt as its first item is. Default:
            every item is on its own.
        seed: Seed of the order in which items are dealt.

    Returns:
        Fold of each item, shape (N,), from 0 to `folds` - 1.

    Raises:
        ValueError: If there are fewer than two folds, or fewer groups than folds.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import deal_into_folds
        >>> fold = deal_into_folds(np.array([0, 0, 0, 0, 1, 1]), folds=2)
        >>> np.bincount(fold[:4]), np.bincount(fold[4:])
        (array([2, 2]), array([1, 1]))
    """
    require(folds >= 2, "folds", folds, "nothing would be left to train on", "pass 2 or more")
    groups = np.arange(len(classes)) if groups is None else groups
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    problem = f"there are {len(first)} items, copies of one item counted once"
    require(len(first) >= folds, "folds", folds, problem, "pass fewer folds, or more items")
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(classes[first][order], kind="stable")]
    fold_of_group = np.empty(len(first), np.int64)
    fold_of_group[order] = np.arange(len(first)) % folds
    return fold_of_group[group.reshape(-1)]


def cross_fit(
    features: Tensor,
    targets: Tensor,
    fold: np.ndarray,
    train: Trainer,
    *,
    done: Callable[[], None] = lambda: None,
) -> Tensor:
    """Predict each fold by a model that was trained on the other folds.

    Args:
        features: Features, shape (N, F).
        targets: Label distributions, shape (N, C); one-hot rows for hard labels.
        fold: Fold of each item, shape (N,).
        train: Called once for each fold, with the features and targets of the other folds.
        done: Called after each fold.

    Returns:
        Probabilities, shape (N, C): of each item from a model that did not see it.

    Examples:
        >>> import numpy as np, torch
        >>> from aleator.evaluation import cross_fit
        >>> class_shares = lambda features, targets: lambda new: targets.mean(0).expand(len(new), -1)
        >>> targets = torch.eye(2)[torch.tensor([0, 0, 1])]
        >>> cross_fit(torch.zeros(3, 1), targets, np.array([0, 1, 1]), class_shares)
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000],
                [1.0000, 0.0000]])
    """
    probabilities = torch.empty(targets.shape, dtype=features.dtype)
    for number in np.unique(fold):
        held_out = torch.as_tensor(fold == number)
        model = train(features[~held_out], targets[~held_out])
        probabilities[held_out] = model(features[held_out]).to(probabilities)
        done()
    return probabilities
