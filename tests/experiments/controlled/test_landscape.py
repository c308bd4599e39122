"""Where the loss has its minimum among nudged truths: at the truth where kernel and law fit, elsewhere where not."""

import math
from dataclasses import replace

import pytest

from aleator.experiments.controlled.landscape import Landscape, run_landscape
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
