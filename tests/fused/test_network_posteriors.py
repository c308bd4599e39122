"""The fused posteriors of a process; without a GPU in Triton's interpreter, as in test_totals.py."""

import pytest
import torch

from aleator.data.network_posteriors import plain_network_posteriors
from aleator.fused.network_posteriors import fused_network_posteriors
from tests.data.test_network_posteriors import networks
from tests.fused.interpreted import INTERPRETED
from tests.fused.test_totals import device  # noqa: F401

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.mark.parametrize("kappa_of_mu", [False, True])
@pytest.mark.parametrize(("shape", "inputs", "dim"), [((1000,), 10, 10), ((3, 5), 2, 3), ((1,), 64, 64), ((0,), 4, 3)])
def test_one_kernel_equals_layer_by_layer(shape, inputs, dim, kappa_of_mu, device):  # noqa: F811
    layers = networks(inputs, 10, dim, dim if kappa_of_mu else inputs)
    on_device = ([(weight.to(device), bias.to(device)) for weight, bias in network] for network in layers)
    precise = ([(weight.double(), bias.double()) for weight, bias in network] for network in layers)
    x = torch.rand(*shape, inputs)
    with torch.no_grad():
        ours = fused_network_posteriors(x.to(device), *on_device, (1.3, 2.1), kappa_of_mu)
    exact = plain_network_posteriors(x.double(), *precise, (1.3, 2.1), kappa_of_mu)
    for part, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(part.double().cpu(), truth, rtol=2e-6, atol=1e-6)
