"""The published settings and their corrections can be run, and do what their names say."""

from dataclasses import replace

import pytest

from aleator.experiments.controlled.published import CORRECTIONS, published, walk
from aleator.experiments.controlled.run import run_seed

SMALL = {"batch_size": 8, "group": 4, "negatives": 3, "samples": 4, "smoothing_steps": 40, "points": 60}


def small(**changes):
    start = published(steps=4)
    return replace(start, widths=(8, 8), kappa_widths=(5, 5), **{**SMALL, **changes})


def steps():
    """All steps of the walks of MCInfoNCE, also with a shared backbone, and of ELK."""
    joint = {**small().recipe, "phases": "joint"}
    starts = {
        "mcinfonce": small(),
        "shared": small(kappa_of="mu", encoder_kappa_of="mu", range_of="input"),
        "elk": small(loss="elk", negatives=1, group=None, mu_phase_negatives=None, fitted_constants=True, recipe=joint),
    }
    return {f"{kind}, {name}": setting for kind, start in starts.items() for name, setting in walk(start)}


def test_the_walks_make_every_correction():
    assert {name.split(", ", 1)[1] for name in steps()} == {"published", *CORRECTIONS}


@pytest.mark.parametrize("name", steps())
def test_every_step_of_the_walk_runs(name):
    setting = steps()[name]
    metrics = run_seed(setting, 4).metrics
    assert -1 <= metrics["mu_rank"] <= 1
    assert metrics["kappa_median"] > 0


def test_kappa_starts_alike_in_the_middle_of_its_range():
    (_, last) = list(walk(small(kappa_range=(64.0, 128.0))))[-1]
    assert last.kappa_start[0] < 90.5 < last.kappa_start[1] < 1.05 * last.kappa_start[0]
