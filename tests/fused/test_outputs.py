"""Directions and kappas of an encoder in one kernel each; without a GPU in Triton's interpreter."""

import math

import pytest
import torch

from aleator.encoders import outputs as module
from aleator.encoders.outputs import LONGEST, bounded_kappa, directions, plain_bounded_kappa, plain_directions
from aleator.fused import dispatch
from tests.fused.interpreted import INTERPRETED, device_with_fused

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, module, dispatch)


def axis(dim: int, device: str) -> torch.Tensor:
    return torch.eye(dim, device=device)[0]


@pytest.mark.parametrize("shape", [(300, 1, 10), (7, 3, 2), (2, 1, 700), (0, 1, 4)])
def test_directions_and_their_gradients(shape, device):
    torch.manual_seed(0)
    e = (3 * torch.randn(shape, device=device)).requires_grad_()
    ours = directions(e, axis(shape[-1], device))
    assert type(ours[0].grad_fn).__name__ == "_WithGradientBackward"
    exact_e = e.detach().double().requires_grad_()
    exact = plain_directions(exact_e, axis(shape[-1], device).double())
    weights = [torch.randn_like(part) for part in ours]
    for part, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(part.double(), truth, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(ours, e, weights)
    (expected,) = torch.autograd.grad(exact, exact_e, [weight.double() for weight in weights])
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)


def test_embeddings_without_length_and_beyond_all_lengths(device):
    given = torch.tensor([[0.0, 0.0, 0.0], [1e-13, 0.0, 0.0], [10 * LONGEST, LONGEST / 2, 0.0], [3.0, 0.0, 4.0]])
    e = given.to(device).requires_grad_()
    mu, norm = directions(e, torch.tensor([0.0, 0.0, 1.0], device=device))
    plain = plain_directions(e, torch.tensor([0.0, 0.0, 1.0], device=device))
    for part, truth in zip((mu, norm), plain, strict=True):
        torch.testing.assert_close(part, truth)
    for place in (0, 1):  # in the direction, and in the length
        ours, expected = (
            torch.autograd.grad(pair[place].sum(), e, retain_graph=True)[0] for pair in ((mu, norm), plain)
        )
        torch.testing.assert_close(ours, expected)


def test_not_a_number_stays_so(device):
    mu, norm = directions(torch.tensor([[math.nan, 1.0]], device=device), axis(2, device))
    assert mu.isnan().all()
    assert norm.isnan().all()


def test_kappas_and_their_gradients(device):
    u = torch.cat([torch.linspace(-50, 50, 2001), torch.tensor([-1e18, 1e18, 0.0])]).to(device).requires_grad_()
    scale, shift = torch.tensor(1.7, device=device), torch.tensor(-0.3, device=device)
    ours = bounded_kappa(u, scale, shift, 3.0, 6.0)
    assert type(ours.grad_fn).__name__ == "_WithGradientBackward"
    exact_u = u.detach().double().requires_grad_()
    exact = plain_bounded_kappa(exact_u, scale.double(), shift.double(), 3.0, 6.0)
    torch.testing.assert_close(ours.double(), exact, rtol=5e-6, atol=0)
    (gradient,) = torch.autograd.grad(ours.sum(), u)
    (expected,) = torch.autograd.grad(exact.sum(), exact_u)
    torch.testing.assert_close(gradient.double(), expected, rtol=2e-5, atol=1e-12)


def test_inside_transforms_and_in_float64_the_plain_functions_run(device):
    e = torch.randn(5, 3, device=device)
    assert directions(e.double(), axis(3, device).double())[0].dtype == torch.float64
    lengths = torch.func.vmap(lambda row: directions(row, axis(3, device))[1])(e)
    torch.testing.assert_close(lengths, e.norm(dim=-1))
