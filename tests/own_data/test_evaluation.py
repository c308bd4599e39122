"""Evaluation against what is known: pairs follow their law, calibration finds the right kernel and prior."""

import numpy as np
import pytest
import torch

from aleator.harmonics import VMFKernel
from aleator.own_data.collection import Labels
from aleator.own_data.evaluation import calibrate, evaluate, figures, matching_pairs, reliability
from aleator.vmf import VonMisesFisher


def hard(values) -> Labels:
    values = np.asarray(values)
    return Labels("classes", values, tuple(str(c) for c in range(values.max() + 1)))


def random_posteriors(n: int, dim: int = 5, kappa: float = 30.0) -> VonMisesFisher:
    mu = torch.nn.functional.normalize(torch.randn(n, dim), dim=-1)
    return VonMisesFisher(mu, torch.full((n,), kappa) + torch.rand(n))


def test_half_of_the_pairs_match():
    labels = hard(np.repeat([0, 1, 2], [50, 30, 20]))
    pairs = matching_pairs(labels, 20_000, seed=0)
    same = labels.values[pairs.first] == labels.values[pairs.second]
    assert np.array_equal(same, pairs.match.bool().numpy())
    assert pairs.match.mean() == 0.5
    assert (pairs.first != pairs.second).all()
    # Matching pairs have a uniform anchor, so a class comes up as often as it has items.
    share = np.bincount(labels.values[pairs.first[:10_000]]) / 10_000
    np.testing.assert_allclose(share, [0.5, 0.3, 0.2], atol=4 * 0.5 / 100)


def test_soft_pairs_follow_the_probabilities():
    """Items of one kind are class 0 for sure, of the other half and half: each pair has a known rate of matching."""
    soft = np.array([[1.0, 0.0]] * 40 + [[0.5, 0.5]] * 40, np.float32)
    pairs = matching_pairs(Labels("soft", soft, ("a", "b")), 40_000, seed=1)
    unsure = (pairs.first >= 40).int() + (pairs.second >= 40).int()
    matching, others = unsure[:20_000].bincount(minlength=3) / 2e4, unsure[20_000:].bincount(minlength=3) / 2e4
    # Class 0 weighs 40 + 20. An anchor of the sure kind meets the sure kind in 40/60, the other in 20/60; an unsure
    # anchor is class 0 half of the time and class 1, all of whose weight is unsure, otherwise. Pairs with oneself are
    # drawn again, which changes these by about one in forty.
    expected = torch.tensor([1 / 2 * 2 / 3, 1 / 2 * 1 / 3 * 2, 1 / 2 * (1 / 2 * 1 / 3 + 1 / 2)])
    torch.testing.assert_close(matching, expected.float(), atol=0.02, rtol=0)
    # Random pairs differ with probability 0, 1/2 and 1/2.
    torch.testing.assert_close(others, torch.tensor([0.0, 2 / 3, 1 / 3]), atol=0.02, rtol=0)


def test_perfect_and_useless_embeddings():
    labels = hard(np.arange(60) % 3)
    q = VonMisesFisher(torch.eye(3)[labels.values], torch.arange(1.0, 61.0))
    perfect = evaluate(q, labels, VMFKernel(20.0))
    assert perfect["recall_at_1"] == 1.0
    assert perfect["r_auroc"] is None  # no miss to tell from
    assert set(perfect["reject_curve"]["recall_at_1"]) == {1.0}
    assert perfect["mean_kappa"] == pytest.approx(30.5)
    useless = evaluate(random_posteriors(600), hard(np.arange(600) % 3), VMFKernel(20.0))
    assert useless["recall_at_1"] == pytest.approx(1 / 3, abs=0.08)
    assert useless["r_auroc"] == pytest.approx(0.5, abs=0.1)


def test_certainty_that_tells_hits_from_misses():
    """Sixteen items of each class at its pole, surer than four that lie at the next pole."""
    labels = hard(np.repeat(np.arange(3), 20))
    right = np.arange(60) % 20 < 16
    pole = np.where(right, labels.values, (labels.values + 1) % 3)
    mu = torch.nn.functional.normalize(torch.eye(3)[pole] + 0.01 * torch.randn(60, 3), dim=-1)
    metrics = evaluate(VonMisesFisher(mu, torch.where(torch.as_tensor(right), 50.0, 5.0)), labels, VMFKernel(20.0))
    assert metrics["recall_at_1_surer_half"] > metrics["recall_at_1"]
    assert metrics["r_auroc"] > 0.6


def test_items_without_a_partner_are_left_out():
    labels = hard([0, 0, 1, 1, 2])
    q = VonMisesFisher(torch.eye(3)[labels.values], torch.ones(5))
    assert evaluate(q, labels, VMFKernel(20.0))["recall_at_1"] == 1.0
    with pytest.raises(ValueError, match="no two items share a label"):
        evaluate(q[:2], hard([0, 1]), VMFKernel(20.0))


def test_pairs_are_evaluated_as_the_groups_they_link():
    q = VonMisesFisher(torch.eye(2)[[0, 0, 0, 1, 1]], torch.ones(5))
    links = Labels("pairs", np.array([[0, 1], [1, 2], [3, 4]]))
    assert evaluate(q, links, VMFKernel(20.0))["recall_at_1"] == 1.0


def test_calibration_recovers_kernel_and_prior():
    """Items around class poles, seen through exact posteriors: the fitted probabilities are right on new items."""
    torch.manual_seed(3)
    poles = torch.nn.functional.normalize(torch.randn(40, 4), dim=-1)
    classes = torch.arange(4000) % 40

    def items() -> VonMisesFisher:
        latent = VonMisesFisher(poles[classes], torch.tensor(40.0)).sample()
        kappa = torch.empty(4000).uniform_(3, 60)
        return VonMisesFisher(VonMisesFisher(latent, kappa).sample(), kappa)

    labels = hard(classes.numpy())
    kappa_pos, prior = calibrate(items(), labels, VMFKernel(100.0), seed=0)
    fresh = items()
    fitted = evaluate(fresh, labels, VMFKernel(kappa_pos), prior)
    assert fitted["match_ece"] < 0.04
    assert evaluate(fresh, labels, VMFKernel(100.0), 0.9)["match_ece"] > 2 * fitted["match_ece"]


def test_reliability_bins():
    found = reliability(torch.tensor([0.05, 0.07, 0.95, 1.0]), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    assert found["predicted"] == pytest.approx([0.06, 0.975])
    assert found["observed"] == [0.5, 1.0]
    assert found["count"] == [2.0, 2.0]


def test_figures_are_drawn():
    metrics = evaluate(random_posteriors(200), hard(np.arange(200) % 4), VMFKernel(20.0))
    for name, figure in figures(metrics).items():
        figure.canvas.draw()
        assert figure.axes[0].get_xlabel(), name
