"""A certainty in words, for people who have never heard of kappa."""

_WORDS = ((0.05, "very low"), (0.25, "low"), (0.75, "medium"), (0.95, "high"))


def certainty_in_words(surer_than: float) -> str:
    """How certain something is, compared with the items of a collection.

    Args:
        surer_than: Share of the items that are less certain.

    Returns:
        "very low" (of the lowest 5 %), "low" (of the lowest quarter), "medium", "high" or "very high".

    Examples:
        >>> from aleator.retrieval import certainty_in_words
        >>> [certainty_in_words(share) for share in (0.01, 0.2, 0.5, 0.8, 0.99)]
        ['very low', 'low', 'medium', 'high', 'very high']
    """
    return next((word for limit, word in _WORDS if surer_than < limit), "very high")
