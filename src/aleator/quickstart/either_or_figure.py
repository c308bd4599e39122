"""The figure of questions that could be one of two things: two groups of hits, beside the one set of one mode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.evaluation import plots
from aleator.quickstart.either_or import SHOWN, Group, shares_in_words
from aleator.quickstart.questions import numeral_shares
from aleator.retrieval import Hit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIXED = 4  # hits of one mode
_OTHER = "#8a8a8a"
_COLOURS = plots.COLOURS[:2]  # of the two numerals of a row
_TITLE: dict[str, Any] = {"fontsize": 11, "loc": "left", "pad": 4}


@dataclass(frozen=True)
class Row:
    """A row of the figure.

    Args:
        image: The question, (H, W) from 0 to 255.
        caption: What the question shows.
        groups: Hits of its two modes.
        one_mode: Hits of the posterior of one mode, nearest first.
    """

    image: np.ndarray
    caption: str
    groups: tuple[Group, Group]
    one_mode: list[Hit]


def spread(hits: Sequence[Hit], count: int) -> list[Hit]:
    """Hits from the nearest to the farthest, at even distances in their order.

    Args:
        hits: The hits, nearest first.
        count: How many to take. Fewer hits are all taken.
    """
    if len(hits) <= count:
        return list(hits)
    return [hits[round(k * (len(hits) - 1) / (count - 1))] for k in range(count)]


def draw_either_or(rows: Sequence[Row], gallery: np.ndarray, questions: int) -> "Figure":
    """Draw the questions, their two groups of hits, and the hits of one mode.

    The frame of a hit has the colour of its numeral's group; grey frames belong to neither.

    Args:
        rows: The questions, at least one.
        gallery: Images of the items, (N, H, W) from 0 to 255; the ids of hits are their numbers.
        questions: Number of questions that these were chosen from.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    widths = [1.5, 0.6, *[1] * SHOWN, 0.35, *[1] * SHOWN, 0.6, *[1] * _MIXED]
    height = 1.22 * len(rows) + 1.7
    figure = Figure(figsize=(11.5, height), dpi=110)
    grid = figure.add_gridspec(len(rows), len(widths), width_ratios=widths)
    figure.subplots_adjust(left=0.01, right=0.99, top=1 - 0.72 / height, bottom=1.05 / height, wspace=0.1, hspace=0.42)
    columns = (2, 3 + SHOWN, 4 + 2 * SHOWN)  # where the strips begin

    def show(row: int, column: int, image: np.ndarray, colour: str) -> Any:
        axes = figure.add_subplot(grid[row, column])
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=255)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=2.2)
        return axes

    for r, row in enumerate(rows):
        show(r, 0, row.image, "black").set_title(row.caption, **_TITLE)
        colours = {group.numeral: colour for group, colour in zip(row.groups, _COLOURS, strict=True)}
        for column, (title, colour, hits) in zip(columns, _strips(row), strict=True):
            for k, hit in enumerate(hits):
                axes = show(r, column + k, gallery[int(hit.id)], colours.get(hit.metadata["label"], _OTHER))
                if k == 0:
                    axes.set_title(title, color=colour, **_TITLE)
    headings = ("Query", "Two modes: either this, or that", "One mode: one set")
    for column, text in zip((0, columns[0], columns[2]), headings, strict=True):
        x = grid[0, column].get_position(figure).x0
        figure.text(x, 1 - 0.3 / height, text, fontsize=13, weight="bold")
    note = (
        f"A digit that is partly covered is asked among {len(gallery)} clear ones. Each strip shows some of the digits "
        "of the answer, from the nearest to the farthest.\nFrames: blue and orange for the two numerals of the row, "
        f"grey for any other.\nChosen by rule from {questions} queries: of those with two groups that each show "
        "mostly one numeral, first the ones that are at most half\ncovered, then by even weights; each pair of "
        "numerals once."
    )
    figure.text(0.013, 0.12 / height, note, fontsize=9, color="#444444")
    return figure


def _strips(row: Row) -> list[tuple[str, str, list[Hit]]]:
    """Title, colour and hits of the three strips: either, or, and one mode."""
    strips = [
        (f"{word} a {group.numeral} ({group.weight:.0%}): {len(group.hits)} digits", colour, spread(group.hits, SHOWN))
        for word, colour, group in zip(("either", "or"), _COLOURS, row.groups, strict=True)
    ]
    shares = shares_in_words(numeral_shares(row.one_mode))
    return [*strips, (f"{len(row.one_mode)} digits: {shares}", "black", spread(row.one_mode, _MIXED))]
