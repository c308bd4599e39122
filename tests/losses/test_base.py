"""Every loss against its literal twin; symmetries, extreme values, gradients of parameters, bad input."""

import math

import pytest
import torch

from aleator import (
    ELK,
    HIB,
    AcceptanceKernel,
    ContrastiveLoss,
    ExactInfoNCE,
    InfoNCE,
    MCInfoNCE,
    VMFKernel,
    VMFMixture,
    VonMisesFisher,
)
from aleator.losses import negative_count, self_mask
from tests.losses.cases import SAMPLED, call, noise_for, posteriors, tangent_gradients, triple


@pytest.mark.parametrize("negatives", [None, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_its_literal_twin(case, negatives, dtype):
    loss, twin = case
    loss.to(dtype)
    q = triple(negatives, dtype=dtype)
    noise = noise_for(*q)
    value, expected = call(loss, *q, noise), twin(loss, *q, noise)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(tangent_gradients(value, q), tangent_gradients(expected, q), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-5 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_negatives_that_groups_share_are_those_of_each_anchor(case, groups):
    loss, _ = case
    loss.double()
    anchor, positive, _ = triple(None)
    negative = posteriors(groups, 4)
    times = len(anchor) // groups
    noise = noise_for(anchor, positive, negative)
    each = (*noise[:2], noise[2].repeat_interleave(times, 1))
    mu, kappa = (part.repeat_interleave(times, 0) for part in (negative.mu, negative.kappa))
    shared = call(loss, anchor, positive, negative, noise)
    own = call(loss, anchor, positive, VonMisesFisher(mu, kappa), each)
    torch.testing.assert_close(shared, own)
    q = (anchor, positive, negative)
    for a, b in zip(tangent_gradients(shared, q), tangent_gradients(own, q), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("negatives", [None, 3])
def test_invariances(case, negatives):
    """Shuffling the anchors and turning the sphere change nothing."""
    loss, _ = case
    loss.double()
    q = triple(negatives)
    noise = noise_for(*q)
    value = call(loss, *q, noise)
    order = torch.randperm(6)
    shuffled = [None if p is None else p[order] for p in q]
    moved = tuple(None if n is None else n[:, order] for n in noise)
    torch.testing.assert_close(call(loss, *shuffled, moved), value)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))
    turned = [None if p is None else VonMisesFisher(p.mu @ rotation, p.kappa, validate_args=False) for p in q]
    moved = tuple(None if n is None else n @ rotation for n in noise)
    torch.testing.assert_close(call(loss, *turned, moved), value)


@pytest.mark.parametrize("dim", [2, 10, 512])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("autocast", [False, True])
def test_finite_at_the_extremes(case, dim, kappa, autocast):
    loss, _ = case
    for negatives in (None, 2):
        anchor, positive, negative = triple(negatives, batch=3, dim=dim, dtype=torch.float32)
        with torch.no_grad():
            for q in (anchor, positive, *([] if negative is None else [negative])):
                q.kappa.fill_(kappa)
            positive.mu[0] = anchor.mu[0]  # a perfect match
            positive.mu[1] = -anchor.mu[1]  # and the worst
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(anchor, positive, negative)
        assert value.dtype == torch.float32
        assert torch.isfinite(value)
        value.backward()
        gradients = [x.grad for q in (anchor, positive, negative) if q is not None for x in (q.mu, q.kappa)]
        assert any(grad is not None for grad in gradients)
        assert all(grad is None or torch.isfinite(grad).all() for grad in gradients)


def test_gradients_reach_learnable_parameters():
    for loss in (
        InfoNCE(20.0, requires_grad=True),
        ELK(20.0, requires_grad=True),
        HIB(1.0, 0.0, 4, requires_grad=True),
        MCInfoNCE(VMFKernel(20.0, requires_grad=True), 4),
        ExactInfoNCE(VMFKernel(20.0, requires_grad=True)),
        ExactInfoNCE(AcceptanceKernel(20.0, requires_grad=True)),
    ):
        parameters = [p for p in loss.parameters() if p.requires_grad]
        assert parameters, loss
        torch.manual_seed(0)
        q, noise = triple(3), None
        if isinstance(loss, SAMPLED):
            noise = noise_for(*q, samples=4)
        loss.double()
        call(loss, *q, noise).backward()
        for parameter in parameters:
            gradient = parameter.grad.item()
            with torch.no_grad():
                parameter += 1e-5
                above = call(loss, *q, noise).item()
                parameter -= 2e-5
                below = call(loss, *q, noise).item()
            assert gradient == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-7), loss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda q: (q(0), q(0), None), "anchor.*empty batch"),
        (lambda q: (q(1), q(1), None), "anchor.*no negatives.*larger batch.*drop_last=True"),
        (lambda q: (q(3), q(2), None), r"positive.*expected batch shape \(3,\)"),
        (lambda q: (q(3), q(3), q(3)), r"negative.*expected batch shape \(3, M\)"),
        (lambda q: (q(3), q(3), q(2, 4)), r"negative = \(2, 4\)"),
        (lambda q: (q(3), q(3), q(3, 0)), "M >= 1"),
        (lambda q: (q(3), q(3), q(3, 2, dim=5)), "negative = 'dimension 5'.*anchors have 4"),
        (lambda q: (q(3), q(3).float(), None), "positive = torch.float32.*anchors have torch.float64.*cast one"),
        (lambda q: (q(3, 1), q(3, 1), None), "anchor.*flatten"),
        (lambda q: (q(3).mu, q(3), None), "anchor = 'Tensor'.*not a posterior"),
        (
            lambda q: (q(3), as_mixture(q(3)), q(3, 2)),
            "negative = 'VonMisesFisher of 1 modes': the positives are VMFMixture of 2 modes",
        ),
    ],
)
def test_bad_input_is_named(case, arguments, message):
    loss, _ = case
    with pytest.raises(ValueError, match=message):
        loss(*arguments(posteriors))


