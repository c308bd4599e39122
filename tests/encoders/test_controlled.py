"""The networks of the paper's controlled experiment."""

import torch
from torch import nn

from aleator.encoders.controlled import controlled_encoder, controlled_mlp


def test_the_papers_networks():
    encoder = controlled_encoder(10)
    widths = [layer.out_features for layer in encoder.backbone.layers] + [encoder.mu_head.out_features]
    assert widths == [100, 500, 500, 500, 500, 500, 100, 10]
    assert [layer.out_features for layer in encoder.kappa_backbone.layers] == widths[:-1]
    assert not set(encoder.backbone.parameters()) & set(encoder.kappa_backbone.parameters())
    for kappa_of, given in (("features", 100), ("mu", 16)):
        shared = controlled_encoder(10, 16, kappa_of=kappa_of)
        assert shared.kappa_backbone is None
        assert shared.kappa_head.in_features == given
        assert sum(isinstance(layer, nn.Linear) for layer in shared.kappa_head.layers) == 3
        assert shared(torch.rand(2, 10)).mu.shape == (2, 16)
        deep = controlled_encoder(10, kappa_of=kappa_of, kappa_widths=(10, 50, 10))
        assert [layer.out_features for layer in deep.kappa_head.layers if isinstance(layer, nn.Linear)] == [
            10,
            50,
            10,
            1,
        ]
    assert controlled_mlp(2).arguments == {"in_features": 2, "widths": [20, 100, 100, 100, 100, 100, 20]}
