"""Losses on samples: their expectations, numbers of samples, and seeds."""

import math

import pytest
import torch

from aleator import HIB, ExactInfoNCE, MCInfoNCE, VMFKernel, VonMisesFisher, ZonalKernel, log_positivity
from aleator.losses import SampledLoss, softmax_share
from aleator.losses.mean_share import share_among_average
from aleator.matching.quadrature import angle_quadrature
from tests.losses.cases import SAMPLES, noise_for, posteriors, samples_of, triple


def test_monte_carlo_approaches_expectations():
    """With many samples HIB's terms are expectations of a sigmoid, which is a kernel with a series of its own."""
    torch.manual_seed(1)
    q = triple(1, batch=3, dim=3)
    value = HIB(2.0, -0.5, 20000)(*q)
    kernel_match, kernel_mismatch = (
        lambda t: torch.sigmoid(2.0 * t - 0.5),
        lambda t: torch.sigmoid(0.5 - 2.0 * t),
    )
    t, log_w = angle_quadrature(3)
    weights = torch.softmax(log_w, 0)
    expected = 0.0
    for fn, a, b in ((kernel_match, q[0], q[1]), (kernel_mismatch, q[0], q[2][:, 0])):
        expected = expected - (log_positivity(a, b, ZonalKernel(fn)) + torch.log((fn(t) * weights).sum())).mean()
    torch.testing.assert_close(value, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("samples", [1, 512])
def test_any_number_of_samples(samples):
    for loss in (MCInfoNCE(VMFKernel(20.0), samples), HIB(1.0, 0.0, samples)):
        q = triple(2, batch=3, dtype=torch.float32)
        value = loss(*q)
        value.backward()
        assert torch.isfinite(value)
        assert all(torch.isfinite(p.kappa.grad).all() for p in q)


def test_sampling_repeats_with_a_seeded_generator():
    q = triple(2, dtype=torch.float32)
    loss = MCInfoNCE(VMFKernel(20.0), 8)
    first, second = (loss(*q, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, loss(*q, generator=torch.Generator().manual_seed(4)))


def test_cosines_are_those_of_the_samples():
    """With given noise, `cosines` returns the cosines of `rsample`: own, shared and batch negatives."""
    anchor, positive = posteriors(6), posteriors(6)
    for rows in (6, 2, None):
        negative = None if rows is None else posteriors(rows, 3)
        noise = noise_for(anchor, positive, negative)
        z, z_positive, z_negative = samples_of(anchor, positive, negative, noise)
        to_positive, to_negatives = SampledLoss(SAMPLES).cosines(anchor, positive, negative, noise=noise)
        torch.testing.assert_close(to_positive, (z * z_positive).sum(-1))
        others = z[:, None] if rows is None else z_negative.repeat_interleave(6 // rows, 1)
        torch.testing.assert_close(to_negatives, (z[:, :, None] * others).sum(-1))


@pytest.mark.parametrize("rows", [None, 1, 5])
def test_negatives_may_be_averaged(rows):
    """The published denominator g+ + mean g-, for own, shared and batch negatives; for one negative it is the same."""
    anchor, positive = posteriors(5), posteriors(5)
    for count in (1, 4) if rows else (4,):
        negative = posteriors(rows, count) if rows else None
        noise = noise_for(anchor, positive, negative)
        loss = MCInfoNCE(VMFKernel(20.0), SAMPLES, average_negatives=True)
        to_positive, to_negatives = loss.cosines(anchor, positive, negative, noise=noise)
        g, g_negatives = torch.exp(20 * to_positive), torch.exp(20 * to_negatives)
        if rows is None:
            g_negatives = g_negatives * (1 - torch.eye(5, dtype=g.dtype))
        expected = -torch.log((g / (g + g_negatives.sum(-1) / count)).mean(0)).mean()
        torch.testing.assert_close(loss(anchor, positive, negative, noise=noise), expected)
    shares = torch.tensor([-200.0, -1e-9, 0.0], requires_grad=True)
    averaged = share_among_average(shares, 32)
    torch.testing.assert_close(averaged, torch.tensor([-200 + math.log(32), -1e-9 / 32, 0.0]), atol=2e-7, rtol=1e-6)
    (slope,) = torch.autograd.grad(averaged.sum(), shares)
    torch.testing.assert_close(slope, torch.tensor([1.0, 1 / 32, 1 / 32]), atol=1e-6, rtol=1e-6)


def test_averaged_negatives_do_not_ask_for_the_density_ratio():
    """Theory (9): with h = s / E- s, the minimum has h (1 + h) in proportion to P+/P-, and not h."""
    positive = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    counts = torch.tensor([1, 2, 4, 9])  # 16 negatives with exactly these frequencies, as for M -> infinity
    negative = counts / counts.sum()
    log_s = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_s], max_iter=200, line_search_fn="strong_wolfe")

    def mean_loss():
        optimiser.zero_grad()
        against = torch.logsumexp(log_s.repeat_interleave(counts), 0)
        shares = share_among_average(log_s - torch.logaddexp(log_s, against), int(counts.sum()))
        loss = -(positive * shares).sum()
        loss.backward()
        return loss

    optimiser.step(mean_loss)
    s = log_s.detach().exp()
    h = s / (negative * s).sum()
    times = h * (1 + h) / (positive / negative)
    torch.testing.assert_close(times, times.mean().expand(4), rtol=1e-3, atol=0)
    assert h[0] / h[-1] < 0.5 * (positive / negative)[0] / (positive / negative)[-1]


@pytest.mark.parametrize("table", [1, 30, 100, 400])
@pytest.mark.parametrize("kernel", [VMFKernel(20.0), VMFKernel(20.0, requires_grad=True)])
def test_batch_negatives_in_blocks(monkeypatch, table, kernel):
    """Blocks of rows, of samples, or of both give the value and gradients of the whole table."""
    z = torch.nn.functional.normalize(torch.randn(5, 9, 4, dtype=torch.float64), dim=-1).requires_grad_()
    log_values = kernel.log_values(4, z @ z.mT)
    whole = torch.logsumexp(log_values.masked_fill(torch.eye(9, dtype=torch.bool), -math.inf), -1)
    monkeypatch.setattr(softmax_share, "_TABLE", table)
    blocks = softmax_share.batch_log_totals(z, kernel)
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(whole)
    leaves = [z, *(x for x in kernel.parameters() if x.requires_grad)]
    for one, other in zip(*(torch.autograd.grad((weight * x).sum(), leaves) for x in (blocks, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_no_table_of_samples_is_kept(monkeypatch):
    """What autograd keeps for batch negatives grows with K B, not with K B^2."""
    monkeypatch.setattr(softmax_share, "_TABLE", 200)
    kept = []
    z = torch.nn.functional.normalize(torch.randn(3, 60, 4), dim=-1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        softmax_share.batch_log_totals(z, VMFKernel(20.0)).sum()
    assert max(kept, default=0) <= z.numel()


def test_with_many_negatives_it_is_the_likelihood_of_partners():
    """-log E_z [E g(z.z+) / Z(z)], and not -log (r / mean r), for latents on an arc (theory.md, 3)."""
    count, kernel = 600, VMFKernel(5.0)
    directions = torch.linspace(0.0, 2.0, count, dtype=torch.float64)
    negative = VonMisesFisher(circle(directions), torch.full((count,), 20.0, dtype=torch.float64))
    anchor = VonMisesFisher(circle(torch.tensor([0.0, 0.4], dtype=torch.float64)), 6.0)
    positive = VonMisesFisher(circle(torch.tensor([-0.2, -0.4], dtype=torch.float64)), 12.0)
    weight = 2 * math.pi / 720  # of each node of the quadrature
    nodes = circle(torch.arange(720, dtype=torch.float64) * weight)
    of_anchor, of_positive, of_negative = (
        weight * q[:, None].log_prob(nodes).exp() for q in (anchor, positive, negative)
    )
    g = kernel.log_values(2, nodes @ nodes.T).exp()
    match = of_positive @ g  # E g(z.z+) at every z
    normaliser = (of_negative @ g).mean(0)  # Z(z)
    partners = -torch.log((of_anchor * match / normaliser).sum(1))
    ratio = (of_anchor * match).sum(1) / (of_anchor * normaliser).sum(1)
    loss = MCInfoNCE(kernel=kernel, samples=4000)
    ours = loss.per_anchor(anchor, positive, negative[None], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours, partners, rtol=0, atol=0.05)
    assert (ours + ratio.log()).abs().min() > 0.1


@pytest.mark.parametrize("negatives", [None, 1, 7])
def test_for_points_it_is_exact_infonce_less_log_m(negatives):
    anchor, positive, negative = triple(negatives or 1, batch=5, dim=4)
    points = [
        VonMisesFisher(q.mu.detach(), torch.full_like(q.kappa.detach(), math.inf)) for q in (anchor, positive, negative)
    ]
    if negatives is None:
        points[2] = None
    kernel, count = VMFKernel(10.0), negatives or 4
    difference = ExactInfoNCE(kernel)(*points) - MCInfoNCE(kernel, 2)(*points)
    assert difference.item() == pytest.approx(math.log(count), abs=1e-6)


def circle(angle: torch.Tensor) -> torch.Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)
