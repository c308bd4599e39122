"""Coefficients by quadrature: their errors, and the rule itself."""

from functools import partial

import pytest
import torch
from scipy import special

from aleator import VMFKernel, ZonalKernel
from aleator.matching.quadrature import angle_quadrature, zonal_moments


@pytest.mark.parametrize("dim", [2, 5, 10, 32, 128])
@pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
def test_errors_are_within_the_stated_bounds(dim, kappa_pos):
    """Against the closed form of the vMF kernel."""
    kernel = ZonalKernel(lambda t: torch.exp(kappa_pos * (t - 1)))
    lam, errors = zonal_moments(partial(kernel.log_values, dim), dim, 200)
    assert ((lam - VMFKernel(kappa_pos).coefficients(dim, 200)).abs() <= errors).all()


@pytest.mark.parametrize("dim", [2, 3, 10, 100])
def test_moments_of_the_uniform_distribution(dim):
    """E t^2 = 1/D and E t^4 = 3/(D (D+2)) for one coordinate of a uniform direction."""
    t, log_weights = angle_quadrature(dim)
    weights = torch.softmax(log_weights, 0)
    assert (weights @ t**2).item() == pytest.approx(1 / dim, rel=1e-12)
    assert (weights @ t**4).item() == pytest.approx(3 / (dim * (dim + 2)), rel=1e-12)
    total = torch.logsumexp(log_weights, 0).exp().item() * torch.pi / (2 * 96)
    assert total == pytest.approx(special.beta((dim - 1) / 2, 0.5), rel=1e-12)


def test_what_inference_mode_computed_serves_training():
    """Nodes are cached. Tensors of inference mode could not be used where gradients are needed."""
    angle_quadrature.cache_clear()
    with torch.inference_mode():
        angle_quadrature(5)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    lam, _ = zonal_moments(lambda t: weight * t, 5, 4)
    lam[1].backward()
    assert weight.grad > 0
