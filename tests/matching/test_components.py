"""Mixtures in tables of pairs: against loops over components, quadrature and single posteriors."""

import itertools
import math

import pytest
import torch

from aleator import (
    AcceptanceKernel,
    VMFKernel,
    VMFMixture,
    VonMisesFisher,
    log_positivity,
    match_probability,
    pairwise_log_positivity,
)
from aleator.matching import log_bilinear, log_match_odds
from tests import reference
from tests.matching.posterior_pairs import some_posteriors
from tests.posteriors.mixture_cases import mixture

SHAPES = [
    ((), ()),
    ((5,), (5,)),
    ((), (5,)),
    ((5,), ()),
    ((4, 1), (1, 5)),
    ((4, 1), (5,)),
    ((4, 1), (4, 5)),
    ((4, 5), (4, 1)),
    ((4, 5), (4, 5)),
    ((3, 4, 1), (3, 1, 5)),
    ((3, 4, 1), (1, 1, 5)),
    ((1, 4, 1), (3, 1, 5)),
    ((2, 3, 4, 1), (2, 3, 1, 5)),
    ((2, 1, 4, 1), (3, 1, 5)),
    ((2, 3, 4), (3, 4)),
]


@pytest.mark.parametrize(("shape1", "shape2"), SHAPES)
def test_every_shape_against_a_loop_over_components(shape1, shape2):
    """Values and gradients of each pair are those of the sum over its components, one by one."""
    q1, q2, kernel = mixture(*shape1, modes=2, dim=5), mixture(*shape2, modes=3, dim=5, seed=1), VMFKernel(10.0)
    ours = log_positivity(q1, q2, kernel)
    total = torch.zeros(())
    for k, j in itertools.product(range(2), range(3)):
        pair = log_positivity(q1.components[..., k], q2.components[..., j], kernel)
        total = total + (pair + q1.log_weights[..., k] + q2.log_weights[..., j]).exp()
    assert ours.shape == torch.broadcast_shapes(shape1, shape2)
    torch.testing.assert_close(ours, total.log(), rtol=1e-6, atol=1e-7)
    leaves = q1.components.mu, q1.components.kappa, q2.components.mu, q2.components.kappa
    weight = torch.linspace(1, 2, max(1, ours.numel()), dtype=ours.dtype).view(ours.shape)
    mine = torch.autograd.grad((weight * ours).sum(), leaves, retain_graph=True)
    theirs = torch.autograd.grad((weight * total.log()).sum(), leaves)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dim", [2, 3, 16, 64, 256])
@pytest.mark.parametrize("modes", [1, 2, 8])
def test_against_quadrature(dim, modes):
    q1, q2 = (mixture(modes=m, dim=dim, low=dim / 4, high=dim, seed=s).detach() for m, s in ((modes, 0), (2, 1)))
    expected = 0.0
    for k, j in itertools.product(range(modes), range(2)):
        a, b = q1.components[k], q2.components[j]
        log_r = reference.log_positivity(dim, float(a.mu @ b.mu), float(a.kappa), float(b.kappa), 20.0)
        expected += float(q1.weights[k] * q2.weights[j]) * math.exp(log_r)
    assert log_positivity(q1, q2, VMFKernel(20.0)).item() == pytest.approx(math.log(expected), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(math.inf)], ids=repr)
def test_one_component_and_weights_of_zero_and_one(kernel):
    q, p = some_posteriors(4, 8), some_posteriors(5, 8, seed=2)
    single = pairwise_log_positivity(q, p, kernel)
    one = VMFMixture(torch.zeros(4, 1, dtype=torch.float64), q[:, None])
    torch.testing.assert_close(pairwise_log_positivity(one, p, kernel), single, rtol=1e-12, atol=1e-12)
    both = type(q).stack([q, some_posteriors(4, 8, seed=3)], 1)
    sure = VMFMixture(torch.tensor([0.0, -math.inf], dtype=torch.float64), both)
    torch.testing.assert_close(pairwise_log_positivity(sure, p, kernel), single, rtol=1e-12, atol=1e-12)


def test_odds_and_match_probability():
    q, p, kernel = mixture(3, modes=2, dim=4), mixture(3, modes=3, dim=4, seed=1), AcceptanceKernel(10.0)
    rho = (log_positivity(q, p, kernel) + kernel.log_mean(4)).exp()
    torch.testing.assert_close(log_match_odds(q, p, kernel), torch.logit(rho))
    expected = torch.sigmoid(log_positivity(q, p, kernel) + math.log(0.2 / 0.8))
    torch.testing.assert_close(match_probability(q, p, kernel, prior=0.2), expected)


def test_any_comparison_of_components():
    q = mixture(4, modes=3, dim=5)
    cosine = log_bilinear(q, q, lambda a, b: 2 * (a.mu * b.mu).sum(-1))
    by_hand = torch.einsum("bk,bj,bkj->b", q.weights, q.weights, (2 * q.components.mu @ q.components.mu.mT).exp())
    torch.testing.assert_close(cosine, by_hand.log())
    assert torch.equal(log_bilinear(q.components, q.components, lambda a, b: a.kappa + b.kappa), 2 * q.components.kappa)


def test_many_small_tables_on_a_cpu():
    """More pairs than fit into one block: the blocks hold several groups."""
    q, p = mixture(20_000, modes=2, dim=3).detach(), mixture(20_000, modes=2, dim=3, seed=1).detach()
    whole = log_positivity(q, p, VMFKernel(5.0))
    few = log_positivity(q[-5:], p[-5:], VMFKernel(5.0))
    torch.testing.assert_close(whole[-5:], few, rtol=1e-8, atol=1e-8)


def test_a_point_mass_of_weight_0_counts_for_nothing():
    """Its overlap with itself is infinite."""
    parts = VonMisesFisher(torch.eye(3)[:2], torch.tensor([10.0, math.inf]))
    q = VMFMixture(torch.tensor([0.0, -math.inf]), parts)
    expected = log_positivity(parts[0], parts[0], VMFKernel(math.inf))
    assert log_positivity(q, q, VMFKernel(math.inf)) == pytest.approx(expected.item())
    assert q.certainty == pytest.approx(expected.item())
