"""Narrow layers in one kernel against layers one after another; without a GPU in Triton's interpreter."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from aleator.encoders import leaky_layers as module
from aleator.encoders.leaky_layers import MOST_UNITS, leaky_layers, plain_leaky_layers
from aleator.fused import dispatch, functions
from tests.fused.interpreted import INTERPRETED, device_with_fused

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.fixture
def device(monkeypatch) -> str:
    return device_with_fused(monkeypatch, module, dispatch)


def network(sizes: tuple[int, ...], device: str) -> list[nn.Linear]:
    torch.manual_seed(0)
    layers = [nn.Linear(into, out) for into, out in pairwise(sizes)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.normal_(layer.bias)
    return [layer.to(device) for layer in layers]


@pytest.mark.parametrize(
    "sizes",
    [
        (10, 10, 50, 50, 50, 50, 50, 10),
        (2, 1, 3),
        (MOST_UNITS, MOST_UNITS, 1),
        (5, 7, 16),
        (4, 9),
        (3, MOST_UNITS + 1, 100, 7),
    ],
)
@pytest.mark.parametrize("count", [1, 64, 300])
@pytest.mark.parametrize("needs_inputs", [False, True])
def test_values_and_gradients_equal_those_of_layers_in_turn(sizes, count, needs_inputs, device):
    layers = network(sizes, device)
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    x = torch.randn(count, sizes[0], device=device, requires_grad=needs_inputs)
    weights = torch.randn(count, sizes[-1], device=device)
    wanted = [*parameters, *([x] if needs_inputs else [])]
    ours = leaky_layers(x, layers)
    assert type(ours.grad_fn).__name__ == "_WithGradientBackward"
    our_gradients = torch.autograd.grad((ours * weights).sum(), wanted)

    layers_in_double = [copy.deepcopy(layer).double() for layer in layers]
    precise = [parameter for layer in layers_in_double for parameter in (layer.weight, layer.bias)]
    exact_x = x.detach().double().requires_grad_()
    exact = plain_leaky_layers(exact_x, layers_in_double)
    exact_gradients = torch.autograd.grad(
        (exact * weights.double()).sum(), [*precise, *([exact_x] if needs_inputs else [])]
    )
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    for part, truth in zip(our_gradients, exact_gradients, strict=True):
        torch.testing.assert_close(part.double(), truth, rtol=1e-4, atol=2e-5 * truth.abs().max().item())


def test_the_same_gradient_comes_twice(device):
    layers = network((10, 50, 50, 10), device)
    x = torch.randn(1000, 10, device=device)
    first, second = (torch.autograd.grad(leaky_layers(x, layers).square().sum(), layers[0].weight)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_an_empty_batch_has_zero_gradients(device):
    layers = network((4, 8, 8), device)
    output = leaky_layers(torch.zeros(0, 4, device=device), layers)
    assert output.shape == (0, 8)
    assert torch.equal(torch.autograd.grad(output.sum(), layers[1].weight)[0], torch.zeros(8, 8, device=device))


def test_without_gradients_nothing_is_kept(device, monkeypatch):
    layers = network((4, 8, 8), device)
    kept = []
    fused = functions.fused_leaky_layers
    monkeypatch.setattr(functions, "fused_leaky_layers", lambda *given: kept.append(given[-1]) or fused(*given))
    with torch.no_grad():
        x = torch.randn(3, 4, device=device)
        torch.testing.assert_close(leaky_layers(x, layers), plain_leaky_layers(x, layers))
    assert kept == [False]


def test_a_wide_layer_sums_many_inputs(device):
    (layer,) = network((3, 70), device)
    x = torch.randn(5000, 3, device=device)  # more than one stretch of a program
    (ours,) = torch.autograd.grad(leaky_layers(x, [layer]).sum(), layer.bias)
    precise = copy.deepcopy(layer).double()
    (exact,) = torch.autograd.grad(plain_leaky_layers(x.double(), [precise]).sum(), precise.bias)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-3)


def test_double_precision_and_autocast_take_the_plain_way(device):
    layers = network((4, 8, 4), device)
    x = torch.randn(3, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert leaky_layers(x, layers).dtype == torch.bfloat16
    output = leaky_layers(x.double(), [layer.double() for layer in layers])
    assert type(output.grad_fn).__name__ == "LeakyReluBackward0"


def test_a_layer_that_does_more_is_called(device):
    layers = network((4, 8, 4), device)
    called = []
    layers[1].register_forward_hook(lambda *given: called.append(1))
    output = leaky_layers(torch.randn(3, 4, device=device), layers)
    assert called == [1]
    assert type(output.grad_fn).__name__ == "LeakyReluBackward0"
