"""Expected positivity: against quadrature and Monte Carlo, its laws and limits, mixtures, bad input."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from aleator import (
    AcceptanceKernel,
    VMFKernel,
    VonMisesFisher,
    ZonalKernel,
    log_positivity,
    pairwise_log_positivity,
)
from aleator.special.bessel import log_growth
from tests import reference
from tests.matching.posterior_pairs import COSINES, INF, KAPPAS, at_cosines, some_posteriors


class TestAccuracy:
    @pytest.mark.parametrize("dim", [2, 3, 10, 64, 1024])
    @pytest.mark.parametrize("kappa_pos", [1.0, 20.0, 200.0])
    def test_against_independent_quadrature(self, dim, kappa_pos):
        for kappa1, kappa2 in KAPPAS:
            expected = np.array([reference.log_positivity(dim, c, kappa1, kappa2, kappa_pos) for c in COSINES])
            below_peak = np.exp(expected - expected[-1])
            for dtype in (torch.float64, torch.float32):
                ours = log_positivity(*at_cosines(dim, COSINES, kappa1, kappa2, dtype), VMFKernel(kappa_pos))
                error = np.abs(np.expm1(ours.double().numpy() - expected))
                near, far = below_peak >= 1e-2, below_peak >= 1e-5
                assert error[near].max() <= (1e-4 if dtype == torch.float32 else 1e-9), (kappa1, kappa2, dtype)
                assert error[far].max() <= (1e-2 if dtype == torch.float32 else 1e-9), (kappa1, kappa2, dtype)
                assert torch.isfinite(ours).all()

    @pytest.mark.parametrize(("dim", "kappas"), [(2, (8.0, 3.0)), (3, (16.0, 40.0)), (10, (20.0, 25.0))])
    @pytest.mark.parametrize("kind", [VMFKernel, AcceptanceKernel])
    def test_against_monte_carlo(self, dim, kappas, kind):
        """r = E g(z.z') / E g over uniform latents, with latents drawn by brute force."""
        rng, kernel = np.random.default_rng(dim), kind(10.0)
        for cosine in (0.3, 0.9):
            q1, q2 = at_cosines(dim, cosine, *kappas)
            z1, z2 = (reference.sample_vmf(rng, q.mu.numpy(), q.kappa.item(), 100_000) for q in (q1, q2))
            g = kernel.log_values(dim, torch.as_tensor((z1 * z2).sum(1))).exp()
            t = torch.as_tensor(np.cos((np.arange(4000) + 0.5) * math.pi / 4000))
            weight = (1 - t**2) ** ((dim - 2) / 2)
            uniform = (kernel.log_values(dim, t).exp() * weight).sum() / weight.sum()
            estimate, error = g.mean() / uniform, g.std() / uniform / math.sqrt(len(g))
            assert abs(log_positivity(q1, q2, kernel).exp() - estimate) <= reference.STANDARD_ERRORS * error

    @pytest.mark.parametrize(("dim", "kappa_pos"), [(2, 5.0), (3, 20.0), (10, 20.0), (16, 8.0)])
    def test_the_acceptance_kernel_against_quadrature(self, dim, kappa_pos):
        offset = log_growth(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64)).item()
        log_g = lambda t: -np.logaddexp(0, offset - kappa_pos * t)  # noqa: E731
        for kappa in (0.5, 16.0, 32.0):
            expected = [reference.log_kernel_positivity(dim, c, kappa, log_g) for c in COSINES]
            ours = log_positivity(*at_cosines(dim, COSINES, INF, kappa), AcceptanceKernel(kappa_pos))
            expected = torch.tensor(expected, dtype=torch.float64)
            near = expected > expected[-1] + math.log(1e-5)
            torch.testing.assert_close(ours[near], expected[near], rtol=0, atol=1e-8)

    def test_directions_normalised_in_float32(self):
        """Directions that are normalised in float32 have lengths off by 1e-7, which kappa_pos multiplies."""
        q1, q2 = some_posteriors(50, 10), some_posteriors(50, 10, seed=1)
        exact = log_positivity(q1, q2, VMFKernel(200.0))
        single = (VonMisesFisher(q.mu.float(), q.kappa.float()) for q in (q1, q2))
        close = log_positivity(*single, VMFKernel(200.0))
        assert close.dtype == torch.float32
        assert (close.double() - exact).abs().max() < 1e-4


