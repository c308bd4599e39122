"""Networks that turn inputs into features (B, F), and the registry that rebuilds them from a saved encoder.

A backbone that can rebuild itself has `arguments`, the JSON it was made with, and stands in `BACKBONES` under
a name. `out_features` is F. Any other module serves as a backbone too; only loading needs the module again.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.foundation import reject, require

BACKBONES: dict[str, type[nn.Module]] = {}
_Module = TypeVar("_Module", bound=type[nn.Module])


def register_backbone(name: str) -> Callable[[_Module], _Module]:
    """Class decorator: saved encoders with this backbone rebuild themselves, as `cls(**module.arguments)`.

    The class must keep its constructor's arguments, as JSON, in `self.arguments`.
    """

    def register(cls: _Module) -> _Module:
        taken = BACKBONES.get(name)
        require(
            taken is None or taken.__qualname__ == cls.__qualname__,
            "name",
            name,
            "is taken",
            "choose another name",
        )
        BACKBONES[name] = cls
        return cls

    return register


def backbone_spec(module: nn.Module) -> dict[str, Any]:
    """What a saved encoder writes down about its backbone."""
    for name, cls in BACKBONES.items():
        if type(module) is cls:
            return {"name": name, "arguments": module.arguments}
    return {"name": None, "class": type(module).__qualname__}


def build_backbone(spec: dict[str, Any], argument: str = "backbone") -> nn.Module:
    """The inverse of `backbone_spec`, with fresh weights."""
    if spec["name"] is None:
        reject(
            argument,
            None,
            f"the encoder was saved with a {spec['class']}, which is not ours to rebuild",
            f"pass load_encoder(path, {argument}=module), with the module built as it was",
        )
    require(
        spec["name"] in BACKBONES,
        argument,
        spec["name"],
        "the encoder was saved with a backbone that nothing has registered",
        "import the module that calls register_backbone",
    )
    return BACKBONES[spec["name"]](**spec["arguments"])


def known_features(module: nn.Module) -> int | None:
    """F where the module says it: our attribute, timm's, Hugging Face's, or a Sequential's last layer."""
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
        value = getattr(owner, attribute, None)
        if isinstance(value, int):
            return value
    return None


@register_backbone("features")
class Features(nn.Module):
    """Features that were computed before: (B, F) -> (B, F), unchanged."""

    def __init__(self, features: int):
        super().__init__()
        require(features >= 1, "features", features, "at least one is needed", "pass the arrays' last dimension")
        self.arguments = {"features": features}
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        return x


@register_backbone("mlp")
class MLP(nn.Module):
    """(B, in_features) -> (B, widths[-1]): linear layers, each followed by a leaky ReLU."""

    def __init__(self, in_features: int, widths: Sequence[int]):
        super().__init__()
        widths = [int(width) for width in widths]
        require(
            in_features >= 1 and bool(widths) and min(widths) >= 1,
            "widths",
            widths,
            "every layer needs at least one unit",
            "pass the hidden widths, as in MLP(10, (100, 100))",
        )
        self.arguments = {"in_features": in_features, "widths": widths}
        self.out_features = widths[-1]
        sizes = [in_features, *widths]
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.leaky_relu(layer(x))
        return x


@register_backbone("flatten")
class Flatten(nn.Module):
    """Inputs of any shape (B, ...), F numbers each -> (B, F)."""

    def __init__(self, features: int):
        super().__init__()
        self.arguments = {"features": features}
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@register_backbone("standardise")
class Standardise(nn.Module):
    """Features (B, F), less a mean and over a deviation that are kept with the weights and not learned."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int):
        super().__init__()
        self.arguments = {"features": features}
        self.out_features = features
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    @torch.no_grad()
    def fit(self, sample: Tensor) -> "Standardise":
        """Take mean and deviation from a sample (N, F); a feature that is constant there is only centred."""
        deviation, mean = torch.std_mean(sample.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 1e-6 * (1 + mean.abs()), deviation, 1.0))
        return self

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


@register_backbone("unit-scale")
class UnitScale(nn.Module):
    """Features (B, F), each row at root mean square 1.

    Where kappa is the length of an embedding, long features would give large kappas whatever they show.
    """

    def __init__(self, features: int):
        super().__init__()
        self.arguments = {"features": features}
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.out_features**0.5


class _Parts(nn.Module):
    """Backbones made of backbones."""

    def __init__(self, parts: Sequence[nn.Module | dict[str, Any]]):
        super().__init__()
        require(len(parts) > 0, "parts", 0, "no backbone", "pass at least one")
        self.parts = nn.ModuleList(part if isinstance(part, nn.Module) else build_backbone(part) for part in parts)

    @property
    def arguments(self) -> dict[str, Any]:
        return {"parts": [backbone_spec(part) for part in self.parts]}


@register_backbone("chain")
class Chain(_Parts):
    """Backbones one after the other: the first takes the inputs, each of the others takes features (B, F)."""

    @property
    def out_features(self) -> int | None:
        return known_features(self.parts[-1])

    def forward(self, x: Any) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


@register_backbone("beside")
class Beside(_Parts):
    """Backbones side by side: each takes the inputs, and their features make one row (B, F1 + F2 + ...)."""

    @property
    def out_features(self) -> int | None:
        sizes = [known_features(part) for part in self.parts]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1)


def controlled_mlp(in_features: int) -> MLP:
    """The paper's encoder up to its output layer (appendix, Network Architectures): 10 D, 50 D x 5, 10 D."""
    narrow, wide = 10 * in_features, 50 * in_features
    return MLP(in_features, (narrow, wide, wide, wide, wide, wide, narrow))


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
    """ResNet-18 for small images (B, channels, H, W) -> (B, 8 width); for CIFAR, (B, 3, 32, 32) -> (B, 512).

    He et al. 2016 with the stem for 32 x 32 images: one 3 x 3 convolution, no pooling before the blocks.
    """

    def __init__(self, channels: int = 3, width: int = 64):
        super().__init__()
        require(width >= 1, "width", width, "at least one channel is needed", "the paper's network has width=64")
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
        return torch.mean(self.blocks(self.stem(x)), dim=(2, 3))
