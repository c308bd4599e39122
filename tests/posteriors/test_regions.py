"""Credible regions of highest density: threshold, points inside, covering caps and area, against brute force."""

import math

import pytest
import torch

from aleator import VMFMixture, VonMisesFisher
from aleator.posteriors import CredibleRegion
from aleator.posteriors import vmf as vmf_module
from aleator.posteriors.caps import log_cap_share
from aleator.special import log_sphere_area
from tests import reference
from tests.posteriors.cases import random_directions, vmf
from tests.posteriors.mixture_cases import brute_samples, grid, mixture


class TestAgainstQuadrature:
    @pytest.mark.parametrize("dim", [2, 3])
    @pytest.mark.parametrize("modes", [1, 2, 8])
    @pytest.mark.parametrize("p", [0.5, 0.95])
    def test_probability_and_area(self, dim, modes, p):
        q = mixture(3, modes=modes, dim=dim, low=3.0, high=60.0).detach()
        region = q.region(p, samples=4000)
        z, piece = grid(dim)
        log_q = q.unsqueeze(-1).log_prob(z)
        inside = log_q >= region.log_threshold.unsqueeze(-1)
        held = (log_q.exp() * inside).sum(-1) * piece
        torch.testing.assert_close(held, torch.full_like(held, p), atol=0.01, rtol=0)
        torch.testing.assert_close(region.log_area(4000).exp(), inside.double().sum(-1) * piece, rtol=0.05, atol=0.005)
        assert torch.equal(region.contains(z[:100].unsqueeze(1)), inside[:, :100].T)

    @pytest.mark.parametrize("modes", [2, 4])
    def test_no_other_region_of_that_probability_is_smaller(self, modes):
        """Of all grid points sorted by density, the first that hold p are the region."""
        q = mixture(modes=modes, dim=2, low=3.0, high=60.0).detach()
        z, piece = grid(2)
        density = q.log_prob(z).exp().sort(descending=True).values
        threshold = density[((density * piece).cumsum(0) < 0.9).sum()].log()
        assert (q.region(0.9, samples=8000).log_threshold - threshold).abs() <= 0.03


class TestCoverage:
    @pytest.mark.parametrize("dim", [2, 10, 64, 256])
    @pytest.mark.parametrize("modes", [1, 2, 8])
    def test_a_region_holds_its_share_of_samples(self, dim, modes):
        q = mixture(modes=modes, dim=dim, low=dim / 2, high=4 * dim).detach()
        region = q.region(0.95)
        z = brute_samples(q, 20_000)
        inside = region.contains(z)
        assert abs(inside.double().mean() - 0.95) <= 0.002 + reference.STANDARD_ERRORS * math.sqrt(0.95 * 0.05 / 20_000)
        covered = (z @ q.components.mu.T >= region.caps()).any(-1)
        assert (covered | ~inside).all()
        assert abs(region.probability() - 0.95) <= 0.002

    def test_weights_of_zero_and_one(self):
        parts = vmf(5, 20.0, 50.0)
        q = VMFMixture(torch.tensor([0.0, -math.inf], dtype=torch.float64), parts)
        region, single = q.region(0.9, samples=8000), parts[0].region(0.9)
        torch.testing.assert_close(region.log_threshold, single.log_threshold, atol=0.01, rtol=0)
        torch.testing.assert_close(region.log_area(8000), single.log_area(), atol=0.02, rtol=0)
        assert region.caps()[1] == 2
        rare = VMFMixture(torch.tensor([0.0, -12.0], dtype=torch.float64), parts)
        assert not rare.region(0.9).contains(parts.mu[1])


