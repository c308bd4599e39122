"""The labels that items have in their metadata: the prior that they give, and label probabilities.

An index keeps the numbers of a `LabelModel` that was fitted elsewhere: kernel, beta and floor. Its own labelled items
are the gallery. So the labels follow the index: items that are added or removed count at once.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from aleator.evaluation import LabelModel, condense_gallery, entries_per_class
from aleator.foundation import require
from aleator.matching import VMFKernel, ZonalKernel
from aleator.retrieval.snapshot import HasStore, take_snapshot

# Of an index that was built without fitted numbers: Bayes' rule, and a floor of a hundredth.
_BETA, _FLOOR = 1.0, 0.01


def label_text(label: Any) -> str:
    """A label as text. Different numbers have different texts; 1 and 1.0, which are the same label, have the same.

    Args:
        label: A label from the metadata of an item.

    Returns:
        The text.

    Examples:
        >>> from aleator.retrieval import label_text
        >>> label_text(1), label_text(1.0), label_text(1234567.0), label_text("1.0")
        ('1', '1', '1234567', '1.0')
    """
    return str(label).removesuffix(".0") if isinstance(label, float) else str(label)


def labels_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The labels of an item with their probabilities: "labels" if that holds some, or else "label".

    Args:
        metadata: Metadata of the item.

    Returns:
        Labels that have a probability above 0, with it; empty if the item has none.

    Examples:
        >>> from aleator.retrieval.metadata_labels import labels_of
        >>> labels_of({"labels": {"cat": 0.75, "dog": 0.25}}), labels_of({"label": "cat"}), labels_of({})
        ({'cat': 0.75, 'dog': 0.25}, {'cat': 1.0}, {})
    """
    soft, label = metadata.get("labels"), metadata.get("label")
    if isinstance(soft, dict) and soft and all(isinstance(p, int | float) and p >= 0 for p in soft.values()):
        return {str(name): float(p) for name, p in soft.items() if p > 0}
    return {} if label is None or isinstance(label, dict | list) else {label_text(label): 1.0}


def share_of_matches(metadata: Sequence[Mapping[str, Any] | None] | None) -> float | None:
    """Share of matches among random pairs of items, from the labels in their metadata.

    It is the prior of match probabilities if queries have the same labels as often as the items have.

    Args:
        metadata: Metadata of the items, with "label", or "labels" for the probability of each label.

    Returns:
        sum_c P(c)^2. None if an item has no label, or if all have the same.

    Examples:
        >>> from aleator.retrieval import share_of_matches
        >>> share_of_matches([{"label": "cat"}, {"label": "cat"}, {"label": "dog"}, {"label": "owl"}])
        0.375
        >>> share_of_matches([{"label": "cat"}, {}])
    """
    weight: defaultdict[str, float] = defaultdict(float)
    for item in metadata or ():
        probabilities = labels_of(item or {})
        if not probabilities:
            return None
        for label, probability in probabilities.items():
            weight[label] += probability
    total = sum(weight.values())
    share = sum((each / total) ** 2 for each in weight.values()) if total > 0 else 1.0
    return share if share < 1 else None


def label_numbers(model: LabelModel) -> dict[str, Any]:
    """The numbers of a fitted model, as an index stores them."""
    kappa_pos = repr(float(model.kernel.kappa_pos))  # type: ignore[arg-type]
    return {"kappa_pos": kappa_pos, "beta": model.beta, "floor": model.floor}


def label_model_of(index: HasStore, kernel: ZonalKernel) -> LabelModel:
    """A label model whose gallery are the labelled items of an index.

    Labels are the metadata "labels" (a probability for each label) or "label".

    Args:
        index: The index.
        kernel: Its kernel.

    Returns:
        The model. Without numbers from a fit, it follows Bayes' rule with this kernel.

    Raises:
        ValueError: If no item has a label, or all have the same one.
    """
    snapshot = take_snapshot(index)
    rows = [labels_of(json.loads(text)) for text in snapshot.metadata_json]
    labelled = np.array([bool(row) for row in rows], bool)
    names = tuple(sorted({name for row in rows for name in row}))
    way_out = 'give items metadata such as {"label": "cat"}'
    require(len(names) >= 2, "index", len(names), "its items have fewer than two labels", way_out)
    column = {name: c for c, name in enumerate(names)}
    weights = torch.zeros(int(labelled.sum()), len(names), dtype=torch.float64)
    for i, row in enumerate(row for row in rows if row):
        for name, probability in row.items():
            weights[i, column[name]] = probability
    gallery = snapshot.posteriors[torch.from_numpy(labelled)]
    entries, weights = condense_gallery(gallery, weights, entries_per_class(len(names)))
    numbers = index.store.config.get("labels")
    if numbers is None:
        return LabelModel(entries, weights, names, kernel, _BETA, _FLOOR)
    return LabelModel(
        entries, weights, names, VMFKernel(float(numbers["kappa_pos"])), numbers["beta"], numbers["floor"]
    )
