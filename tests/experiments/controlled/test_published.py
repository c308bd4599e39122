"""The published settings and their corrections can be run, and do what their names say."""

from dataclasses import replace

import pytest
import torch

from aleator.experiments.controlled.published import CORRECTIONS, PUBLISHED_OFFSETS, published, walk
from aleator.experiments.controlled.run import ShiftedRule, make_process, run_seed
from aleator.matching import AcceptanceKernel

SMALL = {"batch_size": 8, "group": 4, "negatives": 3, "samples": 4, "smoothing_steps": 40, "points": 60}


def small(**changes):
    start = published(steps=4)
    return replace(start, widths=(8, 8), kappa_widths=(5, 5), **{**SMALL, **changes})


@pytest.mark.parametrize("place", range(len(CORRECTIONS) + 1))
def test_every_step_of_the_walk_runs(place):
    name, setting = list(walk(small()))[place]
    assert name == ["published", *CORRECTIONS][place]
    metrics = run_seed(setting, 4).metrics
    assert -1 <= metrics["mu_rank"] <= 1
    assert metrics["kappa_median"] > 0


def test_the_published_rule_accepts_more_pairs_than_the_right_one():
    process = make_process(small(), 4, "cpu")
    assert isinstance(process.kernel, ShiftedRule)
    right = AcceptanceKernel(20.0)
    for dim, offset in PUBLISHED_OFFSETS.items():
        assert ShiftedRule(20.0, offset).log_mean(dim) > right.log_mean(dim)
    at = torch.tensor(0.1, dtype=torch.float64)
    assert ShiftedRule(20.0, PUBLISHED_OFFSETS[40]).log_values(40, at).exp() > 0.5  # most independent latents


def test_kappa_starts_alike_in_the_middle_of_its_range():
    (_, last) = list(walk(small(kappa_range=(64.0, 128.0))))[-1]
    assert last.kappa_start[0] < 90.5 < last.kappa_start[1] < 1.05 * last.kappa_start[0]
