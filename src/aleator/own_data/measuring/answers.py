"""Label probabilities and novelty of a run: which labels an item could have, and what is unlike all it has seen.

Both are fitted after training, on a sample of the training items and on the held-out items that calibrate. They are
stored in the run folder: RUN/labels/ and RUN/novelty/. Runs of older releases have neither.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import (
    FeatureView,
    LabelModel,
    LetterPairView,
    NoveltyDetector,
    auroc,
    expected_calibration_error,
    fit_label_model,
    fit_novelty,
    label_certainty,
    label_log_likelihood,
    pack_label_model,
    unpack_label_model,
)
from aleator.foundation import read_bundle, require, sample_numbers, write_bundle
from aleator.matching import VMFKernel
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split
from aleator.own_data.measuring.encoded_items import EncodedItems
from aleator.own_data.measuring.views import Views, letter_pairs

_VERSION = 1  # of both formats
_MOST_ITEMS = 10_000  # training items that are looked at
_LEAST_OF_CLASS = 8  # of each class at least these many, or all
_MOST_CLASSES = 2_000  # more would make the table of labels too large
_VIEW_TENSORS: dict[type, tuple[str, ...]] = {
    FeatureView: ("centre", "scale", "directions", "sample"),
    LetterPairView: ("log_probabilities",),
}


@dataclass(frozen=True)
class Answers:
    """What a run knows beside posteriors.

    Args:
        labels: Label probabilities; None if the run has none.
        novelty: Detector of what is unlike anything seen; None if the run has none.

    Examples:
        >>> from aleator.own_data import Answers
        >>> Answers().labels is None
        True
    """

    labels: LabelModel | None = None
    novelty: NoveltyDetector | None = None


def fit_answers(
    encoded: EncodedItems,
    collection: Collection,
    labels: Labels,
    split: Split,
    kernel: VMFKernel,
    seed: int,
    learned: LabelModel | None = None,
) -> tuple[Answers, LabelModel | None, dict[str, Any]]:
    """Fit label probabilities and novelty, and measure them on the held-out items that evaluate.

    Label probabilities are fitted twice: on the items that calibrate, to be measured, and on all held-out items.

    Args:
        encoded: The held-out items, and those training items that `gallery_sample` names.
        collection: The items as they are given.
        labels: Labels of all items.
        split: Which items were trained on, calibrate and evaluate.
        kernel: Kernel of match probabilities.
        seed: Seed of the sample of training items.
        learned: Label probabilities of the training itself, if it had any.

    Returns:
        The answers; the label probabilities that were measured; and metrics: those of `label_metrics` if there are
        label probabilities, and "unlike", the share of the evaluated items that are flagged.
    """
    sample = gallery_sample(labels, split.train, seed)
    novelty = fit_novelty(_views(encoded, collection, sample), _views(encoded, collection, split.calibration))
    unlike = novelty.unlike(_views(encoded, collection, split.test))
    metrics: dict[str, Any] = {"unlike": unlike.double().mean().item()}
    if labels.kind not in ("classes", "soft") or len(labels.names) > _MOST_CLASSES:
        return Answers(None, novelty), None, metrics
    rows = label_rows(labels)
    gallery, gallery_rows = encoded.posteriors(sample), _in_proportion(rows[sample], rows[split.train])

    def fitted_on(numbers: np.ndarray) -> LabelModel:
        asked = encoded.posteriors(numbers)
        return fit_label_model(gallery, gallery_rows, asked, rows[numbers], kernel, labels.names, learned=learned)

    measured = fitted_on(split.calibration)
    metrics |= label_metrics(measured.probabilities(encoded.posteriors(split.test)), rows[split.test])
    held_out = np.concatenate([split.calibration, split.test])
    return Answers(fitted_on(held_out), novelty), measured, metrics


def label_metrics(probabilities: Tensor, rows: Tensor) -> dict[str, float | None]:
    """How right label probabilities are.

    Args:
        probabilities: Predicted probabilities, shape (N, C).
        rows: The labels as rows of 0 and 1, or soft labels, shape (N, C).

    Returns:
        - label_log_likelihood: mean log P(label); for soft labels minus their cross-entropy
        - label_accuracy: share of items whose likeliest label is right
        - label_ece: calibration error of the probability of the likeliest label
        - label_auroc: how well the certainty tells right from wrong; None if all are right or all wrong

    Examples:
        >>> import torch
        >>> from aleator.own_data import label_metrics
        >>> label_metrics(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.eye(2))["label_accuracy"]
        0.5
    """
    right = probabilities.argmax(1) == rows.argmax(1)
    both = bool(right.any()) and not bool(right.all())
    return {
        "label_log_likelihood": label_log_likelihood(probabilities, rows),
        "label_accuracy": right.double().mean().item(),
        "label_ece": expected_calibration_error(probabilities.max(1).values.clamp(0, 1), right),
        "label_auroc": auroc(label_certainty(probabilities), right) if both else None,
    }


def label_rows(labels: Labels, names: tuple[str, ...] | None = None) -> Tensor:
    """Classes or soft labels as rows of probabilities (N, C), float64.

    Args:
        labels: The labels.
        names: Names of the columns. Default: those of the labels.

    Returns:
        Probabilities, shape (N, C).

    Raises:
        ValueError: If a label is not among the names.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import Labels, label_rows
        >>> label_rows(Labels("classes", np.array([1, 0]), ("cat", "dog"))).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    own = torch.as_tensor(labels.values)
    rows = own.double() if labels.kind == "soft" else torch.nn.functional.one_hot(own, len(labels.names)).double()
    if names is None or names == labels.names:
        return rows
    used = rows.sum(0) > 0
    unknown = [name for name, is_used in zip(labels.names, used.tolist(), strict=True) if is_used and name not in names]
    way_out = "evaluate items of the classes that the encoder was trained on"
    require(not unknown, "labels", unknown[:3], "the encoder does not know them", way_out)
    column = {name: c for c, name in enumerate(names)}
    placed = torch.zeros(len(rows), len(names), dtype=torch.float64)
    for c in torch.nonzero(used)[:, 0].tolist():
        placed[:, column[labels.names[c]]] = rows[:, c]
    return placed


