"""Mixtures of vMFs: density, mean, mode, certainty, sampling and gradients, against quadrature and brute force."""

import math

import pytest
import torch

from aleator import VMFMixture, VonMisesFisher
from tests import reference
from tests.posteriors.cases import random_directions, vmf
from tests.posteriors.mixture_cases import brute_samples, grid, mixture
from tests.posteriors.test_batch import SAME_ON_BOTH

INF = math.inf


class TestDensity:
    @pytest.mark.parametrize("dim", [2, 3, 16, 64, 256])
    @pytest.mark.parametrize("modes", [1, 2, 8])
    def test_against_the_literal_sum(self, dim, modes):
        q = mixture(modes=modes, dim=dim, low=dim / 4, high=4 * dim)
        z = random_directions(5, dim, seed=1)
        for point, ours in zip(z, q.log_prob(z), strict=True):
            parts = [
                math.log(w) + reference.log_normaliser(dim, k) + k * (m @ point).item()
                for w, m, k in zip(q.weights.tolist(), q.components.mu, q.components.kappa.tolist(), strict=True)
            ]
            top = max(parts)
            assert ours.item() == pytest.approx(top + math.log(sum(math.exp(p - top) for p in parts)), rel=1e-10)

    @pytest.mark.parametrize("dim", [2, 3])
    @pytest.mark.parametrize("modes", [1, 3, 8])
    def test_integrates_to_one(self, dim, modes):
        z, area = grid(dim)
        assert (mixture(modes=modes, dim=dim).log_prob(z).exp().sum() * area).item() == pytest.approx(1, abs=1e-6)

    def test_weights_of_zero_and_one(self):
        q = vmf(5, 3.0, 40.0)
        sure = VMFMixture(torch.tensor([0.0, -INF], dtype=torch.float64), q)
        z = random_directions(4, 5, seed=2)
        torch.testing.assert_close(sure.log_prob(z), q[0].log_prob(z))
        torch.testing.assert_close(sure.weights, torch.tensor([1.0, 0.0]).double())
        nearly = VMFMixture(torch.tensor([0.0, -700.0], dtype=torch.float64), q)
        torch.testing.assert_close(nearly.log_prob(z), q[0].log_prob(z))

    def test_a_point_mass_without_weight_does_not_count(self):
        parts = vmf(3, 5.0, INF)
        q = VMFMixture(torch.tensor([0.0, -INF], dtype=torch.float64), parts)
        torch.testing.assert_close(q.log_prob(parts.mu[1]), parts[0].log_prob(parts.mu[1]))
        heavy = VMFMixture(torch.tensor([0.0, -5.0], dtype=torch.float64), parts)
        assert heavy.log_prob(parts.mu[1]) == INF
        torch.testing.assert_close(heavy.mode, parts.mu[1])

    def test_gradients(self):
        q = mixture(4, modes=3, dim=5)
        leaves = q.log_weights.detach().clone(), q.components.mu.detach().clone(), q.components.kappa.detach().clone()
        z = random_directions(4, 5, seed=3)

        def density(logits, mu, kappa):
            return VMFMixture(logits, VonMisesFisher(mu, kappa, validate_args=False), validate_args=False).log_prob(z)

        assert torch.autograd.gradcheck(density, [leaf.requires_grad_() for leaf in leaves])


