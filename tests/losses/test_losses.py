"""Every loss against a slow, literal twin of its formula, its closed forms, limits and symmetries, and its extremes."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator import (
    ELK,
    HIB,
    AcceptanceKernel,
    ExactInfoNCE,
    InfoNCE,
    MCInfoNCE,
    VMFKernel,
    VonMisesFisher,
    log_positivity,
)
from aleator.posteriors.vmf import log_sphere_area

SAMPLES = 5


def posteriors(*shape: int, dim: int = 4, low: float = 2.0, high: float = 50.0, dtype=torch.float64) -> VonMisesFisher:
    mu = F.normalize(torch.randn(*shape, dim, dtype=dtype), dim=-1).requires_grad_()
    kappa = torch.exp(torch.empty(shape, dtype=dtype).uniform_(math.log(low), math.log(high))).requires_grad_()
    return VonMisesFisher(mu, kappa, validate_args=False)


def triple(negatives: int | None, batch: int = 6, **options):
    return (
        posteriors(batch, **options),
        posteriors(batch, **options),
        None if negatives is None else posteriors(batch, negatives, **options),
    )


def noise_for(anchor, positive, negative, samples: int = SAMPLES):
    shapes = [None if q is None else (samples, *q.batch_shape, q.dim) for q in (anchor, positive, negative)]
    return tuple(None if shape is None else torch.randn(shape, dtype=anchor.mu.dtype) for shape in shapes)


def others_of(i: int, anchor, negative) -> list[VonMisesFisher]:
    """The negatives of anchor i: its own, or the other anchors."""
    if negative is not None:
        return [negative[i, m] for m in range(negative.batch_shape[1])]
    return [anchor[j] for j in range(len(anchor)) if j != i]


# The literal twins: one anchor, one sample, one negative at a time.


def twin_of_similarity(similarity, per_negative: bool):
    def twin(loss, anchor, positive, negative, noise) -> Tensor:
        total = torch.zeros((), dtype=anchor.mu.dtype)
        for i in range(len(anchor)):
            own = torch.exp(similarity(anchor[i], positive[i]))
            others = [torch.exp(similarity(anchor[i], q)) for q in others_of(i, anchor, negative)]
            denominator = own + sum(others)
            total = total - torch.log(own / (denominator / len(others) if per_negative else denominator))
        return total / len(anchor)

    return twin


def samples_of(anchor, positive, negative, noise):
    z = anchor.rsample((SAMPLES,), noise=noise[0])
    z_positive = positive.rsample((SAMPLES,), noise=noise[1])
    z_negative = None if negative is None else negative.rsample((SAMPLES,), noise=noise[2])
    return z, z_positive, z_negative


def cosines_of(i: int, k: int, z: Tensor, z_negative: Tensor | None) -> list[Tensor]:
    if z_negative is not None:
        return [z[k, i] @ z_negative[k, i, m] for m in range(z_negative.shape[2])]
    return [z[k, i] @ z[k, j] for j in range(z.shape[1]) if j != i]


def twin_of_mcinfonce(loss, anchor, positive, negative, noise) -> Tensor:
    z, z_positive, z_negative = samples_of(anchor, positive, negative, noise)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(anchor)):
        mean = 0.0
        for k in range(SAMPLES):
            own = torch.exp(20.0 * z[k, i] @ z_positive[k, i])
            others = [torch.exp(20.0 * c) for c in cosines_of(i, k, z, z_negative)]
            count = len(others)
            mean = mean + own / (own / count + sum(others) / count) / SAMPLES
        total = total - torch.log(mean)
    return total / len(anchor)


def twin_of_hib(loss, anchor, positive, negative, noise) -> Tensor:
    z, z_positive, z_negative = samples_of(anchor, positive, negative, noise)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(anchor)):
        match = sum(torch.sigmoid(2.0 * z[k, i] @ z_positive[k, i] - 0.5) for k in range(SAMPLES)) / SAMPLES
        count = len(cosines_of(i, 0, z, z_negative))
        mismatches = [
            sum(1 - torch.sigmoid(2.0 * cosines_of(i, k, z, z_negative)[m] - 0.5) for k in range(SAMPLES)) / SAMPLES
            for m in range(count)
        ]
        total = total - torch.log(match) - sum(torch.log(m) for m in mismatches) / count
    return total / len(anchor)


def expected_likelihood(q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
    """3 log int q1 q2 dz = 3 log C(k1) C(k2) / C(|k1 mu1 + k2 mu2|) (Kirchhof et al. 2022)."""
    resultant = (q1.kappa[..., None] * q1.mu + q2.kappa[..., None] * q2.mu).norm(dim=-1)
    both = VonMisesFisher(q1.mu, resultant, validate_args=False)
    return 3.0 * (q1.log_normaliser + q2.log_normaliser - both.log_normaliser)


CASES = {
    "InfoNCE": (lambda: InfoNCE(20.0), twin_of_similarity(lambda p, q: 20.0 * (p.mu * q.mu).sum(-1), False)),
    "ExactInfoNCE": (
        lambda: ExactInfoNCE(VMFKernel(20.0)),
        twin_of_similarity(lambda p, q: log_positivity(p, q, VMFKernel(20.0)), False),
    ),
    "ExactInfoNCE, acceptance": (
        lambda: ExactInfoNCE(AcceptanceKernel(20.0)),
        twin_of_similarity(lambda p, q: log_positivity(p, q, AcceptanceKernel(20.0)), False),
    ),
    "ELK": (lambda: ELK(3.0), twin_of_similarity(expected_likelihood, True)),
    "MCInfoNCE": (lambda: MCInfoNCE(VMFKernel(20.0), SAMPLES), twin_of_mcinfonce),
    "HIB": (lambda: HIB(2.0, -0.5, SAMPLES), twin_of_hib),
}
SAMPLED = (MCInfoNCE, HIB)


def call(loss: nn.Module, anchor, positive, negative, noise=None) -> Tensor:
    options = {"noise": noise} if isinstance(loss, SAMPLED) else {}
    return loss(anchor, positive, negative, **options)


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", ""))
def case(request):
    make, twin = CASES[request.param]
    return make(), twin


def tangent_gradients(value: Tensor, q) -> list[Tensor]:
    """Gradients in every mu and kappa; of mu the part along the sphere, since a loss is a function on it alone."""
    gradients = []
    for p in (p for p in q if p is not None):
        for leaf in (p.mu, p.kappa):
            (grad,) = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)
            grad = torch.zeros_like(leaf) if grad is None else grad
            gradients.append(grad - (grad * leaf).sum(-1, keepdim=True) * leaf if leaf is p.mu else grad)
    return gradients


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


def test_monte_carlo_approaches_expectations():
    """With many samples HIB's terms are expectations of a sigmoid, which is a kernel with a series of its own."""
    torch.manual_seed(1)
    q = triple(1, batch=3, dim=3)
    value = HIB(2.0, -0.5, 20000)(*q)
    kernel_match, kernel_mismatch = (
        lambda t: torch.sigmoid(2.0 * t - 0.5),
        lambda t: torch.sigmoid(0.5 - 2.0 * t),
    )
    from aleator import ZonalKernel
    from aleator.matching.kernels import _quadrature

    t, log_w = _quadrature(3)
    weights = torch.softmax(log_w, 0)
    expected = 0.0
    for fn, a, b in ((kernel_match, q[0], q[1]), (kernel_mismatch, q[0], q[2][:, 0])):
        expected = expected - (log_positivity(a, b, ZonalKernel(fn)) + torch.log((fn(t) * weights).sum())).mean()
    torch.testing.assert_close(value, expected, rtol=0, atol=5e-3)


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


