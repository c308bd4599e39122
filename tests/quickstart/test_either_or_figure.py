"""The figure shows each question, its two groups of hits and the set of one mode."""

import numpy as np
from matplotlib.colors import to_hex

from aleator.evaluation import plots
from aleator.quickstart.either_or import SHOWN, Group
from aleator.quickstart.either_or_figure import Row, draw_either_or, spread
from aleator.retrieval import Hit


def hits(numerals: str) -> list[Hit]:
    return [Hit(i, 0.9, 50.0, 0.9, {"label": n, "path": ""}) for i, n in enumerate(numerals)]


def test_hits_are_spread_from_the_nearest_to_the_farthest():
    assert [hit.id for hit in spread(hits("4" * 9), 5)] == [0, 2, 4, 6, 8]
    assert [hit.id for hit in spread(hits("444"), 5)] == [0, 1, 2]
    assert spread([], 5) == []


def test_the_figure_says_either_or_and_frames_hits_by_numeral():
    groups = (Group("4", 0.62, hits("4" * 8)), Group("9", 0.38, hits("9" * 7)))
    rows = [
        Row(np.zeros((8, 8)), "a 4, partly covered", groups, hits("4917")),
        Row(np.zeros((8, 8)), "a 9", groups, []),
    ]
    figure = draw_either_or(rows, np.zeros((10, 8, 8)), 597)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title][:4] == [
        "a 4, partly covered",
        "either a 4 (62%): 8 digits",
        "or a 9 (38%): 7 digits",
        "4 digits: 4s 25%, 9s 25%, 1s 25%, 7s 25%",
    ]
    frames = [to_hex(axes.spines["left"].get_edgecolor()) for axes in figure.axes]
    either, other = (colour.lower() for colour in plots.COLOURS[:2])
    assert frames[1 : 1 + SHOWN] == [either] * SHOWN
    assert frames[1 + SHOWN : 1 + 2 * SHOWN] == [other] * SHOWN
    grey = "#8a8a8a"
    assert frames[1 + 2 * SHOWN : 5 + 2 * SHOWN] == [either, other, grey, grey]
    text = " ".join(text.get_text() for text in figure.texts)
    assert "Two modes: either this, or that" in text
    assert "among 10 clear ones" in text
    assert "from 597 queries" in text
