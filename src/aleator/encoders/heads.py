"""Output layers of an encoder: the head that gives kappa, and layers that take their size from the first batch."""

import copy
import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aleator.encoders.outputs import bounded_kappa


class KappaHead(nn.Module):
    """Features (B, F) -> kappa (B, K) within bounds: an MLP with an output for each of K modes, and `bounded_kappa`.

    `scale` and `shift` decide where training starts. They are saved with the weights and are not learned.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        in_features: int | None,
        hidden: Sequence[int],
        kappa_range: tuple[float, float],
        kappa_bounds: tuple[float, float],
        modes: int = 1,
    ):
        super().__init__()
        self.hidden = [int(width) for width in hidden]
        self.set_bounds(kappa_bounds)
        layers: list[nn.Module] = []
        size = in_features
        for width in self.hidden:
            layers += [linear(size, width), nn.LeakyReLU()]
            size = width
        self.layers = nn.Sequential(*layers, linear(size, modes))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))
        self.span(-1.0, 1.0, kappa_range)

    @property
    def in_features(self) -> int:
        """F."""
        return self.layers[0].in_features  # type: ignore[return-value]

    def materialise(self, in_features: int) -> None:
        """Give a lazy first layer its size."""
        if is_lazy(self):
            self.layers(self.scale.new_zeros(1, in_features))

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, F) -> kappa (B, K)."""
        return bounded_kappa(self.layers(features), self.scale, self.shift, self.middle, self.half_width)

    def of_modes(self, modes: Tensor) -> "KappaHead":
        """A copy with the outputs of some modes, given by their numbers."""
        other = copy.deepcopy(self)
        other.layers[-1] = some_outputs(other.layers[-1], modes)  # type: ignore[arg-type]
        return other

    def set_bounds(self, kappa_bounds: tuple[float, float]) -> None:
        """Set the interval that kappa never leaves. Scaling both bounds by a factor scales every kappa by it."""
        log_low, log_high = map(math.log, kappa_bounds)
        self.middle, self.half_width = (log_high + log_low) / 2, (log_high - log_low) / 2

    @torch.no_grad()
    def cover(self, features: Tensor, kappa_range: tuple[float, float]) -> None:
        """Choose scale and shift so that kappa reaches from end to end of kappa_range on features (B, F)."""
        with torch.autocast(features.device.type, enabled=False):
            outputs = self.layers(features)
        self.span(outputs.min().item(), outputs.max().item(), kappa_range)

    def span(self, low: float, high: float, kappa_range: tuple[float, float]) -> None:
        """Choose scale and shift so that the MLP's outputs `low` and `high` give the ends of kappa_range."""
        low_target, high_target = (
            math.tan((math.log(kappa) - self.middle) / self.half_width * math.pi / 2) * 2 / math.pi
            for kappa in kappa_range
        )
        # Outputs that differ by rounding alone cannot be stretched: they go to the middle of the range, with scale 1.
        spread = high - low
        alike = spread <= 1e-5 * max(abs(low), abs(high))
        scale = 1.0 if alike else (high_target - low_target) / spread
        self.scale.fill_(scale)
        self.shift.fill_((low_target + high_target) / 2 - scale * (low + high) / 2)


def linear(in_features: int | None, out_features: int, bias: bool = True) -> nn.Linear:
    """A linear layer. With in_features=None it takes its input size from the first batch."""
    if in_features is not None:
        return nn.Linear(in_features, out_features, bias=bias)
    with warnings.catch_warnings():  # torch warns that lazy modules are new; they have been stable for years
        warnings.simplefilter("ignore", UserWarning)
        return nn.LazyLinear(out_features, bias=bias)


def some_outputs(layer: nn.Linear, rows: Tensor) -> nn.Linear:
    """A linear layer with copies of some of the outputs of another, given by their numbers."""
    where = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    other = nn.utils.skip_init(nn.Linear, layer.in_features, len(rows), bias=layer.bias is not None, **where)
    other.load_state_dict({name: value[rows] for name, value in layer.state_dict().items()})
    return other


def weight_head(in_features: int | None, modes: int, main_weight: float) -> nn.Linear:
    """A linear layer for the log weights of a mixture.

    At the start the first weight is `main_weight`, and the others are even, whatever the features.
    """
    lead = math.log(main_weight / (1 - main_weight) * (modes - 1))
    if in_features is None:
        with warnings.catch_warnings():  # see `linear`
            warnings.simplefilter("ignore", UserWarning)
            return _LazyWeights(modes, lead)
    layer = nn.Linear(in_features, modes)
    _start_constant(layer, lead)
    return layer


class _LazyWeights(nn.LazyLinear):
    """A linear layer that takes its input size from the first batch, and is constant then."""

    def __init__(self, modes: int, lead: float):
        self.lead = lead
        super().__init__(modes)

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_features != 0:
            _start_constant(self, self.lead)


@torch.no_grad()
def _start_constant(layer: nn.Linear, lead: float) -> None:
    """Zero weights; the first bias is `lead`, the others are 0."""
    layer.weight.zero_()
    layer.bias.zero_()
    layer.bias[0] = lead


def is_lazy(module: nn.Module) -> bool:
    """Whether some layer has no size yet and waits for the first batch."""
    return any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in module.parameters())