@pytest.mark.parametrize("samples", [1, 512])
def test_any_number_of_samples(samples):
    for loss in (MCInfoNCE(VMFKernel(20.0), samples), HIB(1.0, 0.0, samples)):
        q = triple(2, batch=3, dtype=torch.float32)
        value = loss(*q)
        value.backward()
        assert torch.isfinite(value)
        assert all(torch.isfinite(p.kappa.grad).all() for p in q)


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


def test_sampling_repeats_with_a_seeded_generator():
    q = triple(2, dtype=torch.float32)
    loss = MCInfoNCE(VMFKernel(20.0), 8)
    first, second = (loss(*q, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, loss(*q, generator=torch.Generator().manual_seed(4)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda q: (q(0), q(0), None), "anchor.*empty batch"),
        (lambda q: (q(1), q(1), None), "anchor.*no negatives.*larger batch"),
        (lambda q: (q(3), q(2), None), r"positive.*expected batch shape \(3,\)"),
        (lambda q: (q(3), q(3), q(3)), r"negative.*expected batch shape \(3, M\)"),
        (lambda q: (q(3), q(3), q(2, 4)), r"negative = \(2, 4\)"),
        (lambda q: (q(3), q(3), q(3, 0)), "M >= 1"),
        (lambda q: (q(3), q(3), q(3, 2, dim=5)), "negative = 'dimension 5'.*anchors have 4"),
        (lambda q: (q(3, 1), q(3, 1), None), "anchor.*flatten"),
        (lambda q: (q(3).mu, q(3), None), "anchor = 'Tensor'.*not a posterior"),
    ],
)
def test_bad_input_is_named(case, arguments, message):
    loss, _ = case
    with pytest.raises(ValueError, match=message):
        loss(*arguments(posteriors))


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


def test_elk_is_the_expected_likelihood():
    """The twin's closed form against the integral itself, by quadrature on the circle."""
    q1, q2 = posteriors(dim=2), posteriors(dim=2)
    angle = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    z = torch.stack([torch.cos(angle), torch.sin(angle)], -1)
    integral = (q1.log_prob(z) + q2.log_prob(z)).exp().mean() * 2 * math.pi
    value = log_positivity(q1, q2, VMFKernel(math.inf)) - log_sphere_area(2)
    torch.testing.assert_close(value.exp(), integral)


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
    monkeypatch.setattr("aleator.losses.losses.process_count", lambda: 2)
    monkeypatch.setattr("aleator.losses.losses.process_rank", lambda: 1)
    torch.testing.assert_close(loss(anchor, positive), alone)


def test_a_group_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="group = 5: does not divide the batch of 12"):
        ExactInfoNCE(group=5)(posteriors(12), posteriors(12))
    with pytest.raises(ValueError, match="group = 1"):
        ExactInfoNCE(group=1)