class TestOneComponent:
    """A mixture of one is the vMF itself."""

    @pytest.mark.parametrize("dim", [2, 10, 256])
    def test_equals_the_vmf(self, dim):
        q = vmf(dim, 0.0, 1e-3, 5.0, 300.0, 1e6)
        one = VMFMixture(torch.full((5, 1), -3.0, dtype=torch.float64), q[:, None])
        z = random_directions(7, 5, dim)
        assert torch.equal(one.weights, torch.ones(5, 1, dtype=torch.float64))
        assert torch.equal(one.log_prob(z), q.log_prob(z))
        assert torch.equal(one.entropy(), q.entropy())
        assert torch.equal(torch.stack(one.entropy_bounds()), q.entropy().expand(2, 5))
        torch.testing.assert_close(one.mean, q.mean)
        torch.testing.assert_close(one.mode, q.mode)
        torch.testing.assert_close(one.certainty, q.certainty)
        torch.testing.assert_close(one.closest_vmf().mu[1:], q.mu[1:])
        torch.testing.assert_close(one.closest_vmf().kappa[2:], q.kappa[2:], rtol=1e-6, atol=0)
        other = vmf(dim, 1.0, 2.0, 3.0, 4.0, 5.0, seed=1)
        expected = torch.distributions.kl_divergence(q, other)
        torch.testing.assert_close(torch.distributions.kl_divergence(one, other), expected)
        torch.testing.assert_close(
            torch.distributions.kl_divergence(q, VMFMixture(one.log_weights, other[:, None])), expected
        )

    def test_every_vmf_is_a_mixture_of_one(self):
        q = vmf(4, 1.0, 2.0)
        assert q.modes == 1
        assert q.components.batch_shape == (2, 1)
        assert torch.equal(q.log_weights, torch.zeros(2, 1, dtype=torch.float64))


class TestCertainty:
    @pytest.mark.parametrize("dim", [2, 3])
    @pytest.mark.parametrize("modes", [1, 2, 8])
    def test_is_the_integral_of_the_squared_density(self, dim, modes):
        q = mixture(modes=modes, dim=dim)
        z, area = grid(dim)
        sphere = 2 * math.pi if dim == 2 else 4 * math.pi
        expected = math.log(sphere * (2 * q.log_prob(z)).exp().sum().item() * area)
        assert q.certainty.item() == pytest.approx(expected, abs=1e-6)

    def test_increases_with_kappa(self):
        q = vmf(10, 0.0, 0.1, 1.0, 10.0, 1e3, 1e6, INF)
        assert (q.certainty.diff() > 0).all()
        assert q.certainty[0].item() == pytest.approx(0, abs=1e-15)
        assert q.certainty[-1] == INF

    def test_modes_far_apart_cost_a_factor(self):
        parts = VonMisesFisher(torch.eye(8)[:2], 1e4)
        q = VMFMixture(torch.zeros(2), parts)
        assert (parts[0].certainty - q.certainty).item() == pytest.approx(math.log(2), abs=1e-5)

    def test_gradients(self):
        q = mixture(3, modes=2, dim=4)
        by_mu, by_kappa = torch.autograd.grad(q.certainty.sum(), (q.components.mu, q.components.kappa))
        assert (by_kappa > 0).any()
        assert torch.isfinite(by_mu).all()


