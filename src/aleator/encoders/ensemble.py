"""Several networks in one backbone, which learn from different items and answer together.

The members of an ensemble err in different places, so their mean is better than each of them (Lakshminarayanan et al.,
NeurIPS 2017). The linear layer of an encoder with kappa="norm" makes an embedding e_k of the features of each member,
and the embedding of the ensemble is their mean. Its length is kappa: where the members disagree, kappa is smaller.

In training each member learns alone, as if it were the only one. A batch is cut into as many parts as there are
members, and part k sees member k only. So a step costs as much as with one member.
"""

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import Beside, register_backbone


@register_backbone("ensemble")
class Ensemble(Beside):
    """Backbones side by side that learn from different parts of a batch: (B, ...) -> (B, F1 + F2 + ...).

    In training the features of the members that do not see a row are 0 there, and those of its own member are
    multiplied by the number of members. A linear layer without bias on the features therefore gives each member's own
    output in training, and the mean of all members in evaluation.

    The rows of a batch should be in random order.

    Args:
        parts: The members, or their specs as a saved encoder records them.

    Examples:
        >>> import torch
        >>> from aleator.encoders import MLP, Ensemble
        >>> network = Ensemble([MLP(4, (3,)), MLP(4, (3,))])
        >>> [(row != 0).int().tolist() for row in network(torch.randn(2, 4))]
        [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
        >>> network.eval()(torch.randn(2, 4)).shape
        torch.Size([2, 6])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Compute features.

        Args:
            x: Inputs of the members.

        Returns:
            Features (B, F1 + F2 + ...).
        """
        if not self.training:
            return super().forward(x)
        count, width = len(self.parts), self.out_features or 0
        rows, left = [], 0
        for member, part in zip(self.parts, x.tensor_split(count), strict=True):
            own = member(part) * count
            right = left + own.shape[1]
            rows.append(nn.functional.pad(own, (left, width - right)))
            left = right
        return torch.cat(rows)
