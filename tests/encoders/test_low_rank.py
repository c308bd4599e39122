"""Low-rank adaptation starts as nothing, and its merged weights are the adapted network."""

import copy

import pytest
import torch
from torch import nn

from aleator.encoders import EfficientNetLite0, LowRank, SmallResNet, add_low_rank, merge_low_rank
from aleator.encoders.low_rank import can_be_adapted

LAYERS = {
    "linear": (nn.Linear(6, 5), (3, 6)),
    "linear without bias": (nn.Linear(6, 5, bias=False), (3, 7, 6)),
    "1 x 1": (nn.Conv2d(6, 5, 1), (3, 6, 8, 8)),
    "3 x 3, stride, padding": (nn.Conv2d(6, 5, 3, 2, 1, bias=False), (3, 6, 9, 9)),
    "dilation": (nn.Conv2d(6, 5, 3, dilation=2, padding="same", padding_mode="reflect"), (3, 6, 9, 9)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_one_layer(name):
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = copy.deepcopy(layer).double(), torch.randn(shape).double()
    before = layer(x)
    adapted = LowRank(layer, rank=2, scale=0.7)
    assert torch.equal(adapted(x), before)
    nn.init.normal_(adapted.up.weight)
    changed = adapted(x)
    assert (changed - before).abs().max() > 0.01
    torch.testing.assert_close(adapted.merged()(x), changed)


def test_the_change_has_the_rank():
    layer = nn.Linear(9, 8)
    before = layer.weight.detach().clone()
    adapted = LowRank(layer, rank=3)
    nn.init.normal_(adapted.up.weight)
    assert torch.linalg.matrix_rank(adapted.merged().weight - before) == 3


def test_only_the_path_beside_is_trained():
    adapted = LowRank(nn.Linear(4, 3), rank=1)
    assert {name for name, p in adapted.named_parameters() if p.requires_grad} == {"down.weight", "up.weight"}


@pytest.mark.parametrize("network", [SmallResNet(width=4), EfficientNetLite0()], ids=["resnet", "efficientnet"])
def test_a_whole_network_starts_as_it_was_and_merges(network):
    torch.manual_seed(0)
    network = network.eval().requires_grad_(False)
    names = list(network.state_dict())
    x = torch.randn(2, 3, 32, 32)
    before = network(x)
    count = add_low_rank(network, network.modules(), rank=2)
    assert count == sum(isinstance(module, LowRank) for module in network.modules()) > 3
    torch.testing.assert_close(network(x), before, rtol=0, atol=0)
    for module in network.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.up.weight, std=0.05)
    adapted = network(x)
    size = before.abs().max()  # of a network without trained weights it is tiny
    assert (adapted - before).abs().max() > 1e-3 * size
    merge_low_rank(network)
    assert list(network.state_dict()) == names
    torch.testing.assert_close(network(x) / size, adapted / size, rtol=1e-4, atol=1e-4)


def test_layers_in_groups_and_those_of_torch_s_attention_stay():
    assert not can_be_adapted(nn.Conv2d(4, 4, 3, groups=4))
    assert not can_be_adapted(nn.MultiheadAttention(4, 2).out_proj)
    with pytest.raises(ValueError, match="rank = 0"):
        LowRank(nn.Linear(2, 2), rank=0)
