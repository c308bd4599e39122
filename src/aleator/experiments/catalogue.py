"""All experiments by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from aleator.experiments.cifar import figures as cifar_figures
from aleator.experiments.cifar import tables as cifar_tables
from aleator.experiments.cifar.run import run_fold
from aleator.experiments.controlled import figures, tables
from aleator.experiments.controlled.landscape import draw_landscape, landscape, run_landscape
from aleator.experiments.controlled.run import run_seed
from aleator.experiments.runner import Row, RunFunction
from aleator.experiments.settings import PRESETS, Preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Callable[[Preset], list[Row]]
Draw = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Tensor]]], dict[str, "Figure"]]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Args:
        name: Name on the command line, and of the folder in results/.
        title: One line for the report: the first line of the docstring of `rows`.
        run: Makes one run. Its `family` is the same for all experiments of a kind.
        rows: Preset -> the rows of the table.
        draw: Rows of the result, and arrays of each row's first run -> figures by name.
        presets: Presets that `rows` knows.
    """

    name: str
    title: str
    run: RunFunction
    rows: Table
    draw: Draw
    presets: tuple[Preset, ...]


def _experiments(
    run: RunFunction, tables: Mapping[str, Table], draw: Mapping[str, Draw], presets: tuple[Preset, ...]
) -> dict[str, Experiment]:
    """The experiments of one family; `tables` and `draw` have the same names."""
    return {
        name: Experiment(name, (rows.__doc__ or "").splitlines()[0], run, rows, draw[name], presets)
        for name, rows in tables.items()
    }


# What "corrected" corrects is in the controlled experiments.
_NOT_CORRECTED: tuple[Preset, ...] = ("quick", "paper", "best")

# The families' names are part of every cache key: a changed name would make all finished runs again.
EXPERIMENTS: dict[str, Experiment] = {
    **_experiments(RunFunction("controlled", run_seed), tables.CONTROLLED, figures.FIGURES, PRESETS),
    **_experiments(
        RunFunction("landscape", run_landscape), {"landscape": landscape}, {"landscape": draw_landscape}, _NOT_CORRECTED
    ),
    **_experiments(RunFunction("cifar", run_fold), cifar_tables.CIFAR, cifar_figures.FIGURES, _NOT_CORRECTED),
}
