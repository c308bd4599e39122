"""The report of a repaired index, and the vectors that a repair takes from a posteriors file."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass
class Repair:
    """What was kept and what is lost.

    Args:
        kept: Number of items of the repaired index.
        made_again: Number of those whose vector was taken from the posteriors file.
        lost: Ids of items that are lost.
        nameless: Number of vectors whose id is lost.
        notes: Sentences on what else was lost.
        damaged: Where the damaged folder is now; None if there was nothing to repair.
    """

    kept: int = 0
    made_again: int = 0
    lost: list[str | int] = field(default_factory=list)
    nameless: int = 0
    notes: list[str] = field(default_factory=list)
    damaged: Path | None = None


@dataclass(frozen=True)
class ItemVectors:
    """Directions, kappas and weights of one item."""

    mu: np.ndarray  # (K, D)
    kappa: np.ndarray  # (K,)
    weight: np.ndarray  # (K,)
