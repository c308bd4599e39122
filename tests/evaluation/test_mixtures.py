"""Matched components and distance of densities, against permutations made by hand and quadrature."""

import pytest
import torch

from aleator import VMFMixture, VonMisesFisher
from aleator.evaluation import match_components, total_variation
from tests.posteriors.cases import vmf
from tests.posteriors.mixture_cases import grid, mixture


@pytest.mark.parametrize("modes", [1, 2, 4])
def test_components_are_found_again_in_any_order(modes):
    true = mixture(20, modes=modes, dim=6).detach()
    generator = torch.Generator().manual_seed(1)
    order = torch.rand(20, modes, generator=generator).argsort(1)
    parts = true.components
    shuffled = VMFMixture(
        true.log_weights.gather(1, order),
        VonMisesFisher(
            parts.mu.gather(1, order[..., None].expand(-1, -1, 6)), parts.kappa.gather(1, order), validate_args=False
        ),
    )
    matched = match_components(shuffled, true)
    assert torch.equal(matched.components.mu, parts.mu)
    assert torch.equal(matched.components.kappa, parts.kappa)
    torch.testing.assert_close(matched.log_weights, true.log_weights)


def test_a_heavy_component_decides():
    """Two learned components at one true direction: the heavy one is matched with it."""
    axes = torch.eye(3)
    true = VMFMixture(torch.tensor([[0.9, 0.1]]).log(), VonMisesFisher(axes[:2], 10.0))
    learned = VMFMixture(torch.tensor([[0.05, 0.95]]).log(), VonMisesFisher(axes[[0, 0]], torch.tensor([1.0, 2.0])))
    assert match_components(learned, true).components.kappa.tolist() == [[2.0, 1.0]]


def test_another_number_of_components():
    with pytest.raises(ValueError, match=r"learned = '3 modes'.*the truth has 2"):
        match_components(mixture(2, modes=3), mixture(2, modes=2))


@pytest.mark.parametrize("dim", [2, 3])
def test_total_variation_against_quadrature(dim):
    q, p = mixture(4, modes=2, dim=dim), mixture(4, modes=3, dim=dim, seed=1)
    z, area = grid(dim)
    difference = q.unsqueeze(-1).log_prob(z).exp() - p.unsqueeze(-1).log_prob(z).exp()
    expected = difference.abs().sum(-1) * area / 2
    ours = total_variation(q, p, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours, expected.detach(), atol=0.02, rtol=0)


def test_total_variation_of_single_posteriors():
    q = vmf(4, 5.0, 50.0)
    one = VMFMixture(torch.zeros(2, 1, dtype=torch.float64), q[:, None])
    assert total_variation(one, q).max() < 1e-12