def save_answers(folder: Path, answers: Answers) -> None:
    """Write the answers into a run folder."""
    for name, (facts, tensors) in pack_answers(answers).items():
        write_bundle(folder / name, name, _VERSION, facts, tensors, overwrite=True)


def pack_answers(answers: Answers) -> dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """What JSON can store of the answers, and the tensors by name: of "labels" and of "novelty", if there are any."""
    packed = {}
    if answers.labels is not None:
        packed["labels"] = pack_label_model(answers.labels)
    if answers.novelty is not None:
        views = answers.novelty.views
        facts: dict[str, Any] = {
            "threshold": answers.novelty.threshold,
            "views": {name: {"median": view.median, "spread": view.spread} for name, view in views.items()},
        }
        tensors = {
            f"{name}.{part}": getattr(view, part) for name, view in views.items() for part in _VIEW_TENSORS[type(view)]
        }
        packed["novelty"] = facts, tensors
    return packed


def load_answers(folder: Path) -> Answers:
    """Read the answers of a run folder; None for those that it does not have."""
    model = novelty = None
    if (folder / "labels").is_dir():
        stored = read_bundle(folder / "labels", "labels", _VERSION)
        model = unpack_label_model(stored.metadata, stored.tensors)
    if (folder / "novelty").is_dir():
        stored = read_bundle(folder / "novelty", "novelty", _VERSION)
        views: dict[str, FeatureView | LetterPairView] = {}
        for name, numbers in stored.metadata["views"].items():
            kind = LetterPairView if name == "letters" else FeatureView
            tensors: dict[str, Any] = {part: stored.tensors[f"{name}.{part}"] for part in _VIEW_TENSORS[kind]}
            views[name] = kind(**tensors, **numbers)
        novelty = NoveltyDetector(views, stored.metadata["threshold"])
    return Answers(model, novelty)


def gallery_sample(labels: Labels, train: np.ndarray, seed: int) -> np.ndarray:
    """Some of the training items: at most 10,000, and more if that leaves a class with fewer than eight."""
    sample = sample_numbers(train, _MOST_ITEMS, seed)
    hard = labels.hard()
    if hard is None or labels.kind == "groups" or len(sample) == len(train):
        return sample
    order = np.random.default_rng(seed).permutation(train)
    by_class = order[np.argsort(hard[order], kind="stable")]
    counts = np.bincount(hard[by_class])
    counts = counts[counts > 0]
    place = np.arange(len(by_class)) - np.repeat(np.cumsum(counts) - counts, counts)  # of an item within its class
    return np.union1d(sample, by_class[place < _LEAST_OF_CLASS])


def _in_proportion(sample: Tensor, whole: Tensor) -> Tensor:
    """Labels of a sample (n, C), with the mass of each class as in all training items (N, C)."""
    mass = sample.sum(0)
    return sample * torch.where(mass > 0, whole.sum(0) / mass.clamp_min(1e-300), 0.0)


def _views(encoded: EncodedItems, collection: Collection, numbers: np.ndarray) -> Views:
    """Views of some items."""
    views = encoded.views_of(numbers)
    if collection.kind == "text":  # the encoder was trained on features of the texts
        views["letters"] = letter_pairs([str(collection.items[i]) for i in numbers.tolist()])
    return views
