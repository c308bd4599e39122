"""Label probabilities in words, for the commands that show them."""

from collections.abc import Mapping


def could_be(labels: Mapping[str, float]) -> str:
    """Probabilities of labels in words: "coat 50 %, shirt 30 %"."""
    return ", ".join(f"{name} {probability:.0%}".replace("%", " %") for name, probability in labels.items())
