"""The overlap of two vMF densities against quadrature and mpmath. tests/matching/test_positivity.py has its limits."""

import math

import mpmath
import pytest
import torch
from torch.nn.functional import normalize

from aleator import VMFKernel, VMFMixture, VonMisesFisher, log_positivity
from aleator.posteriors.overlap import log_overlap
from tests.posteriors.cases import random_directions, vmf
from tests.posteriors.mixture_cases import grid


@pytest.mark.parametrize("dim", [2, 3])
def test_against_quadrature(dim):
    q, p = vmf(dim, 0.0, 2.0, 20.0, 50.0), vmf(dim, 3.0, 1.0, 30.0, 5.0, seed=1)
    z, area = grid(dim)
    sphere = 2 * math.pi if dim == 2 else 4 * math.pi
    truth = (q.unsqueeze(-1).log_prob(z) + p.unsqueeze(-1).log_prob(z)).exp().sum(-1) * area * sphere
    torch.testing.assert_close(
        log_overlap(dim, 1 - (q.mu * p.mu).sum(-1), q.kappa, p.kappa), truth.log(), atol=1e-6, rtol=1e-6
    )


def exact(dim, gap, kappa1, kappa2):
    """log(S C C' / C(|kappa mu + kappa' mu'|)) in eighty digits."""
    with mpmath.workdps(80):
        v, k1, k2 = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa1), mpmath.mpf(kappa2)

        def growth(k):
            return mpmath.loggamma(v + 1) + v * mpmath.log(2 / k) + mpmath.log(mpmath.besseli(v, k, maxterms=10**7))

        both = mpmath.sqrt((k1 + k2) ** 2 - 2 * k1 * k2 * mpmath.mpf(gap))
        return float(growth(both) - growth(k1) - growth(k2))


@pytest.mark.parametrize("dim", [2, 3, 10, 256])
@pytest.mark.parametrize("kappas", [(0.3, 7.0), (1e3, 1e6), (1e8, 3e8), (1e15, 1e15), (1e20, 1e21), (1e30, 1e30)])
def test_against_mpmath(dim, kappas):
    k1, k2 = (torch.tensor(k, dtype=torch.float64) for k in kappas)
    for drop in (0.0, 0.1, 3.0, 40.0):
        gap = min(1.9, drop * (1 / kappas[0] + 1 / kappas[1]))
        found = log_overlap(dim, torch.tensor(gap, dtype=torch.float64), k1, k2).item()
        assert found == pytest.approx(exact(dim, gap, *kappas), rel=1e-13, abs=1e-12)


@pytest.mark.parametrize("dim", [3, 256])
@pytest.mark.parametrize("kappa", [1e6, 1e9])
def test_float32_posteriors_have_the_overlap_of_their_directions(dim, kappa):
    """Lengths that are off by 1e-7 have no part in it."""
    near = random_directions(5, dim) + math.sqrt(dim / kappa) * random_directions(5, dim, seed=1)
    single = [VonMisesFisher(normalize(mu.float(), dim=-1), kappa) for mu in (random_directions(5, dim), near)]
    twins = [VonMisesFisher(normalize(q.mu.double(), dim=-1), q.kappa.double()) for q in single]
    weights = torch.tensor([0.3, 0.7]).log().expand(5, 2)
    mixtures = [
        VMFMixture(w, VonMisesFisher(torch.stack([a.mu, b.mu], 1), torch.stack([a.kappa, b.kappa], 1)))
        for (a, b), w in ((single, weights), (twins, weights.double()))
    ]
    calls = [
        (log_positivity(*single, VMFKernel(math.inf)), log_positivity(*twins, VMFKernel(math.inf))),
        (
            log_positivity(single[0][:, None], single[1][None], VMFKernel(math.inf)).diagonal(),
            log_positivity(*twins, VMFKernel(math.inf)),
        ),
        (mixtures[0].certainty, mixtures[1].certainty),
        *zip(mixtures[0].entropy_bounds(), mixtures[1].entropy_bounds(), strict=True),
    ]
    for ours, expected in calls:
        torch.testing.assert_close(ours.double(), expected.double(), rtol=1e-6, atol=1e-5)


def test_equal_point_masses_coincide_in_every_shape():
    for dtype in (torch.float32, torch.float64):
        q = VonMisesFisher(normalize(random_directions(50, 100).to(dtype), dim=-1), math.inf)
        overlap = log_positivity(q[:, None], q[None], VMFKernel(math.inf))
        assert torch.equal(overlap == math.inf, torch.eye(50, dtype=torch.bool))
        assert (log_positivity(q, q, VMFKernel(math.inf)) == math.inf).all()
