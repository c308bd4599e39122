"""All experiments by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import figures, tables
from .controlled import run_seed
from .runner import Row, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESETS = tables.PRESETS


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper: its rows for each preset, what runs one, and what draws it."""

    name: str
    title: str
    run: Run
    rows: Callable[[str], list[Row]]
    draw: Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Tensor]]], dict[str, "Figure"]]


EXPERIMENTS: dict[str, Experiment] = {
    name: Experiment(name, (rows.__doc__ or "").splitlines()[0], run_seed, rows, figures.FIGURES[name])
    for name, rows in tables.CONTROLLED.items()
}
