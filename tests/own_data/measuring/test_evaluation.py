"""Evaluation against what is known: pairs follow their law, calibration finds the right kernel and prior."""

import numpy as np
import pytest
import torch

from aleator.matching.kernels import VMFKernel
from aleator.own_data.collection.labels import Labels
from aleator.own_data.measuring.evaluation import calibrate_on_labels, evaluate, figures, matching_pairs
from aleator.own_data.measuring.questions import Questions
from aleator.posteriors.vmf import VonMisesFisher


def hard(values) -> Labels:
    values = np.asarray(values)
    return Labels("classes", values, tuple(str(c) for c in range(values.max() + 1)))


def random_posteriors(n: int, dim: int = 5, kappa: float = 30.0) -> VonMisesFisher:
    mu = torch.nn.functional.normalize(torch.randn(n, dim), dim=-1)
    return VonMisesFisher(mu, torch.full((n,), kappa) + torch.rand(n))


def test_half_of_the_pairs_are_drawn_to_match():
    labels = hard(np.repeat([0, 1, 2], [50, 30, 20]))
    pairs = matching_pairs(labels, 20_000, seed=0)
    same = torch.as_tensor(labels.values[pairs.first] == labels.values[pairs.second])
    drawn = pairs.match.bool()
    assert pairs.match.mean() == 0.5
    assert (pairs.first != pairs.second).all()
    assert same[drawn].all()
    by_chance = (50 * 49 + 30 * 29 + 20 * 19) / (100 * 99)
    assert same[~drawn].double().mean() == pytest.approx(by_chance, abs=4 * 0.5 / 100)
    # A pair drawn to match has a uniform anchor, so a class comes up as often as it has items.
    share = np.bincount(labels.values[pairs.first[drawn]]) / 10_000
    np.testing.assert_allclose(share, [0.5, 0.3, 0.2], atol=4 * 0.5 / 100)


def test_soft_pairs_follow_the_probabilities():
    """Half of the items are class 0 for sure, half are either class: each kind of pair has its rate."""
    soft = np.array([[1.0, 0.0]] * 400 + [[0.5, 0.5]] * 400, np.float32)
    pairs = matching_pairs(Labels("soft", soft, ("a", "b")), 40_000, seed=1)
    unsure = (pairs.first >= 400).int() + (pairs.second >= 400).int()
    matching = unsure[pairs.match.bool()].bincount(minlength=3) / 2e4
    # Class 0 weighs 400 + 200. A sure anchor meets a sure item in 2/3, an unsure one in 1/3; an unsure anchor is
    # class 0 half of the time, and class 1, all of whose weight is unsure, otherwise.
    expected = torch.tensor([1 / 2 * 2 / 3, 1 / 2 * 1 / 3 + 1 / 4 * 2 / 3, 1 / 4 * 1 / 3 + 1 / 4])
    torch.testing.assert_close(matching, expected, atol=4 * 0.5 / 2e4**0.5, rtol=0)


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


def test_a_search_by_match_prefers_a_sure_item_to_a_nearer_unsure_one():
    angle = torch.tensor([0.0, 0.05, 0.15, 3.0, 3.05, 3.15])
    kappa = torch.tensor([90.0, 2.0, 90.0, 90.0, 90.0, 90.0])
    q = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), kappa)
    found = evaluate(q, hard([0, 1, 0, 1, 1, 1]), VMFKernel(16.0))
    assert found["recall_at_1"] == pytest.approx(3 / 6)  # the second item misleads both of its neighbours
    assert found["first_match"] == pytest.approx(5 / 6)


