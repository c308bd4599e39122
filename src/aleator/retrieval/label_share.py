"""The labels that items have in their metadata, and the prior that they give: how often two items match."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


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
        >>> from aleator.retrieval.label_share import labels_of
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
