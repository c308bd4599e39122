"""From a batch to the loss: the forms of a batch, the negatives of a phase, and batches that are refused."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import aleator as al
from aleator.data import (
    LabelledBatches,
    LabelRowBatches,
    PairBatches,
    SoftBatch,
    SoftLabelBatches,
    SoftPairBatches,
    match_weights,
)
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
        ([(X, torch.arange(4))], r"positive = \(\): one anchor has shape.*labels pass SoftLabelBatches"),
        ([(X, torch.eye(4).long())], r"positive = torch.int64: the anchors have torch.float32.*SoftLabelBatches"),
        ([{"anchor": {"x": X}, "positive": torch.arange(4)}], "'Tensor': the anchors are a dict.*SoftLabelBatches"),
        ([(["a", "b", "c", "d"], torch.arange(4))], "'Tensor': the anchors are a list.*SoftLabelBatches"),
        ([(X, torch.eye(4))], "look like soft labels.*SoftBatch.*PairBatches"),
        ([(X, (5 * X).softmax(1))], "look like soft labels"),
    ],
)
def test_bad_batches(batches, message):
    encoder, loss = build()
    with pytest.raises(ValueError, match=message):
        fit(encoder, loss, batches, Recipe(steps=3), device="cpu")


def test_a_pair_of_histograms_is_a_pair():
    encoder, loss = build()
    shares = X / X.sum(1, keepdim=True)
    for pair in ((shares, shares.roll(1, 1)), (shares, X), (X, shares.repeat(1, 2)[:, 2:6] + 0.1)):
        assert fit(encoder, loss, [pair], Recipe(steps=1), device="cpu").steps == 1


SOFT = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.1, 0.9]])
EXAMPLE = SoftBatch(X, match_weights(SOFT, torch.tensor([0.3, 0.3, 0.4])))
EVERY_KIND = {
    "pairs": lambda: [(X, X + 0.1)],
    "pairs with negatives": lambda: [pairs(0, torch.Generator().manual_seed(0))],
    "dict": lambda: [{"anchor": X, "positive": X + 0.1}],
    "soft batch": lambda: [EXAMPLE],
    "soft batch with a mask": lambda: [EXAMPLE._replace(compared=~torch.eye(4).bool())],
    "loader of soft batches": lambda: DataLoader([EXAMPLE], batch_size=None),
    "booleans": lambda: [SoftBatch(X, torch.tensor([0, 0, 1, 1])[:, None] == torch.tensor([0, 0, 1, 1]))],
    "whole numbers": lambda: [SoftBatch(X, torch.ones(4, 4, dtype=torch.int64))],
    "soft labels": lambda: SoftLabelBatches(X, SOFT, 4),
    "classes": lambda: SoftLabelBatches(X, torch.tensor([0, 0, 1, 1]), 4),
    "graded pairs": lambda: SoftPairBatches(X, [[0, 1], [2, 3]], 4, weights=[1.0, 0.7]),
    "drawn pairs": lambda: PairBatches(X, [[0, 1], [2, 3]], 4),
    "drawn labels": lambda: LabelledBatches(X, torch.tensor([0, 0, 1, 1]), 4),
    "label rows": lambda: LabelRowBatches(X, SOFT, 4),
    "pairs of two modes": lambda: [(X, X + 0.1)],
    "soft labels of two modes": lambda: SoftLabelBatches(X, SOFT, 4),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["32", "tf32", "bf16", "16"])
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.filterwarnings("ignore:.*fp16 is not supported on CPU")
def test_every_kind_of_batch_is_taken_in_every_precision(kind, precision, device):
    encoder = TestSeveralModes.encoder(modes=2 if "two modes" in kind else 1).to(device)
    loss = al.PrototypeLoss(3, [1, 1, 1], pairs=0.1, agreement=0.1) if kind == "label rows" else al.ExactInfoNCE()
    seen = []
    encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    before = [p.detach().clone() for p in encoder.parameters()]
    # In float16 on a GPU the scaler skips steps until the gradients fit.
    recipe = Recipe(steps=24 if precision == "16" else 2, learning_rate=1e-2, precision=precision)
    result = fit(encoder, loss, EVERY_KIND[kind](), recipe, device=device)
    assert math.isfinite(result.history[-1]["loss"])
    assert not all(torch.equal(p, q) for p, q in zip(before, encoder.parameters(), strict=True))
    assert set(seen) == {torch.float32}  # autocast rounds what goes into products; nobody rounds the inputs


def test_match_weights_reach_the_loss_unrounded():
    """1/3 is none of bfloat16's numbers."""
    seen = []

    class Watching(nn.Module):
        def soft(self, anchor, targets, compared):
            seen.append(targets)
            return anchor.kappa.mean()

    targets = torch.full((4, 4), 1 / 3)
    fit(build()[0], Watching(), [SoftBatch(X, targets)], Recipe(steps=1, precision="bf16"), device="cpu")
    assert torch.equal(seen[0], targets)


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
    def encoder(seed=0, modes=2):
        torch.manual_seed(seed)
        return al.Encoder(MLP(4, (8,)), 3, kappa="head", kappa_hidden=(6,), modes=modes)

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
