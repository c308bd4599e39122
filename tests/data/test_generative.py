"""The process has the posteriors that it says."""

import math

import pytest
import torch

from aleator import VMFKernel, VMFMixture, VonMisesFisher, ZonalKernel
from aleator.data.generative import GenerativeProcess


@pytest.fixture(scope="module")
def ten() -> GenerativeProcess:
    return GenerativeProcess(10, (16.0, 32.0), seed=4, smoothing_steps=300)


@pytest.mark.parametrize("dim", [2, 10, 64])
def test_the_posteriors_span_the_sphere_and_the_range_of_kappa(dim):
    process = GenerativeProcess(dim, (16.0, 32.0), seed=1, smoothing_steps=200)
    q = process.posterior(process.inputs(1000))
    assert isinstance(q, VonMisesFisher)
    torch.testing.assert_close(q.mu.norm(dim=-1), torch.ones(1000))
    cosine = q.mu @ q.mu.T
    assert cosine.min() <= 0.5
    assert abs(cosine.mean()) < 0.25  # right angles on average
    assert 14 < q.kappa.min() < 19
    assert 28 < q.kappa.max() < 36


def test_distances_are_roughly_kept(ten):
    x = ten.inputs(500)
    i, j = torch.triu_indices(500, 500, 1)
    mu = ten.posterior(x).mode
    both = torch.stack([torch.cdist(x, x)[i, j], torch.cdist(mu, mu)[i, j]])
    assert torch.corrcoef(both)[0, 1] > 0.5


def test_a_seed_decides_the_process_and_leaves_the_generator_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (GenerativeProcess(3, seed=s, smoothing_steps=20) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    x = first.inputs(5)
    assert torch.equal(first.posterior(x).kappa, again.posterior(x).kappa)
    assert torch.equal(first.posterior(x).mode, again.posterior(x).mode)
    assert not torch.equal(first.posterior(x).mode, other.posterior(x).mode)


def test_kappa_may_be_a_function_of_mu():
    process = GenerativeProcess(3, (16.0, 32.0), seed=2, smoothing_steps=50, kappa_of="mu")
    x = process.inputs(1000)
    kappa = process.posterior(x).kappa
    assert 15 < kappa.min() < 18
    assert 29 < kappa.max() < 34
    process.mu_net[-1].weight.mul_(7)
    process.mu_net[-1].bias.mul_(7)  # the same directions from other outputs
    torch.testing.assert_close(process.posterior(x).kappa, kappa)
    process.mu_net[0].weight[:, 1:] = 0  # a network that sees the first coordinate alone
    one, other = process.posterior(x), process.posterior(x + torch.tensor([0.0, 0.3, 0.2]))
    assert torch.equal(one.kappa, other.kappa)
    assert one.kappa.std() > 0.1


def test_a_range_that_is_set_on_inputs_is_that_of_inputs_and_told_as_it_is():
    """The published code sets the range of kappa(mu) by showing its network inputs in the place of mu."""
    options = {"seed": 2, "smoothing_steps": 50, "kappa_of": "mu"}
    process = GenerativeProcess(3, (16.0, 32.0), range_of="input", **options)
    plain = GenerativeProcess(3, (16.0, 32.0), **options)
    x = process.inputs(5000)
    low, high = process.kappa_range
    kappa = process.posterior(x).kappa
    assert plain.kappa_range == (16.0, 32.0)
    assert not 15 < low < 17 or not 30 < high < 34
    assert kappa.min().item() == pytest.approx(low, rel=0.1)
    assert kappa.max().item() == pytest.approx(high, rel=0.1)
    # As a function of an input, the same network has the range that was asked for.
    scale, shift = process._span
    shown = torch.exp(scale * torch.nn.functional.softplus(process.kappa_net(x)) + shift)
    assert shown.min().item() == pytest.approx(16, rel=0.1)
    assert shown.max().item() == pytest.approx(32, rel=0.1)
    for each in (process, plain):  # the same networks; the logarithms of kappa differ by a line
        assert torch.equal(each.kappa_net[0].weight, plain.kappa_net[0].weight)


def test_the_published_smoothing_covers_an_arc_of_the_plane():
    """Ours covers the circle. The largest gap between directions of the published process is over half of it."""
    gaps = {}
    for smoothing in ("sphere", "published"):
        process = GenerativeProcess(2, seed=4, smoothing_steps=500, smoothing=smoothing)
        mu = process.posterior(process.inputs(2000, generator=torch.Generator().manual_seed(0))).mode
        angle = torch.atan2(mu[:, 1], mu[:, 0]).sort().values
        gaps[smoothing] = torch.cat([angle.diff(), angle[:1] + 2 * math.pi - angle[-1:]]).max().rad2deg()
    assert gaps["sphere"] < 90
    assert 220 < gaps["published"] < 280


def test_one_kappa_for_all_and_point_masses():
    one = GenerativeProcess(3, (20.0, 20.0), smoothing_steps=20)
    torch.testing.assert_close(one.posterior(one.inputs(9)).kappa, torch.full((9,), 20.0))
    points = GenerativeProcess(3, family="point", smoothing_steps=20)
    q = points.posterior(points.inputs(9))
    assert torch.isinf(q.kappa).all()
    torch.testing.assert_close(q.sample(), q.mode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 1}, "dim = 1"),
        ({"kappa_range": (32.0, 16.0)}, "kappa_range"),
        ({"kappa_range": (16.0, math.inf)}, 'family="point"'),
        ({"family": "cauchy"}, "'vmf', 'gaussian', 'laplace', 'point'"),
        ({"kappa_of": "features"}, "'input', 'mu'"),
        ({"smoothing": "arc"}, "'sphere', 'published'"),
        ({"kernel": "vmf"}, "kernel"),
        ({"kernel": ZonalKernel(lambda t: t.square() + 0.1)}, "increase with the cosine"),
        ({"kernel": VMFKernel(math.inf)}, "finite at 1"),
        ({"smoothing_steps": -1}, "smoothing_steps"),
        ({"smoothing_steps": 0}, "one side of the sphere"),
    ],
)
def test_bad_processes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GenerativeProcess(**({"smoothing_steps": 1} | options))


