"""Numbers in words, and names as they are shown: the same in commands, figures and the page."""

import re

# Controls but line end and tab, the marks that turn the direction of text, line separators, halves of letters.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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


def visible(text: str) -> str:
    """Text for a terminal: characters that steer it, or turn the direction of text, are shown as JSON writes them.

    A file name or a label may hold anything, also what recolours, hides or rewrites the lines around it.

    Args:
        text: Anything that is about to be printed.

    Returns:
        The text; line ends and tabs stay.

    Examples:
        >>> from aleator.foundation import visible
        >>> visible("\x1b[31mred.png and \u202egnp.exe")
        '\\\\u001b[31mred.png and \\\\u202egnp.exe'
    """
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
