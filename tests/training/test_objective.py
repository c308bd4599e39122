"""From a batch to the loss: the forms of a batch, the negatives of a phase, and batches that are refused."""

import pytest
import torch
from torch import nn

import aleator as al
from aleator.data import SoftBatch, SoftLabelBatches
from aleator.encoders import MLP
from aleator.training.loop import fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe
from tests.training.training_cases import SmallLoss, StoppedError, assert_same_run, build, pairs

X = torch.rand(4, 4)


def test_arrays_are_no_tensors():
    encoder, loss = build()
    with pytest.raises(ValueError, match="batch = 'ndarray': an encoder takes tensors"):
        fit(encoder, loss, [(X.numpy(), X.numpy())], Recipe(steps=1), device="cpu")


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


class TestSoftBatches:
    def test_the_loss_gets_posteriors_and_weights_of_all_items(self):
        encoder, _ = build()
        encoder.eval()
        targets, compared = torch.rand(4, 4), torch.rand(4, 4) > 0.5
        loss = al.ExactInfoNCE()
        for part in ("joint", "mu"):
            value = Objective(encoder, loss, part, "rolled")(SoftBatch(X, targets, compared))
            torch.testing.assert_close(value, loss.soft(encoder(X), targets, compared=compared))
            value.backward()
            kappa_gradients = [p.grad for module in encoder.kappa_modules() for p in module.parameters()]
            assert all((grad is None or (grad == 0).all()) == (part == "mu") for grad in kappa_gradients)
            encoder.zero_grad()

    def test_training_lowers_the_loss_and_separates_the_classes(self):
        torch.manual_seed(0)
        labels = torch.arange(200) % 2
        x = torch.randn(200, 4) + 3.0 * labels[:, None]
        encoder = al.Encoder(nn.LazyLinear(8), dim=3)  # made by the first batch
        recipe = Recipe(steps=60, learning_rate=1e-2, log_every=20)
        result = fit(encoder, al.ExactInfoNCE(), SoftLabelBatches(x, labels, 32), recipe, device="cpu")
        assert result.history[-1]["loss"] < result.history[0]["loss"]
        cosine = encoder(x).mu @ encoder(x).mu.T
        same = labels[:, None] == labels
        assert cosine[same].mean() > cosine[~same].mean() + 0.5

    def test_a_stopped_run_resumes_exactly(self, tmp_path):
        batches = SoftLabelBatches(torch.rand(40, 4), torch.arange(40) % 4, 8)

        def stopping(step, generator):
            if step == 7:
                raise StoppedError
            return batches(step, generator)

        recipe = Recipe(steps=12, checkpoint_every=5, log_every=3)

        def run(folder, source):
            encoder, _ = build()
            return fit(encoder, al.ExactInfoNCE(), source, recipe, folder=folder, device="cpu", loggers=("csv",))

        with pytest.raises(StoppedError):
            run(tmp_path / "stopped", stopping)
        resumed = run(tmp_path / "stopped", batches)
        assert resumed.resumed_from == 5
        assert_same_run(resumed, run(tmp_path / "whole", batches))

    def test_a_loss_that_takes_none_says_so(self):
        encoder, loss = build()
        with pytest.raises(ValueError, match="loss = 'SmallLoss': takes no soft targets"):
            fit(encoder, loss, [SoftBatch(X, torch.rand(4, 4))], Recipe(steps=2), device="cpu")


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


class TestSeveralModes:
    @staticmethod
    def encoder(seed=0):
        torch.manual_seed(seed)
        return al.Encoder(MLP(4, (8,)), 3, kappa="head", kappa_hidden=(6,), modes=2)

    def test_the_mu_phase_trains_directions_and_weights(self):
        encoder = self.encoder()
        value = Objective(encoder, al.ExactInfoNCE(), "mu", "rolled")(pairs(0, torch.Generator().manual_seed(0)))
        value.backward()
        assert encoder.weight_head.weight.grad.abs().max() > 0
        assert all(parameter.grad is None for parameter in encoder.kappa_parameters())

    @pytest.mark.parametrize("loss", [al.ExactInfoNCE, al.MCInfoNCE, al.HIB, al.InfoNCE, al.ELK])
    def test_fit_with_negatives_of_every_kind(self, loss):
        def batches(step, generator):
            anchor, positive, negative = pairs(step, generator)
            return (anchor, positive, negative) if step % 2 else (anchor, positive)

        encoder = self.encoder()
        before = encoder(X).log_prob(torch.eye(3)[[0, 1, 2, 0]]).detach()
        result = fit(encoder, loss(), batches, Recipe(steps=6, seed=1), device="cpu")
        after = result.encoder(X)
        assert after.modes == 2
        assert torch.isfinite(after.log_prob(torch.eye(3)[[0, 1, 2, 0]])).all()
        assert not torch.equal(after.log_prob(torch.eye(3)[[0, 1, 2, 0]]), before)

    def test_a_resumed_run_equals_one_that_never_stopped(self, tmp_path):
        def run(folder, steps):
            encoder = self.encoder()
            recipe = Recipe(steps=8, seed=1, checkpoint_every=3)
            calls = iter(range(steps))

            def batches(step, generator):
                if next(calls, None) is None:
                    raise StoppedError
                return pairs(step, generator)

            return fit(encoder, al.ExactInfoNCE(), batches, recipe, folder=folder, device="cpu")

        whole = run(tmp_path / "whole", 99)
        with pytest.raises(StoppedError):
            run(tmp_path / "part", 5)
        resumed = run(tmp_path / "part", 99)
        for a, b in zip(whole.encoder(X)._tensors(), resumed.encoder(X)._tensors(), strict=True):
            assert torch.equal(a, b)


def test_a_loss_of_ones_own_computes_in_float32():
    """Also under bf16: a matrix product of unit vectors in it would be off by 1e-2."""
    seen = []

    class Alignment(nn.Module):
        def forward(self, anchor, positive, negative):
            z = anchor.rsample((8,), generator=torch.Generator().manual_seed(0))
            seen.append(((anchor.mu @ positive.mu.mT).dtype, (z.norm(dim=-1) - 1).abs().max().item()))
            return -(z * positive.mu).sum(-1).mean()

    encoder, _ = build()
    fit(encoder, Alignment(), pairs, Recipe(steps=2, precision="bf16"), device="cpu")
    assert len(seen) == 2
    assert all(dtype == torch.float32 and error < 1e-5 for dtype, error in seen)
