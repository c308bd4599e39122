"""Figures of the CIFAR-10H experiments are drawn from runs."""

from dataclasses import replace

from aleator.experiments.cifar import figures as cifar_figures
from aleator.experiments.cifar import run as cifar
from aleator.experiments.cifar import tables as cifar_tables
from tests.experiments.cifar.small import TINY


def test_figures_are_drawn(stand_in):
    settings = [TINY, replace(TINY, loss="softmax-entropy", name="classifier")]
    found = [cifar.run_fold(setting, 0).arrays for setting in settings]
    rows = [{"setting": s.name, "loss": s.loss, "metrics": {}} for s in settings]
    names = {}
    for name, draw in cifar_figures.FIGURES.items():
        if name == "cifar-tuning":
            continue
        count = 2 if name == "cifar-losses" else 1
        names[name] = set(draw(rows[:count], found[:count]))
    assert "training" in names["cifar-losses"]
    assert names["cifar-gallery"] == {"gallery-soft-exact"}
    grid = [
        {"setting": f"a {a}, b {b}", "parameters": {"a": a, "b": b}, "metrics": {"validation_crop_rank": {"mean": a}}}
        for a in (1.0, 2.0)
        for b in (0.0, 1.0)
    ]
    assert set(cifar_figures.tuning(grid, [])) == {"hib"}
    assert set(cifar_figures.FIGURES) == set(cifar_tables.CIFAR)


def test_losses_with_a_setting_of_one_name_have_a_curve_each(stand_in):
    run = cifar.run_fold(TINY, 0).arrays
    rows = [{"setting": "soft", "loss": loss} for loss in ("exact", "hib")]
    (axis,) = cifar_figures.losses(rows, [run, run])["set-sizes"].axes
    assert axis.get_legend_handles_labels()[1] == ["soft (exact)", "soft (hib)"]
