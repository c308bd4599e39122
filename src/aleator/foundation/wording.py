"""Numbers in words, the same in commands, figures and the page."""


def percent(share: float) -> str:
    """A share in percent: "50 %". Only 0 and 1 are shown as 0 % and 100 %.

    Args:
        share: The share, in [0, 1].

    Returns:
        Whole percents; "<1 %" and ">99 %" near the ends.

    Examples:
        >>> from aleator.foundation import percent
        >>> [percent(share) for share in (0.0, 0.001, 0.5, 0.9996, 1.0)]
        ['0 %', '<1 %', '50 %', '>99 %', '100 %']
    """
    if 0 < share <= 0.005:
        return "<1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{share:.0%}".replace("%", " %")