def test_a_search_by_match_that_finds_less_than_one_by_cosine_is_advised_against():
    """One sure item in the middle of each class's opposite is the likeliest match of all."""
    angle = torch.tensor([0.0, 0.3]).repeat_interleave(50) + 0.001 * torch.arange(100)
    angle, kappa = torch.cat([angle, torch.tensor([0.2])]), torch.full((101,), 4.0)
    kappa[-1] = 5000.0
    q = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), kappa)
    labels = hard([0] * 50 + [1] * 50 + [2])
    metrics = evaluate(q, labels, VMFKernel(400.0))
    assert metrics["first_match"] < 0.1 < 0.9 < metrics["recall_at_1"]
    assert metrics["notes"] == [
        f"the likeliest match is right for {metrics['first_match']:.3f} of the queries, the nearest item for "
        f"{metrics['recall_at_1']:.3f}: search by nearest"
    ]
    assert evaluate(q[:100], hard([0] * 50 + [1] * 50), VMFKernel(400.0))["notes"] == []


def test_recall_is_that_of_the_gallery_that_is_searched():
    """Among themselves the queries are all right; against the gallery, one of two is."""
    q = VonMisesFisher(torch.eye(3)[[0, 0, 1, 1]], torch.ones(4))
    gallery = VonMisesFisher(torch.eye(3)[[0, 1, 2]], torch.ones(3))
    queries = Questions(q, hard([0, 0, 1, 1]), gallery, hard([0, 0, 1]), np.full(4, -1))
    metrics = evaluate(q, hard([0, 0, 1, 1]), VMFKernel(20.0), questions=queries)
    assert (metrics["recall_at_1"], metrics["gallery"]) == (0.5, 3)
    assert evaluate(q, hard([0, 0, 1, 1]), VMFKernel(20.0))["recall_at_1"] == 1.0


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


def test_calibration_undoes_what_was_done_to_right_posteriors():
    """Latents on the sphere, matches drawn by the kernel, exact posteriors whose kappas are then all multiplied."""
    kernel = VMFKernel(20.0)

    def items() -> tuple[VonMisesFisher, Labels]:
        z = VonMisesFisher.uniform(4, (1500,)).sample()
        partner = VonMisesFisher(z, torch.tensor(20.0)).sample()  # what the kernel draws
        kappa = torch.empty(3000).uniform_(5, 60)
        seen = VonMisesFisher(torch.cat([z, partner]), kappa).sample()
        return VonMisesFisher(seen, kappa), hard(np.tile(np.arange(1500), 2))

    torch.manual_seed(3)
    q, labels = items()
    right = calibrate_on_labels(q, labels, kernel)
    assert right.kappa_scale == pytest.approx(1.0, abs=0.15)
    assert right.prior == pytest.approx(0.5, abs=0.05)
    boastful = calibrate_on_labels(VonMisesFisher(q.mu, 3 * q.kappa), labels, kernel)
    assert boastful.kappa_scale == pytest.approx(1 / 3, rel=0.15)
    fresh, labels = items()
    assert right.kappa_pos == pytest.approx(20.0, rel=0.3)
    assert evaluate(fresh, labels, VMFKernel(right.kappa_pos), right.prior)["match_ece"] < 0.02
    assert evaluate(VonMisesFisher(fresh.mu, 3 * fresh.kappa), labels, kernel)["match_ece"] > 0.04


def test_figures_are_drawn():
    metrics = evaluate(random_posteriors(200), hard(np.arange(200) % 4), VMFKernel(20.0))
    for name, figure in figures(metrics).items():
        figure.canvas.draw()
        assert figure.axes[0].get_xlabel(), name


@pytest.mark.parametrize("extreme", [0.0, float("inf")])
def test_extreme_kappas_are_in_the_first_and_last_bin(extreme):
    """A posterior may be uniform, or a point."""
    kappa = torch.arange(1.0, 41.0)
    kappa[7] = extreme
    q = VonMisesFisher(torch.eye(4)[torch.arange(40) % 4], kappa)
    labels = hard(np.arange(40) % 4)
    found = evaluate(q, labels, VMFKernel(), 0.25)["kappa_histogram"]
    assert sum(found["count"]) == 40
    assert np.isfinite(found["edges"]).all()
    all_extreme = VonMisesFisher(q.mu, torch.full((40,), extreme))
    assert sum(evaluate(all_extreme, labels, VMFKernel(), 0.25)["kappa_histogram"]["count"]) == 40
