"""Figures from results. Every function returns a matplotlib Figure and leaves saving and showing to its caller."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .checks import require
from .vmf import VonMisesFisher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinguishable with any colour vision, in this order (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#8a8a8a"


def circle(panels: dict[str, VonMisesFisher], height: float = 3.4) -> "Figure":
    """Posteriors in the plane, one panel per entry: densities drawn around the unit circle, a dot at each mode.

    Args:
        panels: title -> posteriors (N,) with D = 2. The n-th posterior has the same colour in every panel.
    """
    for title, q in panels.items():
        require(q.dim == 2, title, f"dimension {q.dim}", "only the plane can be drawn as a circle", "pass D = 2")
    figure, axes = _figure(len(panels), height)
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    ring = torch.stack([torch.cos(angle), torch.sin(angle)], -1)
    largest = max(float(q.kappa.max()) for q in panels.values())
    scale = 0.75 / math.sqrt(largest / (2 * math.pi))
    for axis, (title, q) in zip(axes, panels.items(), strict=True):
        axis.plot(*ring.T, color=_GREY, linewidth=0.8)
        for n in range(len(q)):
            one = VonMisesFisher(q.mu[n].detach().double(), q.kappa[n].detach().double(), validate_args=False)
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
    """Predicted against true values, with the diagonal on which they would agree."""
    figure, (axis,) = _figure(1, height)
    true, predicted = true.detach().cpu(), predicted.detach().cpu()
    low, high = float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))
    axis.plot([low, high], [low, high], color=_GREY, linewidth=1, zorder=1)
    axis.scatter(true, predicted, s=5, alpha=0.4, color=COLOURS[0], linewidths=0, zorder=2)
    axis.set(xlabel=f"true {label}", ylabel=f"predicted {label}")
    return figure


def _figure(columns: int, height: float) -> tuple["Figure", Sequence[Any]]:
    # The object-oriented way: no global state, no window, safe in threads.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * height, height), layout="constrained", dpi=150)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
