"""Our answers about the test items of a training, compared with those of baselines."""

from typing import Any

import numpy as np
import torch

from aleator.evaluation import LabelModel
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import Split
from aleator.own_data.learning.preparation import PreparedTraining
from aleator.own_data.measuring.baselines import Baselines, fit_baselines
from aleator.own_data.measuring.comparison import compare_with_baselines
from aleator.own_data.measuring.encoded_items import EncodedItems
from aleator.own_data.measuring.questions import held_out_questions


def compare_held_out(
    given: PreparedTraining,
    encoded: EncodedItems,
    grouping: Labels,
    split: Split,
    asked: np.ndarray,
    gallery: np.ndarray,
    model: LabelModel | None,
    network: str | None,
    seed: int,
) -> tuple[dict[str, Any], Baselines]:
    """Compare test items of a training with baselines that learn from the same items.

    Args:
        given: The items as they came: pixels, or features.
        encoded: Posteriors of the items.
        grouping: Labels of all items, of no pairs.
        split: Which items were trained on.
        asked: Numbers of the queries, which equal no item that was trained on.
        gallery: Numbers of the training items to compare with.
        model: Our label probabilities, if there are any.
        network: Name of the network that gave the features; see `Baselines`.
        seed: Seed of the intervals.

    Returns:
        What `compare_with_baselines` returns; and the baselines, for the run.
    """
    inputs = "pixels" if given.learns_from_pixels else "features" if given.frozen is None else "frozen features"
    baselines = fit_baselines(given.items, split.train, grouping, inputs=inputs, network=network)
    queries = held_out_questions(encoded.posteriors(asked), asked, encoded.posteriors(gallery), gallery, grouping)
    with_them = np.concatenate([gallery, asked]) if len(queries.gallery) > len(gallery) else gallery
    rows, others = (baselines.rows(given.items[torch.as_tensor(numbers)]) for numbers in (asked, with_them))
    comparison = compare_with_baselines(
        queries,
        rows,
        others,
        head=baselines.head,
        label_probabilities=None if model is None else model.probabilities(queries.q),
        learned_from=baselines.learned_from,
        inputs=inputs,
        seed=seed,
    )
    return comparison, baselines.with_gallery(given.items, encoded.posteriors(gallery), gallery, grouping)
