"""A certainty in words, for people who have never heard of kappa."""

from aleator.foundation import percent

_WORDS = ((0.25, "very low"), (0.5, "low"), (0.75, "medium"), (0.95, "high"))


def certainty_in_words(likeliest: float | None, surer_than: float) -> str:
    """How certain something is: by its likeliest label if that is known, otherwise compared with a collection.

    Something clear among much that is clearer has no low certainty, so the place in a collection has no such words.

    Args:
        likeliest: Probability of the likeliest label; None if label probabilities are unknown.
        surer_than: Share of the items of the collection that are less certain.

    Returns:
        "very low" (no label has a probability of a quarter), "low" (none has a half), "medium", "high" or "very high"
        (95 % or more). Without label probabilities "above 30 % of the items", for example.

    Examples:
        >>> from aleator.retrieval import certainty_in_words
        >>> [certainty_in_words(p, 0.02) for p in (0.2, 0.4, 0.6, 0.9, 0.99)]
        ['very low', 'low', 'medium', 'high', 'very high']
        >>> certainty_in_words(None, 0.3)
        'above 30 % of the items'
    """
    if likeliest is None:
        return f"above {percent(surer_than)} of the items"
    return next((word for limit, word in _WORDS if likeliest < limit), "very high")
