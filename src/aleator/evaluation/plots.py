"""Figures, and which posteriors to draw in them.

A function that draws returns a matplotlib `Figure`; save it with `figure.savefig(path)`. The figures of the paper's
tables are in `aleator.experiments.plots`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.posteriors import VonMisesFisher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Can be told apart with any colour vision (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#8a8a8a"


def circle(panels: dict[str, VonMisesFisher], height: float = 3.4) -> "Figure":
    """Posteriors in the plane, drawn around the unit circle, with a dot at each mode.

    Args:
        panels: Title of each panel -> posteriors with D = 2, batch shape (N,). Posterior n has the same colour in every
            panel.
        height: Height of the figure in inches.

    Returns:
        A figure with one panel for each entry.

    Raises:
        ValueError: If a posterior has another dimension than 2.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import plots
        >>> q = al.VonMisesFisher(torch.eye(2), torch.tensor([5.0, 50.0]))
        >>> len(plots.circle({"learned": q}).axes)
        1
    """
    for title, q in panels.items():
        require(q.dim == 2, title, f"dimension {q.dim}", "only the plane can be drawn as a circle", "pass D = 2")
    figure, axes = new_figure(len(panels), height)
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    ring = torch.stack([torch.cos(angle), torch.sin(angle)], -1)
    largest = max(float(q.kappa.max()) for q in panels.values())
    # About the highest density: of a large kappa, or 1 / (2 pi) all around.
    scale = 0.75 / max(math.sqrt(largest / (2 * math.pi)), 1 / (2 * math.pi))
    for axis, (title, q) in zip(axes, panels.items(), strict=True):
        axis.plot(*ring.T, color=GREY, linewidth=0.8)
        for n in range(len(q)):
            one = q[n].detach().double()
            density = one.log_prob(ring).exp()
            outer = (1 + scale * density)[:, None] * ring
            colour = COLOURS[n % len(COLOURS)]
            axis.fill(*torch.cat([outer, ring.flip(0)]).T, color=colour, alpha=0.35, linewidth=0)
            seen = torch.where((density > 1e-3 * density.max())[:, None], outer, math.nan)
            axis.plot(*seen.T, color=colour, linewidth=1.2)
            axis.plot(*one.mu, "o", color=colour, markersize=4)
        axis.set(aspect="equal", xlim=(-1.85, 1.85), ylim=(-1.85, 1.85))
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    return figure


def agreement(true: Tensor, predicted: Tensor, label: str = "kappa", height: float = 3.4) -> "Figure":
    """Scatter plot of predicted against true values, with the diagonal.

    Args:
        true: True values, shape (N,).
        predicted: Predicted values, shape (N,).
        label: Name of the quantity, for the axes.
        height: Height of the figure in inches.

    Returns:
        The figure.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import plots
        >>> plots.agreement(torch.tensor([10.0, 20.0]), torch.tensor([11.0, 19.0])).axes[0].get_xlabel()
        'true kappa'
    """
    figure, (axis,) = new_figure(1, height)
    true, predicted = true.detach().cpu(), predicted.detach().cpu()
    low, high = float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))
    axis.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    axis.scatter(true, predicted, s=5, alpha=0.4, color=COLOURS[0], linewidths=0, zorder=2)
    axis.set(xlabel=f"true {label}", ylabel=f"predicted {label}")
    return figure


def reject_curve(kept: Sequence[float], recall_at_1: Sequence[float], height: float = 3.0) -> "Figure":
    """Recall@1 of the most certain items against the share of items that is kept.

    Args:
        kept: Shares of the items, increasing; the last is 1.
        recall_at_1: Recall@1 for each share.
        height: Height of the figure in inches.

    Returns:
        The figure.

    Examples:
        >>> from aleator.evaluation import plots
        >>> plots.reject_curve([0.25, 0.5, 1.0], [0.99, 0.95, 0.9]).axes[0].get_ylabel()
        'Recall@1'
    """
    figure, (axis,) = new_figure(1, height, width=1.25 * height)
    axis.plot([100 * share for share in kept], recall_at_1, color=COLOURS[0], marker="o", markersize=3)
    axis.axhline(recall_at_1[-1], color=GREY, linewidth=0.8, linestyle="--")
    axis.annotate("all items", (2, recall_at_1[-1]), xytext=(0, -4), textcoords="offset points", va="top", color=GREY)
    low = min(*recall_at_1, recall_at_1[-1])
    axis.set(xlabel="surest items kept, %", ylabel="Recall@1", xlim=(0, 102))
    axis.set_ylim(low - 0.15 * (1.0 - low) - 0.005, 1.0 + 0.05 * (1.0 - low) + 0.002)
    return figure


def reliability_diagram(
    predicted: Sequence[float], observed: Sequence[float], count: Sequence[float], height: float = 3.0
) -> "Figure":
    """Reliability diagram: observed share of matches against the predicted probability.

    The arguments are the fields of `aleator.evaluation.ReliabilityDiagram`. The area of a dot shows its share of pairs.

    Args:
        predicted: Mean predicted probability in each bin.
        observed: Share of matches in each bin.
        count: Number of pairs in each bin.
        height: Height of the figure in inches.

    Returns:
        The figure.

    Examples:
        >>> from aleator.evaluation import plots
        >>> plots.reliability_diagram([0.1, 0.9], [0.2, 0.8], [100, 50]).axes[0].get_xlabel()
        'match probability'
    """
    figure, (axis,) = new_figure(1, height, width=1.25 * height)
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, zorder=1)
    area = [15 + 250 * number / sum(count) for number in count]
    axis.plot(predicted, observed, color=COLOURS[0], linewidth=1, zorder=2)
    axis.scatter(predicted, observed, s=area, color=COLOURS[0], alpha=0.75, linewidths=0, zorder=3)
    axis.set(
        xlabel="match probability", ylabel="share that matches", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal"
    )
    return figure


def histogram(edges: Sequence[float], count: Sequence[float], label: str = "kappa", height: float = 3.0) -> "Figure":
    """Histogram of a positive quantity on a logarithmic axis.

    Args:
        edges: Edges of the bins, one more than there are bins.
        count: Number of items in each bin.
        label: Name of the quantity.
        height: Height of the figure in inches.

    Returns:
        The figure.

    Examples:
        >>> from aleator.evaluation import plots
        >>> plots.histogram([1.0, 10.0, 100.0], [5, 20]).axes[0].get_xscale()
        'log'
    """
    figure, (axis,) = new_figure(1, height, width=1.25 * height)
    axis.stairs(count, edges, fill=True, color=COLOURS[0], alpha=0.8)
    axis.set(xscale="log", xlabel=label, ylabel="items")
    plain_ticks(axis.xaxis, edges[0], edges[-1])
    return figure


def levels(
    values: dict[str, Sequence[float]], xlabel: str, ylabel: str = "kappa", log: bool = True, height: float = 3.0
) -> "Figure":
    """Distributions side by side, each by its quantiles.

    A box shows the middle half of the values, a line the middle nine tenths, a dot the median.

    Args:
        values: Name of each group -> its values.
        xlabel: Label of the groups.
        ylabel: Label of the values.
        log: Whether the axis of the values is logarithmic.
        height: Height of the figure in inches.

    Returns:
        The figure.

    Examples:
        >>> from aleator.evaluation import plots
        >>> figure = plots.levels({"clear": [50.0, 60.0], "blurred": [5.0, 9.0]}, "image")
        >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
        ['clear', 'blurred']
    """
    figure, (axis,) = new_figure(1, height, width=1.25 * height)
    for place, sample in enumerate(values.values()):
        low, first, median, third, high = torch.quantile(
            torch.as_tensor(sample, dtype=torch.float64), torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]).double()
        ).tolist()
        axis.plot([place, place], [low, high], color=COLOURS[0], linewidth=1)
        axis.plot([place, place], [first, third], color=COLOURS[0], linewidth=9, alpha=0.35, solid_capstyle="butt")
        axis.plot(place, median, "o", color=COLOURS[0], markersize=5)
    axis.set_xticks(range(len(values)), list(values))
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if log:
        axis.set_yscale("log")
        bottom, top = axis.get_ylim()
        plain_ticks(axis.yaxis, bottom, top)
    return figure


def spread_out(q: VonMisesFisher, count: int) -> Tensor:
    """Choose posteriors whose modes lie far apart.

    The first is the most certain one. Each next one is the farthest from those chosen before.

    Args:
        q: Posteriors, batch shape (N,).
        count: How many to choose.

    Returns:
        Indices, shape (count,).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import plots
        >>> mu = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
        >>> plots.spread_out(al.VonMisesFisher(mu, torch.tensor([9.0, 1.0, 1.0])), 2)
        tensor([0, 2])
    """
    chosen = [int(q.kappa.argmax())]
    for _ in range(count - 1):
        nearest = (q.mu @ q.mu[chosen].T).max(1).values
        chosen.append(int(nearest.argmin()))
    return torch.tensor(chosen)


def image_rows(rows: dict[str, list[tuple[Any, str]]], first_apart: bool = False, side: float = 0.75) -> "Figure":
    """Rows of small images with captions.

    Args:
        rows: Title of each row -> images (H, W) with values from 0 to 255, or (H, W, 3), each with its caption.
        first_apart: Whether the caption of the first image of each row has its own colour, for example for a query.
        side: Width of an image in inches.

    Returns:
        The figure.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import plots
        >>> image = np.zeros((8, 8))
        >>> len(plots.image_rows({"query": [(image, "a 3"), (image, "a 5")]}).axes)
        2
    """
    from matplotlib.figure import Figure

    columns = max(len(images) for images in rows.values())
    size = (side * columns + 1.3, 1.35 * side * len(rows))
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (title, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.axis("off")
        for place, (axis, (image, caption)) in enumerate(zip(line, images, strict=False)):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
            apart = first_apart and place == 0
            axis.set_title(caption, fontsize=7, pad=2, color=COLOURS[1] if apart else "black")
        line[0].text(-0.25, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    return figure


def new_figure(columns: int, height: float, width: float | None = None) -> tuple["Figure", Sequence[Any]]:
    """A figure with panels side by side, `width` (default: `height`) x `height` inches each."""
    # Without pyplot there is no global state and no window, and threads are safe.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * (width or height), height), layout="constrained", dpi=150)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def plain_ticks(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis with plain numbers. A short axis gets more of them, so that it has at least two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    narrow = high / low < 30
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
