r"""Low-rank adaptation of a pretrained network (LoRA; Hu et al., ICLR 2022).

A layer with frozen weights W gets a second path of rank r beside it: y = W x + s U (V x). V is random and U starts at
0, so the network starts as it was. Only U and V are trained. Afterwards W + s U V takes the place of W, and nothing of
the second path is left: the network is as fast and as large as before.

For a convolution, V is a convolution to r channels with the same kernel, and U one of size 1 x 1 back. Convolutions in
groups, such as those of single channels, have few weights and are left as they are.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from aleator.foundation import require_count


class LowRank(nn.Module):
    """A layer with frozen weights and a trained path of low rank beside it.

    Args:
        layer: A linear layer, or a convolution without groups. Its weights are frozen.
        rank: r, the rank of the change.
        scale: s, the factor of the change.

    Raises:
        ValueError: If the rank is not a positive whole number.

    Examples:
        >>> import torch
        >>> from aleator.encoders import LowRank
        >>> layer = torch.nn.Linear(8, 4)
        >>> adapted, x = LowRank(layer, rank=2), torch.randn(3, 8)
        >>> torch.equal(adapted(x), layer(x))  # nothing has been learned yet
        True
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, scale: float = 1.0):
        super().__init__()
        require_count("rank", rank, "pass for example 8")
        self.layer, self.scale = layer.requires_grad_(False), scale
        like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.down: nn.Module
        self.up: nn.Module
        if isinstance(layer, nn.Linear):
            self.down = nn.Linear(layer.in_features, rank, bias=False, **like)
            self.up = nn.Linear(rank, layer.out_features, bias=False, **like)
        else:
            self.down = nn.Conv2d(
                layer.in_channels,
                rank,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                layer.dilation,  # type: ignore[arg-type]
                bias=False,
                padding_mode=layer.padding_mode,
                **like,
            )
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False, **like)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    @property
    def weight(self) -> Tensor:
        """The frozen weights. Some networks ask a layer for their dtype or device."""
        return self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer and its change.

        Args:
            x: Inputs of the layer.

        Returns:
            Outputs of the layer's shape.
        """
        return self.layer(x) + self.scale * self.up(self.down(x))

    @torch.no_grad()
    def merged(self) -> nn.Linear | nn.Conv2d:
        """The layer itself, with the change in its weights.

        Returns:
            The layer. Its weights are still frozen.
        """
        up, down = self.up.weight, self.down.weight
        change = up.flatten(1) @ down.flatten(1)  # type: ignore[operator]
        self.layer.weight += self.scale * change.view_as(self.layer.weight)
        return self.layer


def can_be_adapted(layer: nn.Module) -> bool:
    """Whether a layer can have a path of low rank beside it."""
    # A subclass may use its weights in another way than by calling the layer, as torch's attention does.
    return type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)


def add_low_rank(network: nn.Module, layers: Iterable[nn.Module], rank: int) -> int:
    """Put a `LowRank` in place of some layers of a network.

    Args:
        network: The network. It is changed.
        layers: The layers. Those that cannot be adapted are left as they are.
        rank: Rank of each change.

    Returns:
        Number of layers that were adapted.

    Examples:
        >>> from torch import nn
        >>> from aleator.encoders import add_low_rank, merge_low_rank
        >>> network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> add_low_rank(network, network.modules(), rank=1)
        2
        >>> merge_low_rank(network)
        Sequential(
          (0): Linear(in_features=4, out_features=4, bias=True)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    chosen = {id(layer) for layer in layers if can_be_adapted(layer)}
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if id(child) in chosen
    ]
    for parent, name, layer in found:
        setattr(parent, name, LowRank(layer, rank))  # type: ignore[arg-type]
    return len(found)


def merge_low_rank(network: nn.Module) -> nn.Module:
    """Put the plain layers back, with the changes in their weights.

    Args:
        network: A network after `add_low_rank`. It is changed.

    Returns:
        The network.

    Examples:
        >>> from torch import nn
        >>> from aleator.encoders import add_low_rank, merge_low_rank
        >>> network = nn.Sequential(nn.Linear(4, 4))
        >>> _ = add_low_rank(network, network.modules(), rank=1)
        >>> merge_low_rank(network)[0]
        Linear(in_features=4, out_features=4, bias=True)
    """
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LowRank):
                setattr(parent, name, child.merged())
    return network
