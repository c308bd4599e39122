"""Sampled cosines: equal to the cosines with sampled vectors, in value for the same noise, else in distribution.

Their gradients are those of the expectation, which has a closed form.
"""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from aleator import HIB, MCInfoNCE, VMFKernel, VonMisesFisher
from aleator.losses.sampled_cosines import cosines_from_noise, draw_noise, sampled_cosines

DIMS = [2, 3, 4, 7, 10, 65]


def directions(*shape: int, dim: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dim, dtype=torch.float64), dim=-1)


def posteriors(*shape: int, dim: int, low: float = 0.1, high: float = 300.0) -> VonMisesFisher:
    kappa = torch.exp(torch.empty(shape, dtype=torch.float64).uniform_(math.log(low), math.log(high)))
    return VonMisesFisher(directions(*shape, dim=dim), kappa)


@pytest.mark.parametrize("dim", DIMS)
def test_equal_to_the_cosine_with_the_sample_itself(dim):
    """The same noise as a vector: only its length and its part along the direction from mu to z count."""
    q, z = posteriors(3, 5, dim=dim), directions(4, 3, dim=dim)
    first, sigma = draw_noise((4, 3, 5), dim, z)
    share, mu, anchor = first / sigma, q.mu[None], z[:, :, None]
    towards = F.normalize(anchor - (anchor * mu).sum(-1, keepdim=True) * mu, dim=-1)
    vector = share[..., None] * towards
    if dim > 2:  # and the rest in any direction that is orthogonal to both
        other = directions(4, 3, 5, dim=dim)
        for direction in (mu, towards, mu):
            other = other - (other * direction).sum(-1, keepdim=True) * direction
        vector = vector + (1 - share.square()).clamp_min(0).sqrt()[..., None] * F.normalize(other, dim=-1)
    sample = q.rsample((4,), noise=sigma[..., None] * vector)
    cosines = cosines_from_noise(z, q.mu, q.kappa, (first, sigma))
    torch.testing.assert_close(cosines, (anchor * sample).sum(-1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_slopes_are_those_of_the_value(dim):
    q = posteriors(2, 3, dim=dim, low=2.0)
    z = 0.8 * directions(4, 2, dim=dim)  # inside the sphere: finite differences leave it anyway, and c = 1 has none
    noise = draw_noise((4, 2, 3), dim, z)
    inputs = [tensor.requires_grad_() for tensor in (z, q.mu.clone(), q.kappa.clone())]
    assert torch.autograd.gradcheck(lambda *tensors: cosines_from_noise(*tensors, noise), inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kappa", [0.0, 5.0, 200.0])
def test_the_law_is_that_of_samples(dim, kappa):
    generator = torch.Generator().manual_seed(dim)
    q = VonMisesFisher(directions(1, 1, dim=dim), torch.full((1, 1), kappa, dtype=torch.float64))
    z = directions(1, 1, dim=dim)
    cosines = sampled_cosines(z.expand(20_000, 1, dim), q, generator).flatten()
    expected = (q.sample((20_000,), generator).squeeze() * z.squeeze()).sum(-1)
    assert stats.ks_2samp(cosines.numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_gradients_are_those_of_the_expectation(dim):
    """E exp(a z.z') = C(kappa) / C(|kappa mu + a z|): its slopes in mu, kappa and z against the mean of the sampled."""
    a, count = 6.0, 50_000
    z, mu = directions(1, 1, dim=dim), directions(1, 1, dim=dim)
    kappa = torch.full((1, 1), 8.0, dtype=torch.float64)

    def tangent(gradient: Tensor, at: Tensor) -> Tensor:
        return gradient - (gradient * at).sum(-1, keepdim=True) * at

    leaves = [tensor.clone().requires_grad_() for tensor in (z, mu, kappa)]
    length = (leaves[2][..., None] * leaves[1] + a * leaves[0]).norm(dim=-1)
    q = VonMisesFisher(leaves[1], leaves[2], validate_args=False)
    both = VonMisesFisher(leaves[1], length, validate_args=False)
    exact = torch.autograd.grad((q.log_normaliser - both.log_normaliser).exp().sum(), leaves)

    drawn = [tensor.expand(count, *tensor.shape[1:]).clone().requires_grad_() for tensor in (z, mu, kappa)]
    others = VonMisesFisher(drawn[1], drawn[2], validate_args=False)
    cosine = sampled_cosines(drawn[0].transpose(0, 1), others, torch.Generator().manual_seed(1))
    sampled = torch.autograd.grad((a * cosine).exp().sum(), drawn)
    for name, one, truth, at in zip(("z", "mu", "kappa"), sampled, exact, (z, mu, None), strict=True):
        if at is not None:
            one, truth = tangent(one, at), tangent(truth, at)
        mean, error = one.mean(0), one.std(0) / math.sqrt(count)
        assert ((mean - truth[0]).abs() < 4.5 * error + 1e-12).all(), name
        assert truth.abs().max() > 3 * error.max(), "the test can tell"


def test_point_masses_give_the_cosines_of_their_modes():
    mu, z = directions(3, 4, dim=5), directions(6, 3, dim=5)
    cosines = sampled_cosines(z, VonMisesFisher(mu, torch.full((3, 4), math.inf, dtype=torch.float64)))
    torch.testing.assert_close(cosines, torch.einsum("kbd,bmd->kbm", z, mu))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_anchor_at_the_mode_itself(sign):
    mu = directions(3, 1, dim=4).float()
    q = VonMisesFisher(mu.clone().requires_grad_(), torch.full((3, 1), 50.0, requires_grad=True))
    z = (sign * mu[:, 0].expand(100, 3, 4)).clone().requires_grad_()
    cosine = sampled_cosines(z, q)
    assert (cosine.abs() <= 1 + 1e-6).all()
    for gradient in torch.autograd.grad(cosine.sum(), (z, q.mu, q.kappa)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("rows", [8, 2, None])
@pytest.mark.parametrize("make", [lambda k: MCInfoNCE(VMFKernel(10.0), k), lambda k: HIB(4.0, -1.0, k)])
def test_losses_expect_the_same_either_way(make, rows):
    """With sampled vectors from given noise, and with sampled cosines: own, shared and batch negatives."""
    torch.manual_seed(0)
    anchor, positive = posteriors(8, dim=5), posteriors(8, dim=5)
    negative = None if rows is None else posteriors(rows, 3, dim=5)
    loss, repeats = make(16), 150

    def noise(q):
        return None if q is None else torch.randn(16, *q.batch_shape, q.dim, dtype=torch.float64)

    formed = [
        loss(anchor, positive, negative, noise=(noise(anchor), noise(positive), noise(negative)))
        for _ in range(repeats)
    ]
    unformed = [loss(anchor, positive, negative) for _ in range(repeats)]
    assert stats.ttest_ind([x.item() for x in unformed], [x.item() for x in formed]).pvalue > 1e-3
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    first, second = (loss(anchor, positive, negative, generator=generator) for generator in generators)
    assert first == second
