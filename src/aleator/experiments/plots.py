"""Figures of tables of experiments: curves with errors, named points, grids of numbers and contours.

Every function but `point_style` returns a matplotlib `Figure`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aleator.evaluation import plots
from aleator.foundation import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of an experiment: the rows of its result, and the arrays of each row's first run.
Rows = Sequence[dict[str, Any]]
Arrays = Sequence[dict[str, Tensor]]

_MARKERS = ("o", "s", "^", "D", "v", "P")


def point_style(number: int) -> dict[str, Any]:
    """Colour and marker of one of many series: other colours first, then other markers.

    Args:
        number: Number of the series, from 0.

    Returns:
        Arguments of matplotlib's `plot`.
    """
    row, column = divmod(number, len(plots.COLOURS))
    return {"color": plots.COLOURS[column], "marker": _MARKERS[row % len(_MARKERS)]}


def lines(
    x: Sequence[float],
    curves: Mapping[str, Sequence[Any]],
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    log_y: bool = False,
    diagonal: bool = False,
    height: float = 3.4,
) -> "Figure":
    """Curves over one axis, with error bars where errors are known.

    Args:
        x: Positions on the x axis, shape (N,).
        curves: Name of each curve -> N values. A value is a number, or {"mean": ..., "stderr": ...}.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
        log_x: Whether the x axis is logarithmic.
        log_y: Whether the y axis is logarithmic.
        diagonal: Whether to draw the line y = x.
        height: Height of the figure in inches.

    Returns:
        The figure.
    """
    figure, (axis,) = plots.new_figure(1, height, width=1.25 * height)
    if diagonal:
        axis.plot([min(x), max(x)], [min(x), max(x)], color=plots.GREY, linewidth=1)
    for n, (name, values) in enumerate(curves.items()):
        means, errors = _means_and_errors(values)
        axis.errorbar(x, means, errors, **point_style(n), markersize=4, linewidth=1.4, capsize=2, label=name)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if log_x:
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.minorticks_off()
    if log_y:
        axis.set_yscale("log")
    if len(curves) > 3:  # too many names for a legend inside the axes
        names = list(map(len, curves))
        half = (len(names) + 1) // 2
        columns = 2 if max(names[:half]) + max(names[half:]) <= 46 else 1  # letters beside each other
        figure.set_figheight(height + 0.2 * (-(-len(names) // columns) - 2))  # room for more than two rows of names
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=columns)
    elif len(curves) > 1:
        axis.legend(frameon=False, fontsize=9)
    return figure


def named_points(
    names: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[Any]]],
    log: Collection[str] = (),
    side: float = 2.4,
) -> "Figure":
    """Values of named things, one below the other, in one panel for each measure.

    Args:
        names: The things, from top to bottom, shape (N,).
        panels: Label of each panel -> name of each series -> N values. A value is a number, or {"mean": ...,
            "stderr": ...}. The series have the same names in all panels.
        log: Labels of the panels whose axis is logarithmic.
        side: Width of a panel in inches.

    Returns:
        The figure.

    Raises:
        ValueError: If a series does not have N values.
    """
    figure, axes = plots.new_figure(len(panels), 0.26 * len(names) + 1.0, width=side + 1.6 / len(panels))
    below = range(len(names))
    for axis, (label, series) in zip(axes, panels.items(), strict=True):
        for n, (name, values) in enumerate(series.items()):
            require(
                len(values) == len(names),
                name,
                f"{len(values)} values",
                f"there are {len(names)} names",
                "pass one each",
            )
            means, errors = _means_and_errors(values)
            axis.errorbar(means, below, None, errors, **point_style(n), markersize=4, linewidth=1.0, label=name)
        axis.set(xlabel=label, ylim=(len(names) - 0.5, -0.5))
        axis.set_yticks(below, names if axis is axes[0] else [""] * len(names), fontsize=9)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        if label in log:
            axis.set_xscale("log")
            plots.plain_ticks(axis.xaxis, *axis.get_xlim())
    if len(next(iter(panels.values()))) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside lower center", ncols=len(labels))
    return figure


def grid(
    values: Tensor, rows: Sequence[Any], columns: Sequence[Any], row: str, column: str, label: str, height: float = 3.0
) -> "Figure":
    """A table of numbers as coloured cells, with the numbers written in.

    Args:
        values: Table, shape (R, C).
        rows: Value of each row, shape (R,).
        columns: Value of each column, shape (C,).
        row: Label of the rows.
        column: Label of the columns.
        label: Name of the quantity.
        height: Height of the figure in inches.

    Returns:
        The figure.
    """
    figure, (axis,) = plots.new_figure(1, height, width=0.6 * height * values.shape[1] / values.shape[0] + 1.5)
    picture = axis.imshow(values.numpy(), cmap="viridis", aspect="auto")
    middle = float(values.min() + values.max()) / 2
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = float(values[i, j])
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="kw"[value < middle])
    axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    axis.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    axis.set(xlabel=column, ylabel=row)
    figure.colorbar(picture, label=label)
    return figure


def grid_of_a_and_b(rows: Rows, metric: str, label: str) -> "Figure":
    """The mean of a metric over HIB's grid of a and b. Its rows are those whose names begin with "a ".

    Args:
        rows: Rows of a result.
        metric: Name of the metric.
        label: What the figure calls it.

    Returns:
        The figure.
    """
    chosen = [row for row in rows if row["setting"].startswith("a ")]
    a, b = (sorted({row["parameters"][name] for row in chosen}) for name in "ab")
    values = {(row["parameters"]["a"], row["parameters"]["b"]): row["metrics"][metric]["mean"] for row in chosen}
    return grid(torch.tensor([[values[x, y] for y in b] for x in a]), a, b, "a", "b", label)


def contours(
    axis_values: Tensor, height: Tensor, points: Mapping[str, Sequence[float]], xlabel: str, ylabel: str
) -> "Figure":
    """Contours of a surface over a square, each four times the one before, and named points.

    Args:
        axis_values: Positions on both axes, shape (N,).
        height: Heights of the surface, shape (N, N): rows are y, columns are x.
        points: Name of each point -> (x, y).
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.

    Returns:
        The figure.
    """
    beside = len(points) > 7  # too many names for a legend inside the axes
    figure, (axis,) = plots.new_figure(1, 4.2, width=7.6 if beside else 5.6)
    levels = [1e-5 * 4**n for n in range(9)]
    lines = axis.contour(axis_values, axis_values, height, levels, colors=plots.GREY, linewidths=0.8)
    axis.clabel(lines, fmt="%.0e", fontsize=6)
    for n, (name, (x, y)) in enumerate(points.items()):
        axis.plot(x, y, **point_style(n), markersize=5, linestyle="", label=name)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if beside:
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
    else:
        axis.legend(frameon=False, fontsize=7)
    return figure


def _means_and_errors(values: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Numbers, or {"mean": ..., "stderr": ...}, as means and standard errors; an unknown error is 0."""
    pairs = [(v["mean"], v["stderr"] or 0.0) if isinstance(v, dict) else (v, 0.0) for v in values]
    return [mean for mean, _ in pairs], [error for _, error in pairs]
