"""Features of an image, averaged over mirrored and shifted views of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders.backbones import backbone_spec, build_backbone, known_features, register_backbone
from aleator.foundation import require_at_least


@register_backbone("averaged-views")
class AveragedViews(nn.Module):
    """A network for images whose features are averaged over several views of an image, in evaluation mode.

    A small network that lowers the resolution early answers a little differently if an image is mirrored or moved by a
    pixel. The average has fewer errors. In training mode the network gets the images as they are.

    Args:
        network: The network, (B, C, H, W) -> (B, F), or its spec as a saved encoder records it.
        mirror: Whether mirrored images are views.
        shift: Views are moved by so many pixels, to the lower right and to the upper left. 0: not moved.

    Raises:
        ValueError: If `shift` is negative.

    Examples:
        >>> import torch
        >>> from aleator.encoders import AveragedViews, SmallResNet
        >>> network = AveragedViews(SmallResNet(width=4), mirror=True).eval()
        >>> x = torch.rand(2, 3, 32, 32)
        >>> torch.allclose(network(x), network(x.flip(-1)), atol=1e-5)
        True
    """

    def __init__(self, network: nn.Module | dict[str, Any], mirror: bool = False, shift: int = 0):
        super().__init__()
        require_at_least("shift", shift, 0, "pass 0 for views that are not moved")
        self.network = build_backbone(network) if isinstance(network, dict) else network
        self.mirror, self.shift = mirror, shift

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that build the module again."""
        return {"network": backbone_spec(self.network), "mirror": self.mirror, "shift": self.shift}

    @property
    def out_features(self) -> int | None:
        """F of the network, if it tells it."""
        return known_features(self.network)

    def forward(self, x: Tensor) -> Tensor:
        """Compute features.

        Args:
            x: Images (B, C, H, W).

        Returns:
            Features (B, F): in evaluation mode the mean over the views.
        """
        if self.training:
            return self.network(x)
        views = self._views(x)
        return torch.stack([self.network(view) for view in views]).mean(0)

    def _views(self, x: Tensor) -> Sequence[Tensor]:
        views = [x]
        if self.shift:
            height, width, s = *x.shape[-2:], self.shift
            padded = F.pad(x, (s, s, s, s), mode="replicate")
            views += [padded[..., d : d + height, d : d + width] for d in (0, 2 * s)]
        if self.mirror:
            views += [view.flip(-1) for view in views]
        return views