class TestOneComponent:
    @pytest.mark.parametrize("dim", [2, 3, 64, 256])
    def test_the_region_is_the_cap(self, dim):
        q = vmf(dim, 0.5, 10.0, 1e3)
        one = VMFMixture(torch.zeros(3, 1, dtype=torch.float64), q[:, None])
        for region in (q.region(0.95), one.region(0.95)):
            torch.testing.assert_close(region.caps().squeeze(-1), q.cap(0.95))
            z = random_directions(200, 3, dim)
            assert torch.equal(region.contains(z), (z * q.mu).sum(-1) >= q.cap(0.95))
        assert torch.equal(q.region(0.95).log_threshold, one.region(0.95).log_threshold)
        assert torch.equal(q.region(0.95).log_area(), one.region(0.95).log_area())

    def test_the_area_of_caps(self):
        q = vmf(3, 0.5, 10.0, 1e3)
        expected = 2 * math.pi * (1 - q.cap(0.9))  # Archimedes
        torch.testing.assert_close(q.region(0.9).log_area().exp(), expected)
        q = vmf(2, 0.5, 10.0, 1e3)
        torch.testing.assert_close(q.region(0.9).log_area().exp(), 2 * q.cap_angle(0.9))

    def test_the_area_of_tiny_caps_in_many_dimensions(self):
        """A cap of angle a in D dimensions is nearly a ball of radius a in D - 1 dimensions."""
        q = vmf(256, 1e9)
        a = q.cap_angle(0.9)
        ball = 255 * a.log() + 127.5 * math.log(math.pi) - math.lgamma(128.5)
        torch.testing.assert_close(q.region(0.9).log_area(), ball, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("dim", [2, 3, 64, 256])
    def test_the_area_in_float32_equals_that_in_float64(self, dim):
        q = vmf(dim, 10.0, 1e5, 1e7, 1e9, 1e15, 1e20, dtype=torch.float32)
        for p in (0.5, 0.95):
            exact = log_cap_share(dim, q.double().cap_angle(p)) + log_sphere_area(dim)
            for twin in (q, q.double()):
                torch.testing.assert_close(twin.region(p).log_area().double(), exact, rtol=1e-6, atol=1e-5)

    def test_point_masses_and_the_uniform_distribution(self):
        q = vmf(4, 0.0, math.inf)
        region = q.region(0.95)
        assert region.contains(q.mu).all()
        assert not region.contains(-q.mu)[1]
        assert region.log_area()[0] == pytest.approx(log_sphere_area(4), abs=0.06)


def test_levels_broadcast_and_grow():
    q = mixture(4, modes=2, dim=5)
    regions = q.region(torch.tensor([0.5, 0.8, 0.95])[:, None])
    assert regions.log_threshold.shape == (3, 4)
    assert (regions.log_threshold.diff(dim=0) < 0).all()
    assert (regions.log_area().diff(dim=0) > 0).all()


def test_two_caps_are_smaller_than_one_that_holds_both():
    """What mixtures are for: two far modes, and the one vMF that is closest to them."""
    q = VMFMixture(torch.zeros(2), VonMisesFisher(torch.eye(10)[:2], 100.0))
    assert q.region(0.95).log_area() < q.closest_vmf().region(0.95).log_area() - math.log(100)


def test_the_same_posterior_has_the_same_region():
    q = mixture(3, modes=2)
    assert torch.equal(q.region(0.9).log_threshold, q.region(0.9).log_threshold)
    assert isinstance(q.region(0.9), CredibleRegion)


def test_bad_input():
    with pytest.raises(ValueError, match=r"p = 1\.5"):
        mixture(2).region(1.5)
    with pytest.raises(ValueError, match="samples = 0"):
        mixture(2).region(0.5, samples=0)


class TestLevel:
    @pytest.mark.parametrize(("dim", "modes"), [(2, 2), (3, 1), (10, 2), (64, 4)])
    def test_latents_of_the_posterior_have_a_uniform_level(self, dim, modes):
        q = mixture(modes=modes, dim=dim, low=dim / 2, high=4 * dim).detach()
        level = q.region_level(brute_samples(q, 4000)).sort().values
        distance = (level - (torch.arange(4000) + 0.5) / 4000).abs().max()
        assert distance <= 0.01 + 1.95 / math.sqrt(4000)  # Kolmogorov and Smirnov

    def test_a_point_lies_in_the_regions_above_its_level(self):
        q = mixture(5, modes=2, dim=4)
        z = q.sample((50,), torch.Generator().manual_seed(3))
        level = q.region_level(z)
        assert level.shape == (50, 5)
        for p in (0.3, 0.8):
            assert ((level < p) == q.region(p).contains(z)).double().mean() > 0.99

    def test_one_vmf_is_exact(self):
        q = vmf(6, 3.0, 300.0)
        z = q.sample((20,), torch.Generator().manual_seed(3))
        torch.testing.assert_close(q.region_level(z), q.cap_probability((z * q.mu).sum(-1)), rtol=1e-6, atol=1e-9)
        assert (q.region_level(q.mu) == 0).all()

    def test_values_broadcast_with_the_batch(self):
        q = mixture(5, 1, modes=2, dim=4)
        z = random_directions(3, 1, 7, 4)
        whole = q.region_level(z)
        assert whole.shape == (3, 5, 7)
        torch.testing.assert_close(whole[1, 2, 3], q[2, 0].region_level(z[1, 0, 3]), atol=0.02, rtol=0)


@pytest.mark.parametrize("modes", [2, 3])
def test_caps_cover_the_region_and_are_close_around_modes_that_are_apart(modes):
    """Every point of the region is in a cap. Where modes are apart, a cap reaches as far as its own density says."""
    q = mixture(20, modes=modes, dim=3, low=3.0, high=2000.0).detach()
    region = q.region(0.95, samples=1000)
    caps = region.caps()
    z, _ = grid(3)
    cosine = torch.einsum("gd,nkd->gnk", z, q.components.mu)
    covered = (cosine >= caps - 1e-12).any(-1)
    assert covered[region.contains(z.unsqueeze(1))].all()

    apart = VMFMixture(
        torch.zeros(2).double(), VonMisesFisher(torch.eye(3).double()[:2], torch.tensor([80.0, 300.0]).double())
    )
    region = apart.region(0.95)
    height = apart.components.log_prob(apart.components.mu) + apart.log_weights
    torch.testing.assert_close(region.caps(), 1 - (height - region.log_threshold) / apart.components.kappa)


@pytest.mark.parametrize("dim", [3, 16, 64])
def test_components_apart_have_the_region_of_samples(dim, monkeypatch):
    """Without samples, the level is right to one part of 512; with samples of the same number, the edge is the same."""
    torch.manual_seed(dim)
    mu = torch.nn.functional.normalize(torch.randn(20, 3, dim, dtype=torch.float64), dim=-1)
    kappa = 50 * dim * (1 + torch.rand(20, 3, dtype=torch.float64))
    weights = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64).log()
    q = VMFMixture(weights.expand(20, 3), VonMisesFisher(mu, kappa))
    level = torch.linspace(0.3, 0.99, 20, dtype=torch.float64)
    apart = vmf_module._are_apart(q, level[:, None])
    assert apart.sum() > 10
    q, level = q[apart], level[apart]
    without = q.region(level, 512)
    torch.testing.assert_close(without.probability(2**14), level, atol=1 / 512 + 1e-3, rtol=0)
    monkeypatch.setattr(vmf_module, "_are_apart", lambda q, level: torch.zeros(len(q), dtype=torch.bool))
    assert (q.region(level, 512).log_threshold - without.log_threshold).abs().median() < 1e-3


def test_components_that_overlap_are_not_apart():
    mu = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0]]), dim=-1)
    for kappa in (0.0, 1.0, 50.0, math.inf):
        q = VMFMixture(torch.zeros(1, 2), VonMisesFisher(mu[None], kappa))
        assert not vmf_module._are_apart(q, torch.full((1, 1), 0.95, dtype=torch.float64)).any()


def test_an_empty_batch_has_no_levels():
    empty = VMFMixture(torch.zeros(0, 2), VonMisesFisher(torch.zeros(0, 2, 5), torch.zeros(0, 2)))
    assert empty.region_level(torch.zeros(0, 5)).shape == (0,)
