"""What the experiment `modes` measures: the truth has no error, and a posterior of one mode needs more room."""

import pytest
import torch
from torch import nn

from aleator.data.generative import GenerativeProcess
from aleator.experiments.controlled.modes import measure_modes
from aleator.experiments.controlled.run import run_seed
from tests.experiments.controlled.small import tiny


class Known(nn.Module):
    """An encoder that knows the truth, turned, with its components in the other order."""

    def __init__(self, process, one=False):
        super().__init__()
        self.process, self.one, self.modes = process, one, 1 if one else process.modes
        self.turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]

    def forward(self, x):
        q = self.process.posterior(x).rotate(self.turn)
        if self.one:
            return q.closest_vmf()
        order = torch.arange(self.modes).flip(0).expand(len(x), -1)
        return q._reordered(order)


@pytest.fixture(scope="module")
def process():
    return GenerativeProcess(3, (40.0, 80.0), seed=2, smoothing_steps=100, modes=2)


def test_the_truth_has_no_error(process):
    metrics = measure_modes(process, Known(process), 400, torch.Generator().manual_seed(0)).metrics
    for name in ("component_angle", "component_kappa_mae", "component_weight_mae", "total_variation", "mu_mae"):
        assert metrics[name] < 0.02, name
    assert metrics["posterior_entropy_rank"] > 0.98
    assert metrics["coverage_95"] == pytest.approx(0.95, abs=0.01)
    assert metrics["area_holding_95"] == pytest.approx(metrics["area_95"], rel=0.1)


def test_one_mode_needs_more_room(process):
    generator = torch.Generator().manual_seed(0)
    one = measure_modes(process, Known(process, one=True), 400, generator).metrics
    two = measure_modes(process, Known(process), 400, generator).metrics
    assert one["area_holding_95"] > 3 * two["area_holding_95"]
    assert one["total_variation"] > 0.3
    assert "component_angle" not in one
    assert one["mu_mae"] < 0.02


@pytest.mark.parametrize("targets", ["drawn", "soft"])
@pytest.mark.parametrize(("modes", "encoder_modes"), [(2, None), (3, None), (2, 1), (1, 2)])
def test_every_kind_of_row_runs(modes, encoder_modes, targets):
    outcome = run_seed(tiny(modes=modes, encoder_modes=encoder_modes, targets=targets), 4)
    assert all(isinstance(value, float) for value in outcome.metrics.values())
    assert ("component_angle" in outcome.metrics) == (encoder_modes is None)
    assert {"coverage_95", "area_95", "total_variation", "kappa_mae"} <= set(outcome.metrics)
    assert outcome.arrays["true_entropy"].shape == (60,)
