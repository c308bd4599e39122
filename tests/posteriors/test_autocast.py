"""Posteriors under autocast: the same numbers as without it, in float32."""

import pytest
import torch
from torch.nn.functional import normalize

import aleator as al


def directions(*shape):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), dim=-1)


def one_mode(dim):
    return al.VonMisesFisher(directions(6, dim).requires_grad_(), torch.full((6,), 50.0, requires_grad=True))


def two_modes(dim):
    logits = torch.tensor([0.3, -0.2], requires_grad=True).expand(6, 2)
    return al.VMFMixture(logits.log_softmax(-1), al.VonMisesFisher(directions(6, 2, dim), 50.0))


def rotation(dim):
    return torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(1)))[0]


def sampled(q):
    return q.rsample((50,), generator=torch.Generator().manual_seed(2))


CASES = {
    "samples": sampled,
    "log densities of samples": lambda q: q.log_prob(sampled(q).detach()),
    "rotated": lambda q: (lambda r: (getattr(r, "components", r).mu, r.mean))(q.rotate(rotation(q.dim))),
    "mode": lambda q: q.mode,
    "entropy": lambda q: q.entropy(),
    "caps or regions": lambda q: q.region(0.9).log_area() if q.modes > 1 else q.cap(0.9),
    "certainty": lambda q: q.certainty,
}


@pytest.mark.parametrize("dim", [3, 64])
@pytest.mark.parametrize("make", [one_mode, two_modes])
@pytest.mark.parametrize("case", CASES)
def test_the_same_numbers(case, make, dim):
    results = []
    for on in (False, True):
        torch.manual_seed(3)  # of what has no generator
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            results.append(CASES[case](make(dim)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("make", [one_mode, two_modes])
def test_the_same_gradients_also_in_a_backward_pass_under_autocast(make):
    gradients = []
    for on in (False, True):
        q = make(64)
        inputs = (q.mu, q.kappa) if q.modes == 1 else (q.log_weights,)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            gradients.append(torch.autograd.grad(sampled(q).pow(3).sum(), inputs))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
