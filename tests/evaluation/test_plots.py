"""Every figure is drawn, and shows what it was given."""

import numpy as np
import pytest
import torch

import aleator as al
from aleator.evaluation import plots

ANGLES = torch.linspace(0.0, 6.0, 7)
PLANE = al.VonMisesFisher(torch.stack([ANGLES.cos(), ANGLES.sin()], 1), torch.linspace(1.0, 40.0, 7))
FIGURES = {
    "circle": lambda: plots.circle({"true": PLANE, "learned": PLANE}),
    "agreement": lambda: plots.agreement(torch.rand(50), torch.rand(50)),
    "reject_curve": lambda: plots.reject_curve([0.25, 0.5, 1.0], [0.99, 0.95, 0.9]),
    "reliability_diagram": lambda: plots.reliability_diagram([0.1, 0.9], [0.2, 0.8], [100, 50]),
    "histogram": lambda: plots.histogram([1.0, 10.0, 100.0], [5, 20]),
    "levels": lambda: plots.levels({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]}, "group"),
    "levels, linear": lambda: plots.levels({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]}, "group", log=False),
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


def test_chosen_posteriors_lie_far_apart():
    angle = torch.tensor([0.0, 0.1, 1.5, 3.1, -1.5])
    q = al.VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([1.0, 9.0, 1.0, 1.0, 1.0]))
    chosen = plots.spread_out(q, 4).tolist()
    assert chosen[0] == 1  # the most certain
    assert chosen[1] == 3  # the farthest from it
    assert set(chosen) == {1, 2, 3, 4}


@pytest.mark.parametrize("kappa", [0.0, 0.01])
def test_posteriors_that_know_nothing_are_rings(kappa):
    """They lie inside the panel, and a density that is the same everywhere has the same height everywhere."""
    figure = plots.circle({"true": al.VonMisesFisher(PLANE.mu, torch.full((7,), kappa))})
    figure.canvas.draw()
    (axis,) = figure.axes
    outlines = [line.get_xydata() for line in axis.lines if len(line.get_xdata()) > 1][1:]
    assert len(outlines) == 7
    for outline in outlines:
        assert np.linalg.norm(outline, axis=1) == pytest.approx(1.75, abs=0.02)
