"""Pooling is Bayes' rule for independent looks."""

import math

import numpy as np
import pytest
import torch

import aleator as al


def looks(dim, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(count, dim, dtype=torch.float64, generator=generator), dim=-1)
    return al.VonMisesFisher(mu, torch.rand(count, dtype=torch.float64, generator=generator) * 8)


def sphere_rule(dim):
    """Points and weights that integrate over the circle or the sphere."""
    turns = torch.arange(400, dtype=torch.float64) * (2 * math.pi / 400)
    circle = torch.stack([turns.cos(), turns.sin()], -1)
    if dim == 2:
        return circle, torch.full((400,), 2 * math.pi / 400, dtype=torch.float64)
    heights, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(80))
    ring = (1 - heights**2).sqrt()[:, None, None] * circle
    points = torch.cat([ring, heights[:, None, None].expand(80, 400, 1)], -1)
    return points.flatten(0, 1), (weights[:, None] * 2 * math.pi / 400).expand(80, 400).flatten()


@pytest.mark.parametrize("dim", [2, 3])
def test_it_is_the_normalised_product_by_quadrature(dim):
    q = looks(dim)
    z, weight = sphere_rule(dim)
    product = q.log_prob(z[:, None]).sum(1).exp()
    density = product / (product * weight).sum()
    torch.testing.assert_close(q.pool().log_prob(z).exp(), density, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 5, 300])
def test_the_log_density_is_the_sum_up_to_a_constant(dim):
    q = looks(dim)
    z = al.VonMisesFisher.uniform(dim, dtype=torch.float64).sample((20,))
    difference = q.pool().log_prob(z) - q.log_prob(z[:, None]).sum(1)
    assert difference.std() < 1e-9


def test_agreement_sharpens_and_contradiction_widens():
    mu = torch.eye(1, 3).expand(4, 3)
    assert al.VonMisesFisher(mu, 5.0).pool().kappa == 20
    against = al.VonMisesFisher(mu * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None], 5.0).pool()
    assert against.kappa == 0
    assert against.mu.norm() == 1


def test_weights_are_exponents():
    q = looks(4)
    twice = al.VonMisesFisher.cat([q, q]).pool()
    torch.testing.assert_close(q.pool(weights=torch.tensor(2.0)).kappa, twice.kappa)
    left_out = q.pool(weights=torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(left_out.mu, q[:2].pool().mu)
    one = al.VonMisesFisher(q.mu[:1].expand(3, 4), 7.0)  # three copies of one photo
    torch.testing.assert_close(one.pool(weights=torch.full((3,), 1 / 3)).kappa, torch.tensor(7.0).double())


def test_any_batch_dimension():
    q = looks(3, 24).reshape(2, 3, 4)
    torch.testing.assert_close(q.pool(1).mu[1, 2], q[1, :, 2].pool().mu)
    torch.testing.assert_close(q.pool(-1).kappa, q.pool(2).kappa)
    assert q.pool(0).batch_shape == (3, 4)


def test_a_point_mass_decides():
    q = al.VonMisesFisher(torch.eye(3), torch.tensor([5.0, math.inf, 0.0])).pool()
    assert q.kappa == math.inf
    assert torch.equal(q.mu, torch.eye(3)[1])
    with pytest.raises(ValueError, match="point masses in different directions"):
        al.VonMisesFisher(torch.eye(3), math.inf).pool()


def test_gradients_are_finite_and_right():
    q = looks(3)
    mu, kappa = q.mu.requires_grad_(), q.kappa.requires_grad_()

    def pooled(mu, kappa):
        unit = torch.nn.functional.normalize(mu, dim=-1)
        q = al.VonMisesFisher(unit, kappa, validate_args=False).pool()
        return q.mu, q.kappa

    assert torch.autograd.gradcheck(pooled, (mu, kappa))
    flat = torch.zeros(2, requires_grad=True)
    al.VonMisesFisher(torch.eye(2), flat).pool().kappa.backward()
    assert flat.grad.isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: looks(3)[0].pool(), r"dim = 0: the batch shape is \(\)"),
        (lambda: looks(3).pool(1), "dim = 1"),
        (lambda: looks(3).pool(weights=torch.tensor([1.0, -1.0, 1.0])), "weights = -1"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pooled_looks_beat_one_look():
    """The product is calibrated: latents lie in its 90 % cap in 90 % of cases, and the cap is smaller."""
    generator = torch.Generator().manual_seed(1)
    latent = al.VonMisesFisher.uniform(4).sample((4000,), generator)
    centres = al.VonMisesFisher(latent, 6.0).sample((3,), generator)  # for a uniform prior, vMF is its own conjugate
    q = al.VonMisesFisher(centres, 6.0)
    inside = ((q.pool().mu * latent).sum(-1) >= q.pool().cap(0.9)).double().mean()
    assert abs(inside - 0.9) < 0.015
    assert q.pool().cap(0.9).mean() > q[0].cap(0.9).mean()


@pytest.mark.parametrize("kappa", [1e-30, 1e-24, 1e20, 1e30])
def test_very_small_and_very_large_kappas_are_added(kappa):
    mu = torch.tensor([0.6, 0.8, 0.0])
    pooled = al.VonMisesFisher(mu.repeat(2, 1), kappa).pool()
    torch.testing.assert_close(pooled.mu, mu)
    assert pooled.kappa.item() == pytest.approx(2 * kappa, rel=1e-6)
