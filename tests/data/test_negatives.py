"""Shared negatives: the law of each anchor's negatives, and the loss, are those of negatives written out."""

import pytest
import torch

import aleator as al
from aleator.data.batches import LabelledBatches
from aleator.data.negatives import SharedNegatives
from aleator.encoders.backbones import MLP
from aleator.training.objective import Objective
from tests.data.cases import SEEDED, SOFT, assert_follows, contrast_law, counts


@pytest.mark.parametrize("rule", ["marginal", "rejected-latent"])
def test_shared_negatives_have_the_same_law(rule):
    """Each anchor's negatives follow its rule, and anchors of one class have the same ones."""
    n, M = len(SOFT), 3
    batches = LabelledBatches(torch.arange(n), SOFT, 40, M, rule=rule, share_negatives=True)
    law = contrast_law(SOFT) if rule == "rejected-latent" else torch.full((n, n), 1 / n**2, dtype=torch.float64)
    generator = SEEDED(12)
    first = torch.zeros(n, n, dtype=torch.int64)
    for _ in range(3000):  # one anchor of a batch, since the others share its negatives
        anchor, _, negative = batches.draw(generator)
        first += counts(anchor[:1], negative.pool[negative.chosen[0, :1] - 40], n)
    assert_follows(first, law)
    assert negative.chosen.shape == (40, M)
    assert len(negative.pool) == M * (SOFT.shape[1] if rule == "rejected-latent" else 1)


def test_shared_negatives_cost_nothing_but_time():
    """The loss is that of the same negatives written out."""
    encoder = al.Encoder(MLP(4, (8,)), 3, kappa="head")
    objective = Objective(encoder, al.ExactInfoNCE(), "joint", "given")
    x, positive, pool = torch.randn(5, 4), torch.randn(5, 4), torch.randn(6, 4)
    index = torch.randint(11, (5, 3))  # of positives, then pool
    gradients = []
    for negative in (SharedNegatives(pool, index), torch.cat([positive, pool])[index]):
        encoder.zero_grad()
        loss = objective((x, positive, negative))
        loss.backward()
        gradients.append([loss, *(parameter.grad for parameter in encoder.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    rolled = Objective(encoder, al.InfoNCE(), "mu", "rolled")  # the mu phase leaves given negatives out
    assert rolled((x, positive, SharedNegatives(pool, index))) == rolled((x, positive))
