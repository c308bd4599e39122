"""The posteriors that two small networks give, on every device."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aleator.data.network_posteriors import network_posteriors


def networks(inputs: int, units: int, dim: int, kappa_inputs: int) -> tuple[list, list]:
    torch.manual_seed(inputs + units)
    mu = [nn.Linear(inputs, units), nn.Linear(units, units), nn.Linear(units, dim)]
    kappa = [nn.Linear(kappa_inputs, units), nn.Linear(units, 1)]
    return [(layer.weight, layer.bias) for layer in mu], [(layer.weight, layer.bias) for layer in kappa]


@pytest.mark.parametrize("kappa_of_mu", [False, True])
def test_layers_in_turn(kappa_of_mu):
    mu_layers, kappa_layers = networks(4, 6, 3, 3 if kappa_of_mu else 4)
    x = torch.randn(5, 7, 4)
    mu, kappa = network_posteriors(x, mu_layers, kappa_layers, (2.0, -1.0), kappa_of_mu)
    (w1, b1), (w2, b2), (w3, b3) = mu_layers
    y = F.leaky_relu(F.leaky_relu(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    torch.testing.assert_close(mu, y / y.norm(dim=-1, keepdim=True))
    (v1, c1), (v2, c2) = kappa_layers
    u = (F.leaky_relu((mu if kappa_of_mu else x) @ v1.T + c1) @ v2.T + c2).squeeze(-1)
    torch.testing.assert_close(kappa.log(), 2 * torch.log(1 + u.exp()) - 1)
    assert not mu.requires_grad
    assert not kappa.requires_grad
