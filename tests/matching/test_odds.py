"""The odds of a match: against Monte Carlo, in the limits, and with gradients."""

import math

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel, VonMisesFisher, ZonalKernel
from aleator.matching import log_match_odds, log_positivity
from tests.reference import STANDARD_ERRORS


def pair(dim: int = 10, cosine: float = 0.6, kappa: tuple[float, float] = (16.0, 30.0), dtype=torch.float64):
    mu = torch.zeros(2, dim, dtype=dtype)
    mu[:, 0] = torch.tensor([1.0, cosine])
    mu[1, 1] = math.sqrt(1 - cosine**2)
    return VonMisesFisher(mu[0], torch.tensor(kappa[0], dtype=dtype)), VonMisesFisher(
        mu[1], torch.tensor(kappa[1], dtype=dtype)
    )


@pytest.mark.parametrize("kernel", [AcceptanceKernel(20.0), VMFKernel(4.0)], ids=["acceptance", "vmf"])
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_the_probability_is_that_of_sampled_latents(dim, kernel):
    q1, q2 = pair(dim)
    generator = torch.Generator().manual_seed(1)
    z1, z2 = (q.sample((100_000,), generator) for q in (q1, q2))
    match = kernel.log_values(dim, (z1 * z2).sum(-1)).exp()
    error = match.std() / math.sqrt(len(match))
    assert abs(log_match_odds(q1, q2, kernel).sigmoid() - match.mean()) < STANDARD_ERRORS * error


@pytest.mark.parametrize(
    "kernel", [AcceptanceKernel(20.0), VMFKernel(7.0), ZonalKernel(lambda t: torch.exp(3 * t - 4))]
)
@pytest.mark.parametrize("dim", [2, 5, 10])
def test_the_mean_of_a_kernel_over_uniform_latents(dim, kernel):
    """Point masses: rho is g itself, so A = g(t) / r(t) for every t."""
    q1, q2 = (VonMisesFisher(q.mu, torch.full_like(q.kappa, 1e9)) for q in pair(dim, 0.3))
    log_g = kernel.log_values(dim, torch.tensor(0.3, dtype=torch.float64))
    torch.testing.assert_close(log_g - log_positivity(q1, q2, kernel), kernel.log_mean(dim), atol=1e-5, rtol=1e-5)


def test_sharp_posteriors_under_the_papers_rule_have_the_odds_of_its_densities():
    """g / (1 - g) = p / u, whose logarithm is kappa_pos t - c: the paper's vMF kernel, up to a factor."""
    sharp = [[VonMisesFisher(q.mu, torch.full_like(q.kappa, 1e8)) for q in pair(10, t)] for t in (0.2, 0.5, 0.9)]
    odds = torch.stack([log_match_odds(*q, AcceptanceKernel(20.0)) for q in sharp])
    torch.testing.assert_close(odds.diff(), 20 * torch.tensor([0.3, 0.4], dtype=torch.float64), atol=2e-3, rtol=0)


def test_seldom_matches_have_the_odds_of_r():
    q1, q2 = pair(10, -0.5)
    kernel = AcceptanceKernel(20.0)
    expected = log_positivity(q1, q2, kernel) + kernel.log_mean(10)
    torch.testing.assert_close(log_match_odds(q1, q2, kernel), expected, atol=1e-3, rtol=0)


def test_equal_point_masses_have_finite_odds_and_slopes():
    mu = torch.eye(10)[:1].requires_grad_()
    kappa = torch.tensor([1e9], requires_grad=True)
    q = VonMisesFisher(mu, kappa, validate_args=False)
    for kernel in (VMFKernel(20.0), AcceptanceKernel(20.0)):
        odds = log_match_odds(q, q, kernel)
        assert 8 < odds.item() < 21
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(odds.sum(), (mu, kappa)))


@pytest.mark.parametrize("cosine", [-0.2, 0.5, 0.99])
@pytest.mark.parametrize("kernel", [AcceptanceKernel(20.0), VMFKernel(20.0)], ids=["acceptance", "vmf"])
def test_gradients(kernel, cosine):
    q1, q2 = pair(10, cosine)
    kappas = [q.kappa.clone().requires_grad_() for q in (q1, q2)]
    direction = q1.mu.clone().requires_grad_()

    def odds(direction, kappa1, kappa2):
        mu = torch.nn.functional.normalize(direction, dim=-1)
        first = VonMisesFisher(mu, kappa1, validate_args=False)
        return log_match_odds(first, VonMisesFisher(q2.mu, kappa2, validate_args=False), kernel)

    assert torch.autograd.gradcheck(odds, (direction, *kappas), atol=1e-6, rtol=1e-4)


def test_float32_keeps_the_digits_of_odds_close_to_certain():
    exact, rounded = (
        log_match_odds(*pair(2, 1.0, (5e3, 5e3), dtype), VMFKernel(20.0)) for dtype in (torch.float64, torch.float32)
    )
    assert exact > 3
    torch.testing.assert_close(rounded.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(VMFKernel(math.inf), "no two latents match"), (ZonalKernel(lambda t: torch.exp(t)), "reaches 2.718, above 1")],
)
def test_kernels_that_are_no_probabilities_are_refused(kernel, message):
    with pytest.raises(ValueError, match=message):
        log_match_odds(*pair(), kernel)
