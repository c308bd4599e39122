"""Linear layers with leaky ReLUs on a CPU; tests/fused/test_leaky_layers.py has the kernel."""

import torch
from torch import nn

from aleator.encoders import MLP
from aleator.encoders.leaky_layers import leaky_layers


def test_layers_are_applied_in_turn():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.Linear(5, 2)]
    x = torch.randn(7, 3)
    expected = nn.Sequential(layers[0], nn.LeakyReLU(), layers[1], nn.LeakyReLU())(x)
    assert torch.equal(leaky_layers(x, layers), expected)


def test_dropout_follows_every_layer_in_training_only():
    torch.manual_seed(0)
    network = MLP(3, (100, 100), dropout=0.5)
    x = torch.randn(400, 3)
    assert torch.equal(network.eval()(x), leaky_layers(x, list(network.layers)))
    dropped = network.train()(x) == 0
    assert abs(dropped.float().mean() - 0.5) < 0.02


def test_hooks_of_a_layer_run():
    network = MLP(3, (4, 2))
    called = []
    network.layers[0].register_forward_hook(lambda *given: called.append(1))
    network(torch.randn(5, 3))
    assert called == [1]
