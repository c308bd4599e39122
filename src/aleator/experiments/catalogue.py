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
from aleator.experiments.runner import Row, Run

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


def _experiments(run: Run, rows: Mapping[str, Callable], draw: Mapping[str, Callable]) -> dict[str, Experiment]:
    return {
        name: Experiment(name, (made.__doc__ or "").splitlines()[0], run, made, draw[name])
        for name, made in rows.items()
    }


EXPERIMENTS: dict[str, Experiment] = {
    **_experiments(run_seed, tables.CONTROLLED, figures.FIGURES),
    **_experiments(run_landscape, {"landscape": landscape}, {"landscape": draw_landscape}),
    **_experiments(run_fold, cifar_tables.CIFAR, cifar_figures.FIGURES),
}
