"""HIB's log probabilities in one kernel; without a GPU in Triton's interpreter."""

import pytest
import torch
from torch.nn.functional import normalize

import aleator as al
from aleator.losses import mean_sigmoid as module
from aleator.losses.mean_sigmoid import log_mean_sigmoid, plain_log_mean_sigmoid
from tests.fused.interpreted import INTERPRETED, device_with_fused

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

LAYOUTS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, module)


@pytest.mark.parametrize("matches", [0, 1, 3])
@pytest.mark.parametrize("shape", [(1, 1, 3), (512, 20, 3), (70, 17, 5), (1500, 3, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("a", "b"), [(4.0, -2.0), (0.5, 8.0), (100.0, -150.0)])
def test_values_and_gradients(shape, layout, matches, a, b, device):
    torch.manual_seed(0)
    cosines = 2 * torch.rand(*(shape[i] for i in layout), device=device) - 1
    cosines = cosines.permute(*(layout.index(i) for i in range(3))).requires_grad_()
    assert cosines.shape == shape
    scalars = [torch.tensor(x, device=device, requires_grad=True) for x in (a, b)]
    ours = log_mean_sigmoid(cosines, *scalars, matches)
    exact_inputs = [x.detach().double().requires_grad_() for x in (cosines, *scalars)]
    exact = plain_log_mean_sigmoid(*exact_inputs, matches)
    torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=1e-6)
    weights = torch.randn(shape[1:], device=device)
    gradients = torch.autograd.grad(ours, (cosines, *scalars), weights)
    expected = torch.autograd.grad(exact, exact_inputs, weights.double())
    torch.testing.assert_close(gradients[0].double(), expected[0], rtol=1e-3, atol=1e-6)
    scale = weights.abs().sum().item()  # of a sum whose terms have both signs
    for ours, exact in zip(gradients[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5 * scale)


def test_a_and_b_that_are_not_learned(device):
    cosines = torch.rand(70, 4, 2, device=device, requires_grad=True)
    a, b = torch.tensor(4.0, device=device), torch.tensor(-2.0, device=device, requires_grad=True)
    (frozen,) = torch.autograd.grad(log_mean_sigmoid(cosines, a, b.detach(), 1).sum(), cosines)
    (learned, in_b) = torch.autograd.grad(log_mean_sigmoid(cosines, a, b, 1).sum(), (cosines, b))
    assert torch.equal(frozen, learned)
    assert in_b.shape == ()


def test_a_cosine_that_is_not_a_number(device):
    cosines = torch.zeros(3, 1, 2, device=device)
    cosines[1, 0, 1] = float("nan")
    one = torch.ones((), device=device)
    mean = log_mean_sigmoid(cosines, one, 0 * one, 1)
    torch.testing.assert_close(mean[0, 0].exp().item(), 0.5)
    assert mean[0, 1].isnan()


@pytest.mark.parametrize("negatives", ["own", "shared", "batch"])
def test_hib_has_its_probabilities_from_it(negatives, device):
    torch.manual_seed(1)
    shapes = {"own": (6, 3), "shared": (2, 3), "batch": None}
    x, positive = (torch.randn(6, 5, device=device, requires_grad=True) for _ in range(2))
    shape = shapes[negatives]
    others = None if shape is None else torch.randn(*shape, 5, device=device)
    noise = [torch.randn(70, 6, 5, device=device) for _ in range(2)]
    noise.append(None if shape is None else torch.randn(70, *shape, 5, device=device))

    def gradients(dtype: torch.dtype):
        loss = al.HIB(4.0, -2.0, samples=70, requires_grad=True).to(device, dtype)
        inputs = [y.detach().to(dtype).requires_grad_() for y in (x, positive)]
        drawn = tuple(None if y is None else y.to(dtype) for y in noise)
        posteriors = [
            None if y is None else al.VonMisesFisher(normalize(y.to(dtype), dim=-1), 10.0) for y in (*inputs, others)
        ]
        value = loss(*posteriors, noise=drawn)
        return value, torch.autograd.grad(value, (*inputs, loss.a, loss.b))

    value, ours = gradients(torch.float32)
    exact_value, exact = gradients(torch.float64)
    torch.testing.assert_close(value.double(), exact_value, rtol=1e-5, atol=1e-6)
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5)
