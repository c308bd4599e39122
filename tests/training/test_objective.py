"""From a batch to the loss: the forms of a batch, the negatives of a phase, and batches that are refused."""

import pytest
import torch
from torch import nn

from aleator.training.loop import fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe
from tests.training.training_cases import SmallLoss, build, pairs

X = torch.rand(4, 4)


def test_the_mu_phase_sees_one_rolled_negative():
    encoder, _ = build()
    encoder.eval()
    seen = {}

    def watching(anchor, positive, negative):
        seen.update(anchor=anchor, positive=positive, negative=negative)
        return (anchor.mu * positive.mu).sum(-1).mean()

    loss = SmallLoss()
    loss.forward = watching
    x, near, far = pairs(0, torch.Generator().manual_seed(0))
    Objective(encoder, loss, "mu", "rolled")((x, near, far))
    assert seen["negative"].mu.shape == (8, 1, 3)
    for i in range(8):
        torch.testing.assert_close(seen["negative"].mu[i, 0], encoder(near).mu[i - 1])
    assert not seen["anchor"].kappa.requires_grad
    Objective(encoder, loss, "mu", "given")((x, near, far))
    torch.testing.assert_close(seen["negative"].mu, encoder(far.flatten(0, 1)).mu.view(8, 3, 3))
    Objective(encoder, loss, "joint", "rolled")((x, near, far))
    torch.testing.assert_close(seen["negative"].kappa, encoder(far.flatten(0, 1)).kappa.view(8, 3))
    Objective(encoder, loss, "joint", "rolled")((x, near))
    assert seen["negative"] is None


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches = 'list': is empty"),
        (iter([(X, X)]), "ended before step 1 and cannot start again"),
        (7, "neither callable nor iterable"),
        ([X], "two or three parts"),
        ([{"anchor": X}], "names of its parts"),
        ([(X, X[:2])], "positive = 2: there are 4 anchors"),
        ([(X, X, X[:3, None])], "negative.*there are 4 anchors"),
        ([(X[:0], X[:0])], "empty batch"),
        ([(X, torch.rand(4, 5))], r"positive = \(5,\): one anchor has shape \(4,\)"),
    ],
)
def test_bad_batches(batches, message):
    encoder, loss = build()
    with pytest.raises(ValueError, match=message):
        fit(encoder, loss, batches, Recipe(steps=3), device="cpu")


def test_one_pair_cannot_be_its_own_negative():
    encoder, loss = build()
    with pytest.raises(ValueError, match="rolled negative"):
        fit(encoder, loss, [(X[:1], X[:1])], Recipe(steps=2, phases="mu"), device="cpu")


def test_a_loss_blind_to_kappa_cannot_train_it():
    class Blind(nn.Module):
        def forward(self, anchor, positive, negative=None):
            return -(anchor.mu * positive.mu).sum(-1).mean()

    encoder, _ = build()
    with pytest.raises(ValueError, match="does not depend on anything that the phase 'kappa' trains"):
        fit(encoder, Blind(), pairs, Recipe(steps=2, phases="kappa"), device="cpu")
