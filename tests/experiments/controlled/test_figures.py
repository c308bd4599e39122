"""Figures of the controlled experiments are drawn from rows and arrays."""

import math
from dataclasses import asdict, replace

import pytest

from aleator.experiments.controlled.figures import FIGURES
from aleator.experiments.controlled.run import run_seed
from aleator.experiments.controlled.tables import CONTROLLED
from tests.experiments.controlled.small import tiny


@pytest.fixture(scope="module")
def outcome():
    return run_seed(tiny(), 4)


def rows(outcome, *settings):
    """Rows of a result, all with the metrics of one run."""
    metrics = {name: {"mean": value, "stderr": 0.01, "values": [value]} for name, value in outcome.metrics.items()}
    return [
        {"setting": s.name, "loss": s.loss, "seeds": [4], "metrics": metrics, "parameters": asdict(s)} for s in settings
    ]


SETTINGS = {
    "circle": [tiny(dim=2)],
    "modes": [tiny(modes=2)],
    "samples": [tiny(loss="mcinfonce", samples=1), tiny(loss="mcinfonce", samples=4), tiny(loss="exact")],
    "losses": [tiny(loss="exact"), tiny(loss="elk")],
    "encoder-dim": [tiny(encoder_dim=4), tiny(encoder_dim=8)],
    "published": [
        tiny(name=name) for name in ("published", "changed", "published, clear", "changed, clear", "published, ELK")
    ],
    "tuning": [tiny(name=f"a {a}, b {b}", a=a, b=b) for a in (1.0, 2.0) for b in (0.0, 1.0)],
    "optimisers": [
        tiny(name=f"{name}, {steps}", recipe={"optimiser": name, "steps": steps})
        for name in ("adam", "soap")
        for steps in (1000, 2000)
    ],
}
NAMES = {
    "recovery": {"kappa-ambiguous", "coverage"},
    "circle": {"posteriors", "kappa"},
    "samples": {"bias", "kappa"},
    "families": {"spread-ambiguous"},
    "losses": {"kappa-exact", "kappa-elk"},
    "encoder-dim": {"ranks"},
    "high-dim": {"ranks"},
    "shared-backbone": {"kappa-ambiguous"},
    "tuning": {"hib"},
    "infonce": {"cosine-exact"},
    "optimisers": {"kappa-rmse", "mu-rmse"},
    "phases": {"kappa-ambiguous"},
    "published": {"walk", "walk-elk"},
    "laws": {"kappa-ambiguous"},
    "modes": {"entropy-ambiguous"},
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn(name, outcome):
    settings = SETTINGS.get(name, [tiny()])
    run = run_seed(replace(settings[0]), 4) if name in ("circle", "modes") else outcome
    figures = FIGURES[name](rows(run, *settings), [run.arrays] * len(settings))
    assert set(figures) == NAMES[name]
    for figure in figures.values():
        figure.canvas.draw()


def test_the_paper_stands_beside_the_errors_of_few_samples(outcome):
    settings = [tiny(name=f"samples-{n}", loss="mcinfonce", samples=n) for n in (1, 4, 16)]
    figures = FIGURES["samples"](rows(outcome, *settings), [outcome.arrays] * 3)
    ours, paper = figures["bias"].axes[0].containers
    assert len(ours.lines[0].get_xdata()) == 3
    assert math.isnan(paper.lines[0].get_ydata()[0])  # the paper says nothing about one sample
    assert paper.lines[0].get_ydata()[2] == 4.55
    labels = [text.get_text() for text in figures["kappa"].axes[0].get_legend().get_texts()]
    assert labels == ["MCInfoNCE, median", "smallest true kappa", "largest true kappa"]


def test_rows_that_change_something_have_curves_of_their_own(outcome):
    settings = [tiny(name="dim-3", dim=3), tiny(name="dim-4", dim=4), tiny(name="dim-4, right constant", dim=4)]
    table = rows(outcome, *settings)
    for number, row in enumerate(table):
        row["metrics"] = {name: {"mean": number + 0.5, "stderr": None} for name in ("kappa_rank", "mu_rank")}
    axis = FIGURES["high-dim"](table, [outcome.arrays] * 3)["ranks"].axes[0]
    curves = {each.get_label(): [float(y) for y in each.lines[0].get_ydata()] for each in axis.containers}
    assert curves["kappa"] == [0.5, 1.5]
    assert math.isnan(curves["kappa, right constant"][0])
    assert curves["kappa, right constant"][1] == curves["mu, right constant"][1] == 2.5


def test_a_walk_has_both_settings_in_every_panel(outcome):
    table = rows(outcome, *SETTINGS["published"])
    for number, row in enumerate(table):
        row["metrics"] = {
            name: {"mean": number + 1.0, "stderr": None, "values": [number + 1.0]} for name in row["metrics"]
        }
    figures = FIGURES["published"](table, [outcome.arrays] * len(table))
    figure = figures["walk"]
    for axis in figure.axes:
        assert [list(container.lines[0].get_xdata()) for container in axis.containers] == [[1.0, 2.0], [3.0, 4.0]]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["published", "changed"]
    assert [label.get_text() for label in figures["walk-elk"].axes[0].get_yticklabels()] == ["published"]


def test_every_table_has_its_figures():
    assert set(FIGURES) == set(CONTROLLED) == set(NAMES)