class TestLaws:
    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(INF)])
    def test_r_is_symmetric(self, kernel):
        q1, q2 = some_posteriors(6, 8), some_posteriors(7, 8, seed=1)
        r = pairwise_log_positivity(q1, q2, kernel)
        torch.testing.assert_close(r, pairwise_log_positivity(q2, q1, kernel).T, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("kernel", [VMFKernel(15.0), AcceptanceKernel(15.0)])
    @pytest.mark.parametrize("dim", [2, 3, 10, 50])
    def test_r_integrates_to_one_over_the_sphere(self, dim, kernel):
        """r is a density ratio. The integral over mu' is one over the cosine with weight w."""
        x, w = np.polynomial.legendre.leggauss(200)
        angle = math.pi / 2 * (1 + x)
        weight = torch.as_tensor(w * np.sin(angle) ** (dim - 2))
        for kappas in ((3.0, 20.0), (30.0, 30.0)):
            r = log_positivity(*at_cosines(dim, np.cos(angle), *kappas), kernel).exp()
            assert (r * weight).sum().item() / weight.sum().item() == pytest.approx(1, abs=1e-8)

    @pytest.mark.parametrize("dim", [2, 3, 16, 128])
    def test_point_masses_give_the_infonce_similarity(self, dim):
        """log r - kappa_pos c is the same constant for ALL cosines, up to the far side of the sphere."""
        c = torch.linspace(-1, 1, 101, dtype=torch.float64)
        for kappa_pos in (1.0, 20.0, 200.0):
            log_r = log_positivity(*at_cosines(dim, c, INF, INF), VMFKernel(kappa_pos))
            rest = log_r - kappa_pos * c
            constant = -log_growth(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64))
            assert (rest - constant).abs().max() < 1e-6

    def test_large_kappa_approaches_a_point_mass(self):
        c = torch.linspace(0, 1, 11, dtype=torch.float64)
        limit = log_positivity(*at_cosines(10, c, INF, INF), VMFKernel(20.0))
        gaps = [
            (log_positivity(*at_cosines(10, c, k, k), VMFKernel(20.0)) - limit).abs().max().item()
            for k in (1e3, 1e4, 1e5)
        ]
        assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.2)  # first order in 1/kappa
        assert gaps[2] == pytest.approx(gaps[1] / 10, rel=0.1)

    @pytest.mark.parametrize("dim", [2, 3, 10, 64])
    def test_large_kappa_pos_approaches_the_expected_likelihood_kernel(self, dim):
        """Its closed form is S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|)."""
        q1, q2 = some_posteriors(20, dim, high=15.0), some_posteriors(20, dim, high=15.0, seed=1)
        limit = log_positivity(q1, q2, VMFKernel(INF))
        gaps = [(log_positivity(q1, q2, VMFKernel(k)) - limit).abs().max().item() for k in (1e3, 1e4)]
        assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.2)
        log_c = lambda k: reference.log_normaliser(dim, k)  # noqa: E731
        for i in range(3):
            k1, k2 = q1.kappa[i].item(), q2.kappa[i].item()
            both = (q1.kappa[i] * q1.mu[i] + q2.kappa[i] * q2.mu[i]).norm().item()
            assert limit[i].item() == pytest.approx(log_c(k1) + log_c(k2) - log_c(both) - log_c(0.0), abs=1e-11)

    def test_expected_likelihood_kernel_with_point_masses(self):
        q1, q2 = at_cosines(5, [0.2, 1.0], 7.0, INF)
        expected = q1.log_prob(q2.mu) - reference.log_normaliser(5, 0.0)
        torch.testing.assert_close(log_positivity(q1, q2, VMFKernel(INF)), expected)
        both = log_positivity(*at_cosines(5, [0.2, 1.0], INF, INF), VMFKernel(INF))
        assert both.tolist() == [-INF, INF]

    @pytest.mark.parametrize(
        ("shape1", "shape2"), [((6, 1), (1, 7)), ((5,), (5,)), ((6, 1), (6, 3)), ((2, 4, 1), (2, 1, 3)), ((), (4,))]
    )
    @pytest.mark.parametrize("masses", [False, True])
    def test_expected_likelihood_kernel_of_a_table_equals_single_pairs(self, shape1, shape2, masses):
        """Values and gradients of a table against the closed form, written out for each pair."""
        dim, order = 6, 2.0
        generator = torch.Generator().manual_seed(0)

        def draw(shape: tuple[int, ...]) -> list[torch.Tensor]:
            raw = torch.randn(*shape, dim, generator=generator, dtype=torch.float64)
            kappa = torch.rand(shape, generator=generator, dtype=torch.float64) * 50
            if masses:
                kappa.view(-1)[-1], kappa.view(-1)[0] = 0.0, INF
            return [raw.requires_grad_(), kappa.requires_grad_()]

        def literal(mu1, kappa1, mu2, kappa2):
            if torch.isinf(kappa1) and torch.isinf(kappa2):
                return torch.where(mu1 @ mu2 >= 1, INF, -INF)
            if torch.isinf(kappa1):
                return kappa2 * (mu1 @ mu2) - log_growth(order, kappa2)
            if torch.isinf(kappa2):
                return kappa1 * (mu1 @ mu2) - log_growth(order, kappa1)
            both = (kappa1 * mu1 + kappa2 * mu2).norm()
            return log_growth(order, both) - log_growth(order, kappa1) - log_growth(order, kappa2)

        leaves = [*draw(shape1), *draw(shape2)]
        mu1, mu2 = (torch.nn.functional.normalize(raw, dim=-1) for raw in leaves[::2])
        kappa1, kappa2 = leaves[1::2]
        ours = log_positivity(VonMisesFisher(mu1, kappa1), VonMisesFisher(mu2, kappa2), VMFKernel(INF))
        shape = torch.broadcast_shapes(shape1, shape2)
        mus = [mu.expand(*shape, dim).reshape(-1, dim) for mu in (mu1, mu2)]
        kappas = [kappa.expand(shape).reshape(-1) for kappa in (kappa1, kappa2)]
        pairs = zip(mus[0], kappas[0], mus[1], kappas[1], strict=True)
        theirs = torch.stack([literal(*pair) for pair in pairs]).view(shape)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        grads = [
            torch.autograd.grad((weight * x)[x.isfinite()].sum(), leaves, retain_graph=True, materialize_grads=True)
            for x in (ours, theirs)
        ]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(INF)])
    def test_r_is_one_for_a_uniform_posterior(self, kernel):
        r = log_positivity(*at_cosines(10, COSINES, 0.0, 50.0), kernel)
        torch.testing.assert_close(r, torch.zeros_like(r), rtol=0, atol=1e-12)

    def test_kernel_and_posterior_can_change_places(self):
        """With lambda_n = A_n(kappa_pos), the three concentrations enter r alike."""
        q1, q2 = at_cosines(6, COSINES, 9.0, 30.0)
        swapped = log_positivity(*at_cosines(6, COSINES, 9.0, 20.0), VMFKernel(30.0))
        torch.testing.assert_close(log_positivity(q1, q2, VMFKernel(20.0)), swapped, rtol=0, atol=1e-9)

    def test_a_zonal_kernel_of_exp_equals_the_vmf_kernel(self):
        """Down to 1e-5 of the maximum: an arbitrary function has no tail."""
        c = torch.linspace(-1, 1, 60, dtype=torch.float64)
        for kappas in ((2.0, 9.0), (30.0, 30.0), (100.0, 40.0)):
            ours = log_positivity(*at_cosines(10, c, *kappas), ZonalKernel(lambda t: torch.exp(20 * t)))
            exact = log_positivity(*at_cosines(10, c, *kappas), VMFKernel(20.0))
            near = exact > exact[-1] + math.log(1e-5)
            torch.testing.assert_close(ours[near], exact[near], rtol=0, atol=1e-8)


