"""Batches of a process with the match weights of all pairs."""

import pytest
import torch

from aleator import ExactInfoNCE, GenerativeProcess, Recipe, controlled_encoder, fit, log_positivity


@pytest.mark.parametrize("modes", [1, 2])
def test_weights_are_expected_positivities(modes):
    process = GenerativeProcess(3, smoothing_steps=20, modes=modes)
    batches = process.soft_batches(7)
    x, targets, compared = batches(0, torch.Generator().manual_seed(0))
    assert x.shape == (7, 3)
    assert compared is None
    q = process.posterior(x)
    for i in range(7):
        for j in range(7):
            assert targets[i, j].item() == pytest.approx(
                log_positivity(q[i], q[j], process.kernel).exp().item(), rel=1e-4
            )
    again = batches(5, torch.Generator().manual_seed(0))
    assert torch.equal(again.targets, targets)


def test_the_truth_has_the_lowest_loss():
    process = GenerativeProcess(3, smoothing_steps=20, modes=2)
    x, targets, _ = process.soft_batches(60)(0, torch.Generator().manual_seed(0))
    loss, q = ExactInfoNCE(process.kernel), process.posterior(x)
    best = loss.soft(q, targets)
    for other in (q.closest_vmf(), q.scale_kappa(0.7), q.scale_kappa(1.5), q.roll(1, 0)):
        assert loss.soft(other, targets) > best + 1e-4


def test_fit_takes_them():
    process = GenerativeProcess(3, smoothing_steps=20, modes=2)
    encoder = controlled_encoder(3, widths=(16,), modes=2)
    result = fit(encoder, ExactInfoNCE(process.kernel), process.soft_batches(16), Recipe(steps=3), device="cpu")
    assert result.steps == 3


def test_bad_input():
    with pytest.raises(ValueError, match="family = 'gaussian'"):
        GenerativeProcess(3, family="gaussian", smoothing_steps=5).soft_batches(8)
    with pytest.raises(ValueError, match="batch_size = 1"):
        GenerativeProcess(3, smoothing_steps=5).soft_batches(1)