def as_mixture(q):
    """The same density, as two equal halves."""
    two = VonMisesFisher(torch.stack([q.mu, q.mu], -2), torch.stack([q.kappa, q.kappa], -1))
    return VMFMixture(torch.full_like(two.kappa, 0.5).log(), two)


def test_point_masses_have_no_likelihood():
    points = VonMisesFisher(torch.eye(3), math.inf)
    with pytest.raises(ValueError, match="positive = 'kappa = inf': two point masses have no likelihood"):
        ELK()(points, points)


def test_bad_parameters_are_named():
    for make, message in (
        (lambda: MCInfoNCE(VMFKernel(20.0), 0), "samples = 0"),
        (lambda: MCInfoNCE(20.0), "kernel = 20.0"),
        (lambda: ExactInfoNCE("vmf"), "kernel = 'vmf'"),
        (lambda: InfoNCE(-1.0), "kappa_pos = -1.0"),
        (lambda: HIB(math.nan), "a = nan"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_loss_of_ones_own():
    """`per_anchor` is all that a new loss defines: checks, full precision and the mean come from the base class."""

    class Uniformity(ContrastiveLoss):
        def per_anchor(self, anchor, positive, negative):
            cosine = anchor.mu @ anchor.mu.mT + self_mask(anchor)
            return torch.exp(cosine).sum(1) / negative_count(anchor, negative)

    anchor, positive = posteriors(3, dtype=torch.float32), posteriors(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = Uniformity()(anchor, positive)
    pairs = [(anchor.mu[i] @ anchor.mu[j]).exp() for i in range(3) for j in range(3) if i != j]
    torch.testing.assert_close(value, sum(pairs) / 6)
    with pytest.raises(ValueError, match="positive"):
        Uniformity()(anchor, positive[:2])
    with pytest.raises(NotImplementedError):
        ContrastiveLoss()(anchor, positive)