class TestMeanAndMode:
    @pytest.mark.parametrize("dim", [2, 3])
    def test_against_quadrature(self, dim):
        q = mixture(6, modes=3, dim=dim)
        z, area = grid(dim)
        density = q.unsqueeze(-1).log_prob(z).exp()  # (6, N)
        torch.testing.assert_close(q.mean.detach(), (density @ z * area).detach(), atol=1e-5, rtol=1e-5)
        highest = density.amax(1).log()
        assert (q.log_prob(q.mode) >= highest - 1e-9).all()

    def test_the_mode_of_a_heavy_component(self):
        parts = VonMisesFisher(torch.eye(5)[:2], 200.0)
        q = VMFMixture(torch.tensor([1.0, 0.0]), parts)
        torch.testing.assert_close(q.mode, parts.mu[0], atol=1e-5, rtol=0)

    def test_two_wide_components_have_their_mode_between_them(self):
        parts = VonMisesFisher(torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [1.0, -0.2]]), dim=-1), 3.0)
        q = VMFMixture(torch.zeros(2), parts)
        torch.testing.assert_close(q.mode, torch.tensor([1.0, 0.0]), atol=1e-4, rtol=0)

    @pytest.mark.parametrize("share", [0.3, 0.9, 0.99, 0.999, 1.02])
    @pytest.mark.parametrize("tilt", [0.0, 1e-3, 0.3])
    def test_the_mode_where_two_modes_almost_merge(self, share, tilt):
        """A plain ascent takes some 20 / (1 - share) steps there, where kappa sin^2 = share."""
        kappa, angle = share / math.sin(0.2) ** 2, torch.tensor([0.2, -0.2], dtype=torch.float64)
        parts = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], -1), kappa)
        q = VMFMixture(torch.tensor([tilt, 0.0], dtype=torch.float64), parts)
        angle = torch.tensor(0.2, dtype=torch.float64)  # of the ascent from the heavier mode, by Newton's method
        for _ in range(50):
            angle.requires_grad_()
            log_q = q.log_prob(torch.stack([angle.cos(), angle.sin()]))
            (slope,) = torch.autograd.grad(log_q, angle, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, angle)
            angle = (angle + slope / curvature.abs().clamp_min(1e-3)).detach()
        found = q.mode
        assert torch.atan2(found[1], found[0]).abs().item() == pytest.approx(angle.abs().item(), abs=1e-6)

    def test_the_closest_vmf_has_the_same_mean(self):
        q = mixture(5, modes=3, dim=6)
        torch.testing.assert_close(q.closest_vmf().mean, q.mean)

    @pytest.mark.parametrize("dim", [2, 10, 256])
    def test_the_closest_vmf_of_one_sharp_component_is_it(self, dim):
        for dtype in (torch.float32, torch.float64):
            q = vmf(dim, 0.5, 1e4, 1e8, 1e12, 1e20, INF, dtype=dtype)
            closest = VMFMixture(torch.zeros(6, 2, dtype=dtype), q[:, None].expand((6, 2))).closest_vmf()
            torch.testing.assert_close(closest.kappa, q.kappa, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)

    def test_the_closest_vmf_in_float32_is_that_in_float64(self):
        mu = random_directions(5, 2, 64)
        mu[:, 1] = torch.nn.functional.normalize(mu[:, 0] + 1e-3 * mu[:, 1], dim=-1)
        kappa = torch.tensor([[1e5, 1e6], [1e7, 1e7], [1e8, 1e4], [1e9, 1e9], [INF, 1e8]], dtype=torch.float64)
        q = VMFMixture(torch.zeros(5, 2), VonMisesFisher(mu.float(), kappa.float()))
        torch.testing.assert_close(q.closest_vmf().kappa, q.double().closest_vmf().kappa.float(), rtol=1e-5, atol=0)


