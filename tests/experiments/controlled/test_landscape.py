"""Where the loss has its minimum among nudged truths: at the truth where kernel and law fit, elsewhere where not."""

import math
from dataclasses import replace

import pytest
import torch

from aleator.experiments.controlled.landscape import Landscape, draw_landscape, run_landscape
from aleator.experiments.controlled.presets import base


def measured(count=12, **changes) -> dict[str, float]:
    setting = replace(
        base("quick"), dim=3, kappa_range=(8.0, 16.0), batch_size=128, group=None, smoothing_steps=200, **changes
    )
    return run_landscape(Landscape("small", setting, count), 4).metrics


# Batches: with twice as many the errors are smaller by the square root of two.
sizes = pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.slow)])


@sizes
def test_the_truth_minimises_the_loss(count):
    found = measured(count)
    assert abs(math.log(found["kappa_factor"])) < 4 * found["kappa_factor_error"]
    assert abs(found["pull"]) < 4 * found["pull_error"]
    assert found["kappa_factor_error"] < 0.1
    assert 0 < found["flat"] < found["steep"]


@sizes
def test_a_kernel_that_did_not_accept_the_pairs_asks_for_other_posteriors(count):
    found = measured(count, kernel="vmf")
    assert math.log(found["kappa_factor"]) < -2 * math.sqrt(count) * found["kappa_factor_error"]


@pytest.mark.slow
def test_fewer_negatives_say_less():
    one, eight = (measured(negatives=count)["anchors_for_one_percent"] for count in (1, 8))
    assert eight < 0.8 * one


@sizes
def test_the_number_of_negatives_does_not_move_the_minimum(count):
    found = measured(count, negatives=1)
    assert abs(math.log(found["kappa_factor"])) < 4 * found["kappa_factor_error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "assumed", "kernel", "sign"),
    [
        ("rejected-pair", None, "acceptance", 0),
        ("rejected-pair", "marginal", "acceptance", 1),
        ("marginal", "rejected-pair", "acceptance", -1),
        # No score is exactly right for one drawn latent of the anchor. The odds and the vMF kernel are close.
        ("rejected-latent", None, "acceptance", 0),
        ("rejected-latent", "marginal", "acceptance", 1),
        ("rejected-latent", "marginal", "vmf", 0),
    ],
)
def test_the_minimum_is_at_the_truth_if_the_loss_assumes_the_law_of_the_negatives(rule, assumed, kernel, sign):
    positives = "partner" if rule == "rejected-latent" else "ratio"
    found = measured(negatives=16, rule=rule, loss_rule=assumed, kernel=kernel, positives=positives)
    errors = math.log(found["kappa_factor"]) / found["kappa_factor_error"]
    assert abs(errors) < 4 if sign == 0 else sign * errors > 4


def test_the_figure_shows_the_mean_minimum_of_each_row_but_those_of_clear():
    def row(setting, loss, kappa_factor, pull):
        metrics = {"kappa_factor": {"mean": kappa_factor}, "pull": {"mean": pull}}
        return {"setting": setting, "loss": loss, "metrics": metrics}

    rows = [
        row("matched", "exact", 1.0, 0.01),
        row("matched, clear", "exact", 1.1, 0.1),
        row("averaged", "mcinfonce", 2.0, 1.0),
    ]
    axis = torch.linspace(-0.5, 0.5, 161).square()
    arrays = [{"excess": axis[:, None] + axis}, {}, {}]
    figures = draw_landscape(rows, arrays)
    points = {name: [line.get_xydata()[0].tolist() for line in each.axes[0].lines] for name, each in figures.items()}
    assert points == {"loss": [[0.01, 0.0]], "mcinfonce": [[1.0, pytest.approx(math.log(2))]]}
    assert set(draw_landscape(rows[:2], arrays[:2])) == {"loss"}
