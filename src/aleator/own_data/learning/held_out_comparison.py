"""Our answers about the test items of a training beside those of simple methods (rivals)."""

from typing import Any

import numpy as np
import torch

from aleator.evaluation import LabelModel
from aleator.foundation import sample_numbers
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split, labels_at
from aleator.own_data.learning.preparation import PreparedTraining
from aleator.own_data.measuring.comparison import MOST_GALLERY, MOST_QUESTIONS, Items, compare_with_rivals
from aleator.own_data.measuring.encoded_items import EncodedItems


def compared_items(labels: Labels, split: Split, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the questions and of the gallery items that `compare_held_out` looks at."""
    if labels.kind in ("classes", "soft"):
        return sample_numbers(split.test, MOST_QUESTIONS, seed), sample_numbers(split.train, MOST_GALLERY, seed)
    return split.test, split.train[:0]


def compare_held_out(
    training: PreparedTraining,
    encoded: EncodedItems,
    labels: Labels,
    split: Split,
    model: LabelModel | None,
    seed: int,
) -> dict[str, Any]:
    """Compare the test items of a training with rivals; the training items are the gallery.

    If whole groups are held out, no training item matches a question. The questions are then asked against each other.

    Args:
        training: The raw inputs of all items.
        encoded: Posteriors of those that `compared_items` names.
        labels: Labels of all items.
        split: Which items were trained on, and which are the questions.
        model: Our label probabilities, if there are any.
        seed: Seed of samples and intervals.

    Returns:
        As `compare_with_rivals` returns it.
    """

    def items(numbers: np.ndarray) -> Items:
        raw = training.items[torch.as_tensor(numbers)]
        return Items(raw, encoded.posteriors(numbers), labels_at(labels, numbers))

    inputs = "pixels" if training.learns_from_pixels else "features" if training.frozen is None else "frozen features"
    asked, others = compared_items(labels, split, seed)
    questions, gallery = items(asked), items(others) if len(others) else None
    probabilities = None if model is None else model.probabilities(questions.q)
    return compare_with_rivals(questions, gallery, label_probabilities=probabilities, inputs=inputs, seed=seed)