class TestSampling:
    @pytest.mark.parametrize(("dim", "modes"), [(2, 2), (3, 3), (16, 8), (64, 2), (256, 4)])
    def test_moments(self, dim, modes):
        """Mean, and mean of the squared cosines with fixed directions, against another sampler."""
        q = mixture(modes=modes, dim=dim, low=dim / 2, high=3 * dim)
        ours = q.sample((40_000,), torch.Generator().manual_seed(0))
        theirs = brute_samples(q, 40_000)
        axes = torch.cat([q.components.mu.detach(), random_directions(3, dim, seed=5)])
        for function in (lambda t: t, lambda t: t.square(), lambda t: (t > 0.5).double()):
            a, b = function(ours @ axes.T), function(theirs @ axes.T)
            error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
            assert ((a.mean(0) - b.mean(0)).abs() <= reference.STANDARD_ERRORS * error + 1e-12).all()

    def test_components_are_drawn_by_their_weights(self):
        parts = VonMisesFisher(torch.eye(4)[:3], 1e6)
        q = VMFMixture(torch.tensor([0.0, 0.25, 0.75]).log(), parts)
        nearest = (q.sample((20_000,), torch.Generator().manual_seed(0)) @ parts.mu.T).argmax(-1)
        share = torch.bincount(nearest, minlength=3) / 20_000
        assert share[0] == 0
        assert abs(share[1] - 0.25) <= reference.STANDARD_ERRORS * math.sqrt(0.25 * 0.75 / 20_000)

    def test_drawn_components(self):
        q = mixture(3, modes=2, dim=4)
        drawn = q.draw_components((5000,), torch.Generator().manual_seed(0))
        assert drawn.batch_shape == (5000, 3)
        first = (drawn.mu == q.components.mu[:, 0]).all(-1)
        assert torch.equal(drawn.kappa, torch.where(first, q.components.kappa[:, 0], q.components.kappa[:, 1]))
        torch.testing.assert_close(first.double().mean(0), q.weights[:, 0].detach(), atol=0.03, rtol=0)

    def test_shapes_and_repetition(self):
        q = mixture(4, 2, modes=3, dim=5)
        assert q.sample().shape == (4, 2, 5)
        assert q.rsample((7, 1)).shape == (7, 1, 4, 2, 5)
        z, log_weights = q.weighted_rsample((6,))
        assert z.shape == (6, 4, 2, 3, 5)
        assert torch.equal(log_weights, q.log_weights)
        first, again = (q.sample((3,), torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(first, again)
        assert not q.sample((2,)).requires_grad

    @pytest.mark.parametrize("way", ["rsample", "weighted_rsample"])
    @pytest.mark.parametrize("dim", [2, 3, 5])
    def test_gradients_are_unbiased(self, way, dim):
        """The gradient of E f, f(z) = exp(2 a.z) + b.z, against the gradient of its closed form."""
        q = mixture(modes=2, dim=dim, low=2.0, high=5.0, seed=3)
        a, b = random_directions(2, dim, seed=4)
        leaves = [*self.leaves(q)]

        def growth(kappa):
            return -VonMisesFisher(a, kappa, validate_args=False).log_normaliser

        parts = q.components
        length = (parts.kappa.unsqueeze(-1) * parts.mu + 2 * a).norm(dim=-1)
        exponential = (q.weights * (growth(length) - growth(parts.kappa)).exp()).sum()
        exact = torch.autograd.grad(exponential + q.mean @ b, leaves)

        blocks = []
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            fresh = mixture(modes=2, dim=dim, low=2.0, high=5.0, seed=3)
            if way == "rsample":
                z = fresh.rsample((1000,), generator)
                value = ((2 * z @ a).exp() + z @ b).mean()
            else:
                z, log_weights = fresh.weighted_rsample((1000,), generator)
                value = (((2 * z @ a).exp() + z @ b) * log_weights.exp()).sum(-1).mean()
            blocks.append(torch.autograd.grad(value, [*self.leaves(fresh)]))
        for number, truth in enumerate(exact):
            values = torch.stack([block[number] for block in blocks])
            mean, error = values.mean(0), values.std(0) / math.sqrt(len(values))
            direction = mixture(modes=2, dim=dim, seed=3).components.mu.detach() if number == 1 else None
            if direction is not None:  # only gradients along the sphere have a meaning
                mean, truth = (g - (g * direction).sum(-1, keepdim=True) * direction for g in (mean, truth))
            assert ((mean - truth).abs() <= 4.5 * error + 1e-9).all(), number

    @staticmethod
    def leaves(q: VMFMixture):
        logits = q.log_weights.grad_fn.next_functions[0][0]
        while not hasattr(logits, "variable"):
            logits = logits.next_functions[0][0]
        return logits.variable, q.components.mu, q.components.kappa


class TestBatch:
    @pytest.mark.parametrize("case", SAME_ON_BOTH)
    def test_every_component_follows_the_operation(self, case):
        on_batch, _ = SAME_ON_BOTH[case]
        q = mixture(4, 5, modes=2)
        derived = on_batch(q)
        assert isinstance(derived, VMFMixture)
        assert derived.modes == 2
        assert derived._validate_args is q._validate_args
        for k in range(2):
            part = on_batch(q.components[..., k])
            assert derived.batch_shape == part.batch_shape
            assert torch.equal(derived.components[..., k].mu, part.mu)
            assert torch.equal(derived.components[..., k].kappa, part.kappa)
            assert torch.equal(derived.log_weights[..., k], on_batch(q.log_weights[..., k]))

    @pytest.mark.parametrize("dim", [0, 1, -1, -2])
    def test_cat_and_stack(self, dim):
        a, b = mixture(2, 3), mixture(2, 3, seed=1)
        joined = VMFMixture.cat([a, b], dim)
        index = (slice(2, None),) if dim in (0, -2) else (slice(None), slice(3, None))
        assert torch.equal(joined[index].components.mu, b.components.mu)
        assert torch.equal(joined[index].log_weights, b.log_weights)
        assert VMFMixture.stack([a, b], 1).batch_shape == (2, 2, 3)

    def test_expand_detach_rotate_and_scale(self):
        q = mixture(3, modes=2, dim=4)
        wide = q.expand((5, 3))
        assert wide.components.mu.shape == (5, 3, 2, 4)
        assert wide.components.mu.data_ptr() == q.components.mu.data_ptr()
        assert not q.detach().log_weights.requires_grad
        assert q.detach_kappa().components.mu.requires_grad
        assert not q.detach_kappa().components.kappa.requires_grad
        rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
        z = random_directions(3, 4, seed=1)
        torch.testing.assert_close(q.rotate(rotation).log_prob(z @ rotation), q.log_prob(z))
        factor = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        torch.testing.assert_close(q.scale_kappa(factor).components.kappa, q.components.kappa * factor[:, None])
        assert q.to(torch.float32).dtype == torch.float32
        assert len(q) == 3

    def test_the_order_of_components_does_not_matter(self):
        q = mixture(3, modes=3)
        other = VMFMixture(
            q.log_weights.flip(-1), VonMisesFisher(q.components.mu.flip(-2), q.components.kappa.flip(-1))
        )
        z = random_directions(3, 3, seed=1)
        torch.testing.assert_close(q.log_prob(z), other.log_prob(z))
        torch.testing.assert_close(q.certainty, other.certainty)
        torch.testing.assert_close(q.mode, other.mode)

    def test_broadcasting_of_weights_and_components(self):
        parts = VonMisesFisher(torch.eye(3)[:2], 5.0)
        q = VMFMixture(torch.zeros(4, 2), parts)
        assert q.batch_shape == (4,)
        assert q.components.batch_shape == (4, 2)


class TestPruning:
    def test_unused_components_are_dropped(self):
        parts = vmf(4, 1.0, 2.0, 3.0)
        weights = torch.tensor([[0.3, 1e-5, 0.7 - 1e-5], [1e-6, 1e-6, 1.0]], dtype=torch.float64)
        pruned = VMFMixture(weights.log(), parts).prune(1e-3)
        assert pruned.modes == 2
        torch.testing.assert_close(pruned.weights[0], torch.tensor([0.7, 0.3]).double(), atol=1e-4, rtol=0)
        torch.testing.assert_close(pruned.weights[1], torch.tensor([1.0, 0.0]).double(), atol=0, rtol=0)
        assert torch.equal(pruned.components.kappa[:, 0], torch.tensor([3.0, 3.0]).double())

    def test_nothing_to_prune_keeps_the_density(self):
        q = mixture(5, modes=3)
        z = random_directions(5, 3, seed=1)
        torch.testing.assert_close(q.prune(0.0).log_prob(z), q.log_prob(z))
        assert (q.prune(0.0).weights.diff(dim=-1) <= 0).all()


PARTS = VonMisesFisher(torch.eye(3)[:2], 5.0)
BAD_INPUT = {
    "no components": (lambda: VMFMixture(torch.zeros(2), torch.zeros(2)), "components = 'Tensor'.*VonMisesFisher"),
    "another number": (lambda: VMFMixture(torch.zeros(3), PARTS), r"log_weights = \(3,\).*\(2,\)"),
    "another batch": (lambda: VMFMixture(torch.zeros(3, 2), PARTS.expand((4, 2))), r"log_weights = \(3, 2\)"),
    "another dtype": (lambda: VMFMixture(torch.zeros(2).double(), PARTS), "log_weights = torch.float64"),
    "no weight": (lambda: VMFMixture(torch.full((2,), -INF), PARTS), "log_weights = "),
    "NaN": (lambda: VMFMixture(torch.tensor([0.0, math.nan]), PARTS), "log_weights = "),
    "pruning all": (lambda: VMFMixture(torch.zeros(2), PARTS).prune(0.6), "least = 0.6"),
    "joining other modes": (
        lambda: VMFMixture.cat([mixture(2, modes=2), mixture(2, modes=3)]),
        "posteriors = .*modes=3.*modes=2",
    ),
    "a value of another length": (lambda: VMFMixture(torch.zeros(2), PARTS).log_prob(2 * torch.eye(3)), "value = 2"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError, match=words):
        call()
