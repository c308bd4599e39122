"""The prior of a labelled collection: how often two of its items match."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


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
        if item is None or ("label" not in item and "labels" not in item):
            return None
        probabilities = item["labels"] if isinstance(item.get("labels"), Mapping) else {str(item["label"]): 1.0}
        for label, probability in probabilities.items():
            weight[label] += probability
    total = sum(weight.values())
    share = sum((each / total) ** 2 for each in weight.values()) if total > 0 else 1.0
    return share if share < 1 else None
