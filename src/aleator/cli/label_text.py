"""Label probabilities and shares in words, for the commands that show them."""

from collections.abc import Mapping

from aleator.foundation import percent


def could_be(labels: Mapping[str, float]) -> str:
    """Probabilities of labels in words: "coat 50 %, shirt 30 %"."""
    return ", ".join(f"{name} {percent(probability)}" for name, probability in labels.items())
