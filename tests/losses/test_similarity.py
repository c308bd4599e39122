"""Losses on similarities: closed forms, limits, and groups of batch negatives."""

import math

import pytest
import torch

from aleator import (
    ELK,
    AcceptanceKernel,
    ExactInfoNCE,
    InfoNCE,
    MCInfoNCE,
    VMFKernel,
    VonMisesFisher,
    log_positivity,
)
from aleator.losses import SimilarityLoss
from aleator.matching import log_match_odds
from aleator.special import log_sphere_area
from tests.losses.cases import posteriors, triple


def test_one_negative_equal_to_the_positive_is_a_coin():
    """Identical posteriors, one negative: the positive is named with probability 1/2."""
    q = posteriors(5)
    same = q[:, None]
    for loss in (InfoNCE(20.0), ExactInfoNCE(VMFKernel(20.0)), ELK(20.0)):
        torch.testing.assert_close(loss(q, q, same), torch.tensor(math.log(2.0), dtype=torch.float64))


def test_uniform_posteriors_tell_nothing():
    """kappa = 0: r = 1 for every pair, so the loss is log(M + 1) whatever mu says."""
    q = posteriors(7)
    flat = VonMisesFisher(q.mu, torch.zeros_like(q.kappa))
    value = ExactInfoNCE(VMFKernel(20.0))(flat, flat)
    torch.testing.assert_close(value, torch.tensor(math.log(7.0), dtype=torch.float64))


@pytest.mark.parametrize("negatives", [None, 4])
def test_point_masses_reduce_to_infonce(negatives):
    """As kappa -> inf MCInfoNCE and ExactInfoNCE are InfoNCE; the paper's 1/M shifts the former by log M."""
    q = [None if p is None else VonMisesFisher(p.mu, torch.full_like(p.kappa, math.inf)) for p in triple(negatives)]
    count = 5 if negatives is None else negatives
    expected = InfoNCE(20.0)(*q)
    torch.testing.assert_close(ExactInfoNCE(VMFKernel(20.0))(*q), expected)
    torch.testing.assert_close(MCInfoNCE(VMFKernel(20.0), 3)(*q) + math.log(count), expected)
    near = [None if p is None else VonMisesFisher(p.mu, torch.full_like(p.kappa, 1e7)) for p in q]
    torch.testing.assert_close(ExactInfoNCE(VMFKernel(20.0))(*near), expected, rtol=1e-4, atol=1e-4)


def test_elk_is_the_expected_likelihood():
    """The twin's closed form against the integral itself, by quadrature on the circle."""
    q1, q2 = posteriors(dim=2), posteriors(dim=2)
    angle = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    z = torch.stack([torch.cos(angle), torch.sin(angle)], -1)
    integral = (q1.log_prob(z) + q2.log_prob(z)).exp().mean() * 2 * math.pi
    value = log_positivity(q1, q2, VMFKernel(math.inf)) - log_sphere_area(2)
    torch.testing.assert_close(value.exp(), integral)


def test_a_point_is_not_its_own_negative():
    """A point's overlap with itself is infinite; it is not counted, so the loss is that of its other negatives."""
    q = posteriors(6)
    anchor = VonMisesFisher(q.mu, torch.where(torch.arange(6) % 3 == 0, torch.inf, q.kappa.detach()))
    positive = posteriors(6)
    value = ELK(1.0).per_anchor(anchor, positive, None)
    for i in range(6):
        compared = (positive[i], *(anchor[j] for j in range(6) if j != i))
        s = torch.stack([log_positivity(anchor[i], y, VMFKernel(math.inf)) for y in compared])
        torch.testing.assert_close(value[i], torch.logsumexp(s, 0) - s[0] - math.log(5))  # ELK divides by their number


def test_groups_of_a_batch_are_batches_of_their_own():
    anchor, positive = posteriors(12), posteriors(12)
    kernel = AcceptanceKernel(20.0)
    whole = ExactInfoNCE(kernel, group=4)(anchor, positive)
    parts = [ExactInfoNCE(kernel)(anchor[i : i + 4], positive[i : i + 4]) for i in (0, 4, 8)]
    torch.testing.assert_close(whole, sum(parts) / 3)
    torch.testing.assert_close(
        torch.autograd.grad(whole, (anchor.mu, anchor.kappa), retain_graph=True),
        torch.autograd.grad(sum(parts) / 3, (anchor.mu, anchor.kappa), retain_graph=True),
    )
    torch.testing.assert_close(ExactInfoNCE(kernel, group=12)(anchor, positive), ExactInfoNCE(kernel)(anchor, positive))


def test_groups_stay_within_their_process(monkeypatch):
    anchor, positive = posteriors(12), posteriors(12)
    loss = ExactInfoNCE(AcceptanceKernel(20.0), group=4)
    alone = loss(anchor, positive)
    monkeypatch.setattr("aleator.losses.base.process_count", lambda: 2)
    monkeypatch.setattr("aleator.losses.base.process_rank", lambda: 1)
    torch.testing.assert_close(loss(anchor, positive), alone)


def test_a_group_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="group = 5: does not divide the batch of 12"):
        ExactInfoNCE(group=5)(posteriors(12), posteriors(12))
    for group in (1, 2.5, 4.0):
        with pytest.raises(ValueError, match=rf"group = {group}: .*pass for example 128"):
            ExactInfoNCE(group=group)


@pytest.mark.parametrize("loss", [InfoNCE, ELK])
@pytest.mark.parametrize("kappa_pos", [0.0, math.inf, math.nan])
def test_a_scale_of_similarities_that_is_not_positive_and_finite_is_refused(loss, kappa_pos):
    with pytest.raises(ValueError, match=rf"kappa_pos = {kappa_pos}: .*pass for example 20"):
        loss(kappa_pos)


@pytest.mark.parametrize("rule", ["rejected-pair", "rejected-latent"])
def test_rejected_negatives_are_compared_by_the_odds(rule):
    anchor, positive, negative = triple(4)
    kernel = AcceptanceKernel(20.0)
    to_positive, to_negatives = (log_match_odds(anchor[:, None], q, kernel) for q in (positive[:, None], negative))
    expected = -torch.log_softmax(torch.cat([to_positive, to_negatives], 1), 1)[:, 0].mean()
    torch.testing.assert_close(ExactInfoNCE(kernel, rule=rule)(anchor, positive, negative), expected)
    with pytest.raises(ValueError, match="not rejected ones"):
        ExactInfoNCE(kernel, rule=rule)(anchor, positive)
    with pytest.raises(ValueError, match="'marginal', 'rejected-pair', 'rejected-latent'"):
        ExactInfoNCE(kernel, rule="contrast")


@pytest.mark.parametrize("rows", [None, 1, 2, 6])
def test_a_similarity_of_ones_own(rows):
    """With the similarity of InfoNCE a derived class is InfoNCE, for every kind of negatives."""

    class Cosine(SimilarityLoss):
        def similarity(self, q1, q2):
            return 7.0 * (q1.mu * q2.mu).sum(-1)

    anchor, positive = posteriors(6), posteriors(6)
    negative = None if rows is None else posteriors(rows, 3)
    expected = InfoNCE(7.0)(anchor, positive, negative)
    torch.testing.assert_close(Cosine()(anchor, positive, negative), expected)
