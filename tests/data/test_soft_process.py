"""Batches of a process with the match weights of all pairs."""

import pytest
import torch
from scipy.stats import chi2_contingency

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


@pytest.mark.parametrize("family", ["vmf", "point"])
def test_weights_of_groups_are_blocks_of_all_weights(family):
    process = GenerativeProcess(3, family=family, smoothing_steps=20)
    x, targets, _ = process.soft_batches(12, group=4)(0, torch.Generator().manual_seed(0))
    again, table, _ = process.soft_batches(12)(0, torch.Generator().manual_seed(0))
    assert torch.equal(x, again)
    for g in range(3):
        own = slice(4 * g, 4 * g + 4)
        ratio = targets[own] / table[own, own]
        torch.testing.assert_close(ratio, torch.ones(4, 4), rtol=1e-4, atol=0.0)


def test_loss_of_groups_is_the_mean_over_groups():
    process = GenerativeProcess(3, smoothing_steps=20)
    x, targets, _ = process.soft_batches(12, group=4, choices=3)(0, torch.Generator().manual_seed(0))
    q = process.posterior(x)
    whole = ExactInfoNCE(process.kernel, group=4).soft(q, targets)
    loss = ExactInfoNCE(process.kernel)
    parts = [loss.soft(q[i : i + 4], targets[i : i + 4]) for i in (0, 4, 8)]
    torch.testing.assert_close(whole, torch.stack(parts).mean())
    with pytest.raises(ValueError, match="group = 5: does not divide the batch of 12"):
        ExactInfoNCE(process.kernel, group=5).soft(q, targets)


def test_choices_are_proposals_whose_latents_match():
    """An input of the group is proposed at random, until its latent and the anchor's match."""
    process = GenerativeProcess(3, kappa_range=(2.0, 30.0), smoothing_steps=50, seed=1)
    generator = torch.Generator().manual_seed(0)
    x = process.inputs(5, generator=generator)
    process.inputs = lambda *shape, generator: x.repeat(shape[0] // 5, 1)
    counts = process.soft_batches(1000, group=5, choices=40)(0, generator).targets.unflatten(0, (-1, 5)).sum(0)
    assert not counts.diagonal().any()
    assert counts.sum(1).tolist() == [200 * 40] * 5
    q, draws = process.posterior(x), 200_000
    for i in range(5):
        proposed = torch.randint(4, (draws,), generator=generator)
        proposed += proposed >= i
        z, other = q[i].sample((draws,), generator), q[proposed].sample((), generator)
        log_g = process.kernel.log_values(3, (z * other).sum(-1))
        accepted = proposed[torch.rand(draws, generator=generator) < log_g.exp()]
        rest = [j for j in range(5) if j != i]
        both = torch.stack([counts[i, rest], torch.bincount(accepted, minlength=5)[rest]])
        assert chi2_contingency(both).pvalue > 1e-3
        uneven = torch.stack([counts[i, rest], counts[i, rest].flip(0)])
        assert chi2_contingency(uneven).pvalue < 1e-3


def test_bad_input():
    with pytest.raises(ValueError, match="group = 5: not a divisor"):
        GenerativeProcess(3, smoothing_steps=5).soft_batches(8, group=5)
    with pytest.raises(ValueError, match=r"group = 2\.5: not a divisor"):
        GenerativeProcess(3, smoothing_steps=5).soft_batches(10, group=2.5)
    with pytest.raises(ValueError, match=r"group = 2\.5: does not divide the batch of 10"):
        GenerativeProcess(3, smoothing_steps=5).batches(10, group=2.5)
    with pytest.raises(ValueError, match="choices = 0"):
        GenerativeProcess(3, smoothing_steps=5).soft_batches(8, choices=0)
    with pytest.raises(ValueError, match="family = 'gaussian'"):
        GenerativeProcess(3, family="gaussian", smoothing_steps=5).soft_batches(8)
    with pytest.raises(ValueError, match="batch_size = 1"):
        GenerativeProcess(3, smoothing_steps=5).soft_batches(1)