class TestMixtures:
    @staticmethod
    def mixture(count: int, parts: int, dim: int, seed: int) -> MixtureSameFamily:
        flat = some_posteriors(count * parts, dim, seed=seed)
        components = VonMisesFisher(flat.mu.view(count, parts, dim), flat.kappa.view(count, parts))
        logits = torch.randn(count, parts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return MixtureSameFamily(Categorical(logits=logits), components)

    def test_r_of_mixtures_is_the_weighted_sum(self):
        """Equation (3) is bilinear in the two posteriors."""
        m1, m2, kernel = self.mixture(4, 3, 8, 0), self.mixture(5, 2, 8, 1), VMFKernel(20.0)
        table = pairwise_log_positivity(m1, m2, kernel).exp()
        w1, w2 = m1.mixture_distribution.probs, m2.mixture_distribution.probs
        for i in range(4):
            for j in range(5):
                parts = pairwise_log_positivity(m1.component_distribution[i], m2.component_distribution[j], kernel)
                torch.testing.assert_close(table[i, j], w1[i] @ parts.exp() @ w2[j])

    def test_a_mixture_with_a_single_posterior(self):
        m, q, kernel = self.mixture(4, 3, 8, 0), some_posteriors(4, 8, seed=2), VMFKernel(20.0)
        table = pairwise_log_positivity(m, q, kernel)
        assert table.shape == (4, 4)
        torch.testing.assert_close(log_positivity(m, q, kernel), table.diagonal())
        torch.testing.assert_close(log_positivity(q, m, kernel), table.diagonal())
        one = MixtureSameFamily(Categorical(torch.ones(4, 1).double()), q[:, None])
        torch.testing.assert_close(pairwise_log_positivity(one, q, kernel), pairwise_log_positivity(q, q, kernel))


Q = some_posteriors(3, 4)
BAD_INPUT = {
    "another dimension": (lambda: log_positivity(Q, some_posteriors(3, 5), VMFKernel()), "q2 = .*5.*4"),
    "another dtype": (
        lambda: log_positivity(Q, VonMisesFisher(Q.mu.float(), Q.kappa.float()), VMFKernel()),
        "q2 = torch.float32.*cast",
    ),
    "no posterior": (lambda: log_positivity(Normal(0.0, 1.0), Q, VMFKernel()), "q1 = 'Normal'.*VonMisesFisher"),
    "a mixture of normals": (
        lambda: log_positivity(
            Q, MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.zeros(2), 1.0)), VMFKernel()
        ),
        "q2 = 'MixtureSameFamily'",
    ),
    "no kernel": (lambda: log_positivity(Q, Q, 20.0), "kernel = 20.0.*VMFKernel"),
    "two batch dimensions": (lambda: pairwise_log_positivity(Q[:, None], Q, VMFKernel()), r"q1 = \(3, 1\).*flatten"),
    "one term": (lambda: log_positivity(Q, Q, VMFKernel(), terms=1), "terms = 1"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0), VMFKernel(math.inf)], ids=repr)
def test_nan_stays_with_its_pairs(kernel):
    mu = torch.nn.functional.normalize(torch.randn(4, 1, 10, dtype=torch.float64), dim=-1)
    kappa = torch.tensor([0.5, 20.0, 30.0, 40.0], dtype=torch.float64)[:, None]
    clean = log_positivity(VonMisesFisher(mu, kappa), VonMisesFisher(mu.view(1, 4, 10), kappa.view(1, 4)), kernel)
    dirty_mu, dirty_kappa = mu.clone(), kappa.clone()
    dirty_mu[1], dirty_kappa[2] = math.nan, math.nan
    dirty = VonMisesFisher(dirty_mu, dirty_kappa, validate_args=False)
    log_r = log_positivity(dirty, VonMisesFisher(mu.view(1, 4, 10), kappa.view(1, 4)), kernel)
    assert log_r.isnan().all(1).tolist() == [False, True, True, False]
    torch.testing.assert_close(log_r[[0, 3]], clean[[0, 3]])
