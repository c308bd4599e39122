"""Every figure is drawn, and shows what it was given."""

import numpy as np
import pytest
import torch

import aleator as al
from aleator.evaluation import plots

ANGLES = torch.linspace(0.0, 6.0, 7)
PLANE = al.VonMisesFisher(torch.stack([ANGLES.cos(), ANGLES.sin()], 1), torch.linspace(1.0, 40.0, 7))
MEANS = [{"mean": 0.5, "stderr": 0.1}, {"mean": 0.7, "stderr": None}]
FIGURES = {
    "circle": lambda: plots.circle({"true": PLANE, "learned": PLANE}),
    "agreement": lambda: plots.agreement(torch.rand(50), torch.rand(50)),
    "reject_curve": lambda: plots.reject_curve([0.25, 0.5, 1.0], [0.99, 0.95, 0.9]),
    "reliability_diagram": lambda: plots.reliability_diagram([0.1, 0.9], [0.2, 0.8], [100, 50]),
    "histogram": lambda: plots.histogram([1.0, 10.0, 100.0], [5, 20]),
    "levels": lambda: plots.levels({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]}, "group"),
    "levels, linear": lambda: plots.levels({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]}, "group", log=False),
    "lines": lambda: plots.lines([1, 10], {"ours": MEANS, "theirs": [0.4, 0.5]}, "x", "y", diagonal=True),
    "many lines": lambda: plots.lines([1, 10], {n: MEANS for n in "abcd"}, "x", "y", log_x=True, log_y=True),
    "named_points": lambda: plots.named_points("ab", {"error": {"ours": MEANS, "theirs": [0.4, 0.5]}}, log=["error"]),
    "grid": lambda: plots.grid(torch.rand(2, 3), [1, 2], [0, 1, 2], "a", "b", "rank"),
    "contours": lambda: plots.contours(
        torch.linspace(-0.5, 0.5, 9), torch.rand(9, 9), {"minimum": (0.0, 0.1)}, "x", "y"
    ),
    "image_rows": lambda: plots.image_rows({"query": [(np.zeros((8, 8)), "3")] * 2, "next": [(np.ones((8, 8)), "5")]}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn(name):
    figure = FIGURES[name]()
    figure.canvas.draw()
    assert figure.axes


def test_panels_have_their_titles():
    figure = FIGURES["circle"]()
    assert [axis.get_title() for axis in figure.axes] == ["true", "learned"]
    with pytest.raises(ValueError, match="only the plane"):
        plots.circle({"solid": al.VonMisesFisher(torch.eye(3), torch.ones(3))})


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


def test_chosen_posteriors_lie_far_apart():
    angle = torch.tensor([0.0, 0.1, 1.5, 3.1, -1.5])
    q = al.VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([1.0, 9.0, 1.0, 1.0, 1.0]))
    chosen = plots.spread_out(q, 4).tolist()
    assert chosen[0] == 1  # the most certain
    assert chosen[1] == 3  # the farthest from it
    assert set(chosen) == {1, 2, 3, 4}
