"""Losses of mixtures: sampled ones against literal loops, all of them against one mode, gradients for the weights."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import ELK, HIB, AcceptanceKernel, ExactInfoNCE, InfoNCE, MCInfoNCE, PrototypeLoss, VMFKernel, VMFMixture
from aleator.losses import SampledLoss
from tests.posteriors.mixture_cases import mixture

LOSSES = {
    "infonce": InfoNCE(5.0),
    "exact": ExactInfoNCE(VMFKernel(10.0)),
    "exact, rejected": ExactInfoNCE(AcceptanceKernel(10.0), rule="rejected-pair"),
    "elk": ELK(2.0),
    "mcinfonce": MCInfoNCE(VMFKernel(10.0), samples=3),
    "mcinfonce, averaged": MCInfoNCE(VMFKernel(10.0), samples=3, average_negatives=True),
    "hib": HIB(2.0, -1.0, samples=3),
}
NEGATIVES = {"batch": None, "own": (6, 4), "shared": (2, 4), "shared by all": (1, 4)}


def triple(negatives, modes=2):
    anchor, positive = (mixture(6, modes=modes, dim=4, seed=s) for s in (0, 1))
    return anchor, positive, None if negatives is None else mixture(*negatives, modes=modes, dim=4, seed=2)


def noise_of(*posteriors, samples=3):
    generator = torch.Generator().manual_seed(7)
    shapes = [None if q is None else (samples, *q.components.mu.shape) for q in posteriors]
    return tuple(None if s is None else torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


def others_of(i, z, z_negative, log_weights, negative, batch=6):
    """Samples and weights of the negatives of anchor i: pairs of (S, K, D) and (K,)."""
    if negative is None:
        return [(z[:, j], log_weights[j]) for j in range(batch) if j != i]
    row = i * len(negative) // batch
    return [(z_negative[:, row, m], negative.weights[row, m]) for m in range(negative.batch_shape[1])]


class TestLiteralTwins:
    """One anchor, one sample, one component at a time."""

    @pytest.mark.parametrize("negatives", NEGATIVES)
    @pytest.mark.parametrize("averaged", [False, True])
    def test_mcinfonce(self, negatives, averaged):
        anchor, positive, negative = triple(NEGATIVES[negatives])
        loss = MCInfoNCE(VMFKernel(10.0), samples=3, average_negatives=averaged)
        noise = noise_of(anchor, positive, negative)
        z, zp = (q.components.rsample((3,), noise=n) for q, n in zip((anchor, positive), noise, strict=False))
        zn = None if negative is None else negative.components.rsample((3,), noise=noise[2])
        total = 0.0
        for i in range(6):
            mean = 0.0
            others = others_of(i, z, zn, anchor.weights, negative)
            for s in range(3):
                for k in range(2):
                    a = z[s, i, k]
                    own = sum(positive.weights[i, j] * torch.exp(10 * (a @ zp[s, i, j] - 1)) for j in range(2))
                    rest = sum(w[j] * torch.exp(10 * (a @ zs[s, j] - 1)) for zs, w in others for j in range(2))
                    share = own / (own + rest / len(others)) if averaged else own / ((own + rest) / len(others))
                    mean = mean + anchor.weights[i, k] * share / 3
            total = total - torch.log(mean) / 6
        torch.testing.assert_close(loss(anchor, positive, negative, noise=noise), total)

    @pytest.mark.parametrize("negatives", NEGATIVES)
    def test_hib(self, negatives):
        anchor, positive, negative = triple(NEGATIVES[negatives])
        noise = noise_of(anchor, positive, negative)
        z, zp = (q.components.rsample((3,), noise=n) for q, n in zip((anchor, positive), noise, strict=False))
        zn = None if negative is None else negative.components.rsample((3,), noise=noise[2])

        def match(i, zs, w, sign):
            return sum(
                anchor.weights[i, k] * w[j] * torch.sigmoid(sign * (2 * z[s, i, k] @ zs[s, j] - 1)) / 3
                for s in range(3)
                for k in range(2)
                for j in range(2)
            )

        total = 0.0
        for i in range(6):
            others = others_of(i, z, zn, anchor.weights, negative)
            total = total - match(i, zp[:, i], positive.weights[i], 1).log() / 6
            total = total - sum(match(i, zs, w, -1).log() for zs, w in others) / len(others) / 6
        torch.testing.assert_close(HIB(2.0, -1.0, samples=3)(anchor, positive, negative, noise=noise), total)

    def test_infonce_on_directions(self):
        anchor, positive, _ = triple(None)
        p, q = anchor, positive

        def score(a, b):
            cosine = a.components.mu @ b.components.mu.T
            return (a.weights[:, None] * b.weights[None, :] * torch.exp(5 * (cosine - 1))).sum()

        total = 0.0
        for i in range(6):
            own = score(p[i], q[i])
            total = total - torch.log(own / (own + sum(score(p[i], p[j]) for j in range(6) if j != i))) / 6
        torch.testing.assert_close(InfoNCE(5.0)(anchor, positive), total)


class TestEveryLoss:
    @pytest.mark.parametrize("negatives", NEGATIVES)
    @pytest.mark.parametrize("name", LOSSES)
    def test_one_component_equals_one_mode(self, name, negatives):
        if name == "exact, rejected" and negatives == "batch":
            pytest.skip("rejected negatives are given")
        loss = LOSSES[name]
        mixtures = triple(NEGATIVES[negatives], modes=1)
        singles = [None if q is None else q.components[..., 0] for q in mixtures]
        options, plain = {}, {}
        if isinstance(loss, SampledLoss):
            noise = noise_of(*mixtures)
            options["noise"] = noise
            plain["noise"] = tuple(None if n is None else n.squeeze(-2) for n in noise)
        torch.testing.assert_close(loss(*mixtures, **options), loss(*singles, **plain))

    @pytest.mark.parametrize("negatives", NEGATIVES)
    @pytest.mark.parametrize("name", LOSSES)
    def test_all_parameters_get_gradients(self, name, negatives):
        if name == "exact, rejected" and negatives == "batch":
            pytest.skip("rejected negatives are given")
        torch.manual_seed(0)
        anchor, positive, negative = triple(NEGATIVES[negatives])
        value = LOSSES[name](anchor, positive, negative)
        for q in (anchor, positive, negative):
            if q is not None:
                wanted = [q.log_weights, q.components.mu] + ([] if name == "infonce" else [q.components.kappa])
                for gradient in torch.autograd.grad(value, wanted, retain_graph=True):
                    assert torch.isfinite(gradient).all()
                    assert gradient.abs().max() > 0

    @pytest.mark.parametrize("name", ["infonce", "exact", "elk", "mcinfonce"])
    def test_soft_targets_are_the_mean_over_drawn_positives(self, name):
        """A row that has one match is the loss with this positive, and the other anchors as negatives."""
        loss = LOSSES[name]
        anchor = mixture(4, modes=2, dim=4)
        options = {"noise": (noise_of(anchor)[0], None)} if isinstance(loss, SampledLoss) else {}
        shares = loss.log_shares(anchor, None, ~torch.eye(4, dtype=torch.bool), **options)
        torch.testing.assert_close(
            shares.exp().masked_fill(torch.eye(4, dtype=torch.bool), 0.0).sum(1), torch.ones(4, dtype=torch.float64)
        )
        targets = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = -(F.normalize(targets * (1 - torch.eye(4)), p=1, dim=1) * shares).sum(1).mean()
        torch.testing.assert_close(loss.soft(anchor, targets, **options), expected)

    def test_prototypes(self):
        torch.manual_seed(0)
        loss = PrototypeLoss(4, [0.5, 0.3, 0.2], pairs=0.5)
        anchor = mixture(6, modes=2, dim=4, dtype=torch.float32)
        value = loss.soft(anchor, torch.eye(3).repeat(2, 1))
        assert torch.autograd.grad(value, anchor.log_weights)[0].abs().max() > 0
        torch.testing.assert_close(loss.log_probabilities(anchor).exp().sum(1), torch.ones(6))

    def test_a_loss_of_your_own_gets_samples_of_the_mixtures(self):
        class Own(SampledLoss):
            def per_anchor(self, anchor, positive, negative, generator=None, noise=None):
                to_positive, to_negatives = self.cosines(anchor, positive, negative, generator, noise)
                return to_negatives.mean((0, 2)) - to_positive.mean(0)

        for negatives, width in ((None, 6), ((6, 4), 4), ((2, 4), 4)):
            anchor, positive, negative = triple(negatives)
            generator = torch.Generator().manual_seed(0)
            to_positive, to_negatives = Own(8).cosines(anchor, positive, negative, generator)
            assert to_positive.shape == (8, 6)
            assert to_negatives.shape == (8, 6, width)
            value = Own(8)(anchor, positive, negative, generator=generator)
            assert torch.isfinite(torch.autograd.grad(value, anchor.log_weights)[0]).all()


def test_more_samples_approach_the_exact_expectation():
    """HIB's mean over samples is linear in each posterior: it converges to the mean over all pairs of components."""
    anchor, positive, negative = triple((6, 4))
    torch.manual_seed(0)
    values = torch.stack([HIB(2.0, -1.0, samples=4000)(anchor, positive, negative).detach() for _ in range(3)])
    drawn = []
    for q, p in ((anchor, positive),):
        z, y = q.sample((15_000,)), p.sample((15_000,))
        drawn.append(torch.sigmoid(2 * (z * y).sum(-1) - 1).mean(0).log())
    z, y = anchor.sample((15_000,)), negative.sample((15_000,))
    rest = torch.sigmoid(-(2 * (z[:, :, None] * y).sum(-1) - 1)).mean(0).log().mean(1)
    assert values.mean().item() == pytest.approx(-(drawn[0] + rest).mean().item(), abs=0.01)


def test_posteriors_of_different_numbers_of_modes_are_refused():
    anchor, positive, _ = triple(None)
    with pytest.raises(
        ValueError, match=r"negative = .VMFMixture of 3 modes.: the positives are VMFMixture of 2 modes"
    ):
        ExactInfoNCE()(anchor, positive, mixture(6, 4, modes=3, dim=4))


def test_identical_mixtures_of_equal_weights_cannot_be_told_apart():
    """A check of the constant: M negatives like the positive give log(M + 1)."""
    q = mixture(modes=2, dim=4).detach().expand((6,))
    assert ExactInfoNCE()(VMFMixture.cat([q]), q).item() == pytest.approx(math.log(6))
