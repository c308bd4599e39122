"""Label probabilities and shares in words, for the commands that show them."""

from collections.abc import Mapping


def could_be(labels: Mapping[str, float]) -> str:
    """Probabilities of labels in words: "coat 50 %, shirt 30 %"."""
    return ", ".join(f"{name} {percent(probability)}" for name, probability in labels.items())


def percent(share: float) -> str:
    """A share in percent: "50 %". Only 0 and 1 are shown as 0 % and 100 %."""
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 < share < 1:
        return ">99 %"
    return f"{share:.0%}".replace("%", " %")
