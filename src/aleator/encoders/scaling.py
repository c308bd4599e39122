"""Backbones that scale features: columns to one size, and rows so that a long one is not taken for a sure one."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders.backbones import register_backbone

_LONGEST = 3.0  # of what is shortened, in units of its ordinary size
_ROUNDING = 1e-6  # what differs by less, relative to its mean, differs by rounding
_LEAST_DEVIATION = 1e-37  # smaller numbers have few digits in float32
_LARGEST = 1e15  # the squares of a row of larger numbers would not fit into float32
_LEAST_LENGTH = 1e-3  # of a row, whose ordinary length is sqrt(F): zeros have no logarithm
_LEAST_SPREAD = 1e-3  # of log lengths: with less, they differ by rounding


class _Scale(nn.Module):
    """Base class of backbones that scale features (B, F)."""

    more = 0  # features that they put beside them

    def __init__(self, features: int):
        super().__init__()
        self.arguments = {"features": features}
        self.out_features = features + self.more


@register_backbone("standardise")
class Standardise(_Scale):
    """Subtracts a mean from features (B, F) and divides by a standard deviation.

    Both are buffers: they are saved with the weights and not learned. They start as 0 and 1; `fit` sets them. A feature
    that is constant in the sample becomes 0, whatever it is later: nothing can be learned about it.

    Args:
        features: F.

    Examples:
        >>> import torch
        >>> from aleator.encoders import Standardise
        >>> x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> Standardise(2).fit(x)(x)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int):
        super().__init__(features)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    @torch.no_grad()
    def fit(self, sample: Tensor) -> "Standardise":
        """Take mean and standard deviation from a sample.

        Args:
            sample: Features (N, F).

        Returns:
            The module itself.
        """
        deviation, mean = torch.std_mean(sample.double(), 0, correction=0)
        self.mean.copy_(mean)
        constant = deviation <= _ROUNDING * mean.abs()
        self.deviation.copy_(torch.where(constant, torch.inf, deviation.clamp_min(_LEAST_DEVIATION)))
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Standardise features.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F).
        """
        return _squarable((x - self.mean) / self.deviation)

    def differences(self, x: Tensor) -> Tensor:
        """The same, but a feature that was constant in the sample is only centred. What it is now may be news.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F).
        """
        return (x - self.mean) / torch.where(self.deviation.isinf(), 1.0, self.deviation)


@register_backbone("unit-scale")
class UnitScale(_Scale):
    """Scales each row of features (B, F) to root mean square 1.

    With kappa="norm", kappa is the length of an embedding. Without this scaling, long features would give large kappas
    whatever they show. But what the length says is lost; `DirectionAndLength` keeps it.

    Args:
        features: F.

    Examples:
        >>> import torch
        >>> from aleator.encoders import UnitScale
        >>> UnitScale(2)(torch.tensor([[3.0, 4.0]])).square().mean().item()
        1.0
    """

    def forward(self, x: Tensor) -> Tensor:
        """Scale every row.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F) with root mean square 1 in each row.
        """
        return _unit_rows(x)


@register_backbone("bounded-scale")
class BoundedScale(_Scale):
    """Shortens long rows of features (B, F): a root mean square r becomes r / sqrt(1 + r^2 / 9).

    Ordinary rows keep their length, which in few features tells as much as the direction, and no row is longer than 3.

    Args:
        features: F.

    Examples:
        >>> import torch
        >>> from aleator.encoders import BoundedScale
        >>> BoundedScale(2)(torch.tensor([[0.1, 0.1], [1e6, 1e6]]))
        tensor([[0.0999, 0.0999],
                [3.0000, 3.0000]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Scale every row.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F), whose rows have a root mean square below 3.
        """
        x = _squarable(x)
        return _shortened(x, x.norm(dim=-1, keepdim=True) / self.out_features**0.5)


@register_backbone("direction-and-length")
class DirectionAndLength(_Scale):
    """Scales each row of features (B, F) to root mean square 1, and puts its length beside it, as one more feature.

    In tables of numbers, the length of a row can tell classes apart. In features of noisy items it tells how noisy they
    are. As a feature of its own it can be used in either way, and a long row does not give a large kappa by itself. The
    feature is the logarithm of the length, standardised, and never beyond 3.

    Args:
        features: F.

    Examples:
        >>> import torch
        >>> from aleator.encoders import DirectionAndLength
        >>> x = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
        >>> DirectionAndLength(2).fit(x)(x)
        tensor([[ 0.8485,  1.1314, -0.9487],
                [ 0.8485,  1.1314,  0.9487]])
    """

    more = 1  # the length
    middle: Tensor
    spread: Tensor

    def __init__(self, features: int):
        super().__init__(features)
        self.register_buffer("middle", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    @torch.no_grad()
    def fit(self, sample: Tensor) -> "DirectionAndLength":
        """Take the mean and the standard deviation of the logarithm of the length from a sample.

        Args:
            sample: Features (N, F).

        Returns:
            The module itself.
        """
        spread, middle = torch.std_mean(_log_length(sample.double()), correction=0)
        self.middle.copy_(middle)
        self.spread.copy_(spread.clamp_min(_LEAST_SPREAD))
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Scale every row.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F + 1): F with root mean square 1 in each row, and the length.
        """
        length = (_log_length(x) - self.middle) / self.spread
        return torch.cat([_unit_rows(x), _shortened(length, length)], -1)


def _squarable(x: Tensor) -> Tensor:
    """Numbers that can be squared and summed in float32; larger ones become the largest such number."""
    return x.clamp(-_LARGEST, _LARGEST)


def _unit_rows(x: Tensor) -> Tensor:
    """Rows (B, F) with root mean square 1."""
    return F.normalize(_squarable(x), dim=-1) * x.shape[-1] ** 0.5


def _log_length(x: Tensor) -> Tensor:
    """Logarithm (B, 1) of the root mean square of each row (B, F). That of a row of zeros is finite, too."""
    return _squarable(x).norm(dim=-1, keepdim=True).clamp_min(_LEAST_LENGTH).log() - 0.5 * math.log(x.shape[-1])


def _shortened(x: Tensor, size: Tensor) -> Tensor:
    """x of a size, shortened to one below 3. A small size stays as it is."""
    return x / (1 + (size / _LONGEST).square()).sqrt()
