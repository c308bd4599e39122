"""Figures of tables are drawn, and show what they were given."""

import pytest
import torch

from aleator.experiments import plots

MEANS = [{"mean": 0.5, "stderr": 0.1}, {"mean": 0.7, "stderr": None}]
FIGURES = {
    "lines": lambda: plots.lines([1, 10], {"ours": MEANS, "theirs": [0.4, 0.5]}, "x", "y", diagonal=True),
    "many lines": lambda: plots.lines([1, 10], {n: MEANS for n in "abcd"}, "x", "y", log_x=True, log_y=True),
    "named_points": lambda: plots.named_points("ab", {"error": {"ours": MEANS, "theirs": [0.4, 0.5]}}, log=["error"]),
    "grid": lambda: plots.grid(torch.rand(2, 3), [1, 2], [0, 1, 2], "a", "b", "rank"),
    "contours": lambda: plots.contours(
        torch.linspace(-0.5, 0.5, 9), torch.rand(9, 9), {"minimum": (0.0, 0.1)}, "x", "y"
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn(name):
    figure = FIGURES[name]()
    figure.canvas.draw()
    assert figure.axes


def test_many_curves_have_their_legend_below():
    figure = FIGURES["many lines"]()
    assert len(figure.legends) == 1
    assert not FIGURES["lines"]().legends


@pytest.mark.parametrize(
    "names",
    [
        ("ambiguous", "clear", "ambiguous, one drawn positive", "clear, one drawn positive"),
        ("kappa", "mu", "kappa, the published rule", "mu", "kappa, the published rule, right constant", "nu, the same"),
    ],
)
def test_a_legend_lies_inside_its_figure(names):
    figure = plots.lines([1, 2], {name + " " * n: [n, n] for n, name in enumerate(names)}, "x", "y")
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().height >= 0.5 * figure.dpi * 3.4  # and leaves room for the curves


def test_no_series_is_left_out_and_none_looks_like_another():
    curves = {f"series {n}": [n, n + 1] for n in range(14)}
    axis = plots.lines([1, 2], curves, "x", "y").axes[0]
    assert [list(container.lines[0].get_ydata()) for container in axis.containers] == list(curves.values())
    looks = [(line[0].get_color(), line[0].get_marker()) for line in (each.lines for each in axis.containers)]
    assert len(set(looks)) == 14
    x = torch.linspace(-0.5, 0.5, 11)
    points = {name: (0.1, 0.01 * n) for n, name in enumerate(curves)}
    (legend,) = plots.contours(x, x[:, None] ** 2 + x**2, points, "x", "y").legends  # beside the axes
    texts = legend.get_texts()
    assert [text.get_text() for text in texts] == list(points)


def test_every_name_needs_a_value():
    with pytest.raises(ValueError, match="there are 3 names"):
        plots.named_points("abc", {"error": {"ours": [1.0, 2.0]}})
