"""Backbones: networks that turn inputs into features (B, F). And the registry that rebuilds them for `load_encoder`.

Any torch module that gives features (B, F) can be a backbone. Two conventions make it more convenient:

- `out_features` tells F, so that the encoder knows the size of its output layers.
- `register_backbone(name)` on the class, and the constructor's arguments in `self.arguments`, let a saved encoder
  rebuild the backbone. An encoder with another backbone is saved all the same, but `load_encoder` needs the module.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders.leaky_layers import leaky_layers
from aleator.foundation import plain_number, reject, require, require_at_least

BACKBONES: dict[str, type[nn.Module]] = {}
_Module = TypeVar("_Module", bound=type[nn.Module])


def register_backbone(name: str) -> Callable[[_Module], _Module]:
    """Class decorator: lets saved encoders rebuild a backbone of this class, as `cls(**backbone.arguments)`.

    The class must keep the arguments of its constructor, as JSON values, in `self.arguments`. It should tell its
    number of features as `self.out_features`. Before `load_encoder`, import the module that registers the class.

    Args:
        name: Name in the saved file. Two classes cannot share one.

    Returns:
        The decorator. It returns the class unchanged.

    Raises:
        ValueError: If another class has the name.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.encoders import register_backbone
        >>> @register_backbone("mean-colour")
        ... class MeanColour(torch.nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...         self.arguments = {"channels": channels}
        ...         self.out_features = channels
        ...
        ...     def forward(self, images):
        ...         return images.mean((2, 3))
        >>> encoder = al.Encoder(MeanColour(3), dim=8).eval()
        >>> fingerprint = encoder.save("mean-colour")
        >>> x = torch.rand(2, 3, 16, 16)
        >>> torch.equal(al.load_encoder("mean-colour")(x).mu, encoder(x).mu)
        True
    """

    def register(cls: _Module) -> _Module:
        taken = BACKBONES.get(name)
        free = taken is None or taken.__qualname__ == cls.__qualname__
        require(free, "name", name, "is taken", "choose another name")
        BACKBONES[name] = cls
        return cls

    return register


def backbone_spec(module: nn.Module) -> dict[str, Any]:
    """What a saved encoder records about its backbone: name and arguments, or the class of one not registered."""
    for name, cls in BACKBONES.items():
        if type(module) is cls:
            arguments: dict[str, Any] = module.arguments  # type: ignore[assignment]
            return {"name": name, "arguments": {key: plain_number(value) for key, value in arguments.items()}}
    return {"name": None, "class": type(module).__qualname__}


def build_backbone(spec: dict[str, Any], argument: str = "backbone") -> nn.Module:
    """A backbone with fresh weights from its `backbone_spec`. `argument` names it in errors."""
    if spec["name"] is None:
        reject(
            argument,
            None,
            f"the encoder was saved with a {spec['class']}, which is not registered and cannot be rebuilt",
            f"pass load_encoder(path, {argument}=module), with the module built as it was",
        )
    require(
        spec["name"] in BACKBONES,
        argument,
        spec["name"],
        "the encoder was saved with a backbone that is not registered here",
        "import the module that calls register_backbone",
    )
    return BACKBONES[spec["name"]](**spec["arguments"])


def known_features(module: nn.Module) -> int | None:
    """F if the module tells it: `out_features`, timm's or Hugging Face's attribute, or a Sequential's last layer."""
    if isinstance(module, nn.Sequential):
        for layer in reversed(module):
            if isinstance(layer, nn.Linear | nn.Sequential):
                return known_features(layer)
            if layer.__class__.__module__ not in ("torch.nn.modules.activation", "torch.nn.modules.dropout"):
                return None
        return None
    for owner, attribute in (
        (module, "out_features"),
        (module, "num_features"),
        (getattr(module, "config", None), "hidden_size"),
    ):
        value = plain_number(getattr(owner, attribute, None))
        if isinstance(value, int):
            return value
    return None


@register_backbone("features")
class Features(nn.Module):
    """For features that were computed before: passes (B, F) through unchanged.

    Args:
        features: F.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.encoders import Features
        >>> al.Encoder(Features(6), dim=3)(torch.randn(5, 6)).mu.shape
        torch.Size([5, 3])
    """

    def __init__(self, features: int):
        super().__init__()
        require_at_least("features", features, 1, "pass the last dimension of the array")
        self.arguments = {"features": features}
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        """Return the features unchanged.

        Args:
            x: Features (B, F).

        Returns:
            The same tensor.
        """
        return x


@register_backbone("mlp")
class MLP(nn.Module):
    """Linear layers, each followed by a leaky ReLU: (B, in_features) -> (B, widths[-1]).

    Args:
        in_features: Size of the inputs.
        widths: Size of each layer. The last one is F.
        dropout: Share of the units of every layer that are left out in training.

    Examples:
        >>> import torch
        >>> from aleator.encoders import MLP
        >>> MLP(4, (16, 8))(torch.randn(5, 4)).shape
        torch.Size([5, 8])
    """

    def __init__(self, in_features: int, widths: Sequence[int], dropout: float = 0.0):
        super().__init__()
        widths = [int(width) for width in widths]
        positive = in_features >= 1 and bool(widths) and min(widths) >= 1
        way_out = "pass the hidden widths, as in MLP(10, (100, 100))"
        require(positive, "widths", widths, "every layer needs at least one unit", way_out)
        require(0 <= dropout < 1, "dropout", dropout, "not a share in [0, 1)", "pass for example 0.2")
        self.arguments = {"in_features": in_features, "widths": widths}
        if dropout:
            self.arguments["dropout"] = dropout
        self.dropout = dropout
        self.out_features = widths[-1]
        sizes = [in_features, *widths]
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Compute features.

        Args:
            x: Inputs (B, in_features).

        Returns:
            Features (B, widths[-1]).
        """
        if not (self.dropout and self.training):
            return leaky_layers(x, list(self.layers))
        for layer in self.layers:
            x = F.dropout(leaky_layers(x, [layer]), self.dropout)
        return x


@register_backbone("flatten")
class Flatten(nn.Module):
    """Flattens inputs of any shape (B, ...) to (B, F).

    Args:
        features: F, the number of values of one input.

    Examples:
        >>> import torch
        >>> from aleator.encoders import MLP, Chain, Flatten
        >>> network = Chain([Flatten(64), MLP(64, (16,))])
        >>> network(torch.rand(5, 1, 8, 8)).shape
        torch.Size([5, 16])
    """

    def __init__(self, features: int):
        super().__init__()
        self.arguments = {"features": features}
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        """Flatten all dimensions but the first.

        Args:
            x: Inputs (B, ...).

        Returns:
            Features (B, F).
        """
        return x.flatten(1)


class _Parts(nn.Module):
    """Base class of backbones that are made of backbones."""

    def __init__(self, parts: Sequence[nn.Module | dict[str, Any]]):
        super().__init__()
        require(len(parts) > 0, "parts", 0, "no backbone", "pass at least one")
        self.parts = nn.ModuleList(part if isinstance(part, nn.Module) else build_backbone(part) for part in parts)

    @property
    def arguments(self) -> dict[str, Any]:
        """Constructor arguments, as JSON: the specs of the parts."""
        return {"parts": [backbone_spec(part) for part in self.parts]}


@register_backbone("chain")
class Chain(_Parts):
    """Backbones one after the other. The first takes the inputs, each of the others the features before it.

    Args:
        parts: The backbones, or their specs as a saved encoder records them.

    Examples:
        >>> import torch
        >>> from aleator.encoders import MLP, Chain, Standardise
        >>> network = Chain([Standardise(4), MLP(4, (16,))])
        >>> network(torch.randn(5, 4)).shape
        torch.Size([5, 16])
    """

    @property
    def out_features(self) -> int | None:
        """F of the last part, if it tells it."""
        return known_features(self.parts[-1])

    def forward(self, x: Any) -> Tensor:
        """Run the parts one after the other.

        Args:
            x: Inputs of the first part.

        Returns:
            Features (B, F) of the last part.
        """
        for part in self.parts:
            x = part(x)
        return x


@register_backbone("beside")
class Beside(_Parts):
    """Backbones side by side. Each takes the inputs; their features are concatenated to (B, F1 + F2 + ...).

    Args:
        parts: The backbones, or their specs as a saved encoder records them.

    Examples:
        >>> import torch
        >>> from aleator.encoders import MLP, Beside
        >>> Beside([MLP(4, (3,)), MLP(4, (5,))])(torch.randn(2, 4)).shape
        torch.Size([2, 8])
    """

    @property
    def out_features(self) -> int | None:
        """The sum of the parts' F, if all tell it."""
        sizes = [known_features(part) for part in self.parts]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Tensor:
        """Run every part on the inputs.

        Args:
            x: Inputs of every part.

        Returns:
            Features (B, F1 + F2 + ...).
        """
        return torch.cat([part(x) for part in self.parts], -1)


class _ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@register_backbone("resnet18")
class ResNet18(nn.Module):
    """ResNet-18 for small images: (B, channels, H, W) -> (B, 8 width), for CIFAR (B, 3, 32, 32) -> (B, 512).

    He et al. 2016 with the first layers for 32 x 32 images: one 3 x 3 convolution and no pooling before the blocks.

    Args:
        channels: Channels of the images.
        width: Channels of the first block; 64 is the paper's.

    Examples:
        >>> import torch
        >>> from aleator.encoders import ResNet18
        >>> ResNet18(width=4).eval()(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 32])
    """

    def __init__(self, channels: int = 3, width: int = 64):
        super().__init__()
        require_at_least("width", width, 1, "the paper's network has width=64")
        self.arguments = {"channels": channels, "width": width}
        self.out_features = 8 * width
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            _ResidualBlock(width, width, 1),
            _ResidualBlock(width, width, 1),
            _ResidualBlock(width, 2 * width, 2),
            _ResidualBlock(2 * width, 2 * width, 1),
            _ResidualBlock(2 * width, 4 * width, 2),
            _ResidualBlock(4 * width, 4 * width, 1),
            _ResidualBlock(4 * width, 8 * width, 2),
            _ResidualBlock(8 * width, 8 * width, 1),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Compute features.

        Args:
            x: Images (B, channels, H, W), normalised.

        Returns:
            Features (B, 8 width): the mean over all positions.
        """
        return torch.mean(self.blocks(self.stem(x)), dim=(2, 3))