class TestSeveralModes:
    @pytest.mark.parametrize("modes", [2, 3])
    def test_weights_directions_and_kappas(self, modes):
        process = GenerativeProcess(5, (16.0, 32.0), seed=1, smoothing_steps=100, modes=modes)
        q = process.posterior(process.inputs(1000))
        assert isinstance(q, VMFMixture)
        assert q.modes == modes
        torch.testing.assert_close(q.components.mu.norm(dim=-1), torch.ones(1000, modes))
        assert 14 < q.components.kappa.min() < 20
        assert 28 < q.components.kappa.max() < 36
        ratio = q.weights.amax(-1) / q.weights.amin(-1)
        assert 2 < ratio.max() < 6
        for k in range(1, modes):
            cosine = (q.components.mu[:, 0] * q.components.mu[:, k]).sum(-1)
            assert cosine.std() > 0.1  # directions of their own

    def test_the_first_component_is_that_of_one_mode(self):
        one, two = (GenerativeProcess(3, seed=1, smoothing_steps=20, modes=modes) for modes in (1, 2))
        x = one.inputs(50)
        assert torch.equal(two.posterior(x).components[:, 0].mu, one.posterior(x).mu)
        assert torch.equal(two.posterior(x).components[:, 0].kappa, one.posterior(x).kappa)

    def test_only_of_vmfs(self):
        with pytest.raises(ValueError, match="modes = 2"):
            GenerativeProcess(3, family="gaussian", smoothing_steps=5, modes=2)
        with pytest.raises(ValueError, match="modes = 0"):
            GenerativeProcess(3, smoothing_steps=5, modes=0)
