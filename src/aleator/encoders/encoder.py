"""Inputs -> von Mises-Fisher posteriors, and how an encoder is saved and loaded.

Two ways to a certainty kappa:

- `kappa="norm"`: one linear layer without bias gives e (B, D); mu = e / |e| and kappa = |e| (the paper's
  CIFAR networks). The same parameters carry both.
- `kappa="head"`: kappa has output layers of its own, on the backbone's features or, with `kappa_of="mu"`, on the
  direction (the paper's ablation); with `kappa_backbone` mu and kappa have nothing in common (the paper's controlled
  experiment).

For finite features kappa is never 0, infinite or NaN, and its gradient fades like a power, not
exponentially, towards the bounds (l, h): a norm n becomes 1 / (1 / (l + n) + 1 / h), which is n up to the
relative errors l / n and n / h; a head's output u gives log kappa, from log l to log h, through an
arctangent.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders import huggingface as hub  # noqa: F401 (its backbones enter the registry; transformers is imported when one is built)
from aleator.encoders.backbones import MLP, backbone_spec, build_backbone, controlled_mlp, known_features
from aleator.foundation import read_bundle, reject, require, require_one_of, write_bundle
from aleator.posteriors import VonMisesFisher

FORMAT_VERSION = 1
_SHORTEST, _LONGEST = 1e-12, 1e18  # beyond these the squares of float32 coordinates are lost


class Encoder(nn.Module):
    """Any backbone that gives features (B, F), made to give posteriors (B,) on the unit sphere in R^D.

    Args:
        backbone: inputs -> (B, F). For features computed before: `Features(F)`, or an `MLP` on them.
        dim: D >= 2.
        kappa: "norm" or "head".
        features: F, for a backbone that does not say it. Without it the output layers take their size from
            the first batch, as torch's lazy modules do.
        kappa_hidden: hidden widths of the kappa head; two give the paper's head of three layers.
        kappa_of: what the kappa head is given: the backbone's "features", or "mu", where kappa is a function of the
            direction.
        kappa_backbone: inputs -> (B, F'), a network for kappa alone, with one linear layer after it.
        kappa_range: where a kappa head starts, roughly; `calibrate` makes it exact.
        kappa_bounds: the interval that kappa never leaves.
        freeze_backbone: keep the backbone's weights and running statistics as they are.
    """

    axis: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        dim: int,
        kappa: str = "norm",
        *,
        features: int | None = None,
        kappa_hidden: Sequence[int] = (256, 256),
        kappa_of: str = "features",
        kappa_backbone: nn.Module | None = None,
        kappa_range: tuple[float, float] = (16.0, 32.0),
        kappa_bounds: tuple[float, float] = (1e-3, 1e6),
        freeze_backbone: bool = False,
    ):
        super().__init__()
        require(isinstance(backbone, nn.Module), "backbone", backbone, "not a torch module", "pass an nn.Module")
        require(isinstance(dim, int) and dim >= 2, "dim", dim, "a sphere needs at least 2", "pass dim >= 2")
        require_one_of("kappa", kappa, ("norm", "head"))
        require(
            kappa == "head" or kappa_backbone is None,
            "kappa_backbone",
            type(kappa_backbone).__name__,
            'with kappa="norm", kappa has no network of its own',
            'pass kappa="head"',
        )
        require_one_of("kappa_of", kappa_of, ("features", "mu"))
        require(
            kappa_of == "features" or (kappa == "head" and kappa_backbone is None),
            "kappa_of",
            kappa_of,
            "kappa has another source already",
            'pass kappa="head" and no kappa_backbone',
        )
        low, high = map(float, kappa_bounds)
        require(0 < low < high < math.inf, "kappa_bounds", kappa_bounds, "no interval in (0, inf)", "widen it")
        _require_range(kappa_range, (low, high))
        self.dim = dim
        self.kappa = kappa
        self.kappa_of = kappa_of
        self.kappa_bounds = (low, high)
        self.kappa_range = (float(kappa_range[0]), float(kappa_range[1]))
        self.freeze_backbone = freeze_backbone
        self.backbone = backbone
        size = known_features(backbone) if features is None else features
        self.mu_head = _linear(size, dim, bias=kappa == "head")
        self.kappa_backbone = kappa_backbone
        self.kappa_head: KappaHead | None = None
        if kappa == "head":
            if kappa_backbone is not None:
                size, kappa_hidden = known_features(kappa_backbone), ()
            elif kappa_of == "mu":
                size = dim
            self.kappa_head = KappaHead(size, kappa_hidden, self.kappa_range, self.kappa_bounds)
        # A direction for e = 0. A buffer, so that it follows the module's device and precision.
        self.register_buffer("axis", F.one_hot(torch.tensor(0), dim).float(), persistent=False)
        if freeze_backbone:
            backbone.requires_grad_(False)
        self.train()

    def forward(self, inputs: Any) -> VonMisesFisher:
        """B inputs -> posteriors: mu (B, D), kappa (B,). The output layers ignore autocast."""
        mu, norm, given = self._outputs(inputs)
        if self.kappa_head is None:
            low, high = self.kappa_bounds
            kappa = 1 / (1 / (low + norm.squeeze(-1)) + 1 / high)
        else:
            with torch.autocast(mu.device.type, enabled=False):
                kappa = self.kappa_head(given)
        return VonMisesFisher(mu, kappa, validate_args=False)

    def _outputs(self, inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """mu (B, D), the norm (B, 1) of what it was before, and what a kappa head is given (B, F')."""
        features = _features(self.backbone, inputs, "backbone").to(self.axis.dtype)
        with torch.autocast(features.device.type, enabled=False):
            e = self.mu_head(features).clamp(-_LONGEST, _LONGEST)  # (B, D)
            norm = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
            mu = torch.where(norm < _SHORTEST, self.axis, e / norm.clamp_min(_SHORTEST))
        if self.kappa_backbone is not None:
            return mu, norm, _features(self.kappa_backbone, inputs, "kappa_backbone").to(self.axis.dtype)
        return mu, norm, mu if self.kappa_of == "mu" else features

    @torch.no_grad()
    def calibrate(self, inputs: Any, kappa_range: tuple[float, float] | None = None) -> "Encoder":
        """Rescale kappa on these inputs, as the paper does before training; mu stays as it is.

        A head spans kappa_range exactly: the least certain of the inputs gets its lower end, the most
        certain its upper end. A norm has only its scale to give: its geometric mean moves to the middle of
        the range.
        """
        self.kappa_range = tuple(map(float, kappa_range or self.kappa_range))  # type: ignore[assignment]
        _require_range(self.kappa_range, self.kappa_bounds)
        if self.kappa_head is None:
            norm = (self(inputs).kappa - self.kappa_bounds[0]).clamp_min(_SHORTEST)
            middle = math.sqrt(self.kappa_range[0] * self.kappa_range[1])
            self.mu_head.weight.mul_(middle / norm.log().mean().exp())
        else:
            given = self._outputs(inputs)[-1]
            with torch.autocast(given.device.type, enabled=False):
                raw = self.kappa_head.layers(given)
            self.kappa_head.span(raw.min().item(), raw.max().item(), self.kappa_range)
        return self

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        if self.freeze_backbone:
            self.backbone.eval()
        return self

    @property
    def separable(self) -> bool:
        """Whether mu can be held fixed while kappa learns."""
        return self.kappa_head is not None

    def mu_modules(self) -> list[nn.Module]:
        """The modules that mu depends on; a shared backbone is mu's."""
        return [self.backbone, self.mu_head]

    def kappa_modules(self) -> list[nn.Module]:
        """The modules that kappa alone depends on; with kappa="norm", all that mu has."""
        own = [module for module in (self.kappa_backbone, self.kappa_head) if module is not None]
        return own or self.mu_modules()

    def mu_parameters(self) -> list[nn.Parameter]:
        return [parameter for module in self.mu_modules() for parameter in module.parameters()]

    def kappa_parameters(self) -> list[nn.Parameter]:
        return [parameter for module in self.kappa_modules() for parameter in module.parameters()]

    def spec(self) -> dict[str, Any]:
        """The architecture as JSON: with the state dict, all that a saved encoder is."""
        require(
            not is_lazy(self),
            "encoder",
            type(self).__name__,
            "its output layers have no size yet",
            "call it on a batch first, or pass features= when building it",
        )
        return {
            "dim": self.dim,
            "kappa": self.kappa,
            "features": self.mu_head.in_features,
            "kappa_features": self.kappa_head.in_features if self.kappa_head else None,
            "kappa_hidden": self.kappa_head.hidden if self.kappa_head else [],
            "kappa_of": self.kappa_of,
            "kappa_range": list(self.kappa_range),
            "kappa_bounds": list(self.kappa_bounds),
            "freeze_backbone": self.freeze_backbone,
            "backbone": backbone_spec(self.backbone),
            "kappa_backbone": backbone_spec(self.kappa_backbone) if self.kappa_backbone else None,
        }

    def save(self, path: str | Path, *, overwrite: bool = False) -> str:
        """Write the folder `path` (encoder.json and safetensors) atomically; returns its fingerprint."""
        return write_bundle(path, "encoder", FORMAT_VERSION, self.spec(), self.state_dict(), overwrite=overwrite)


def load_encoder(
    path: str | Path,
    *,
    backbone: nn.Module | None = None,
    kappa_backbone: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """The encoder that `Encoder.save` wrote, in evaluation mode.

    A backbone of your own must be passed, built as it was; its weights are then loaded into it.
    """
    bundle = read_bundle(path, "encoder", FORMAT_VERSION)
    spec = bundle.facts
    with torch.random.fork_rng(devices=[]):  # fresh weights are overwritten at once: leave no trace of drawing them
        if backbone is None:
            backbone = build_backbone(spec["backbone"], "backbone")
        if kappa_backbone is None and spec["kappa_backbone"] is not None:
            kappa_backbone = build_backbone(spec["kappa_backbone"], "kappa_backbone")
        encoder = Encoder(
            backbone,
            spec["dim"],
            spec["kappa"],
            features=spec["features"],
            kappa_hidden=spec["kappa_hidden"],
            kappa_of=spec["kappa_of"],
            kappa_backbone=kappa_backbone,
            kappa_range=spec["kappa_range"],
            kappa_bounds=spec["kappa_bounds"],
            freeze_backbone=spec["freeze_backbone"],
        )
    encoder.to(bundle.tensors["mu_head.weight"].dtype)
    if encoder.kappa_head is not None:
        encoder.kappa_head.materialise(spec["kappa_features"])
    try:
        encoder.load_state_dict(bundle.tensors)
    except RuntimeError as mismatch:
        reject(
            "backbone",
            type(backbone).__name__,
            f"does not fit what was saved: {mismatch}",
            "build it as it was",
        )
    return encoder.to(device).eval()


def controlled_encoder(
    in_features: int,
    dim: int | None = None,
    *,
    kappa_of: str = "input",
    kappa_range: tuple[float, float] = (16.0, 32.0),
    initialisation: str = "torch",
    widths: Sequence[int] | None = None,
) -> Encoder:
    """The paper's controlled experiment: inputs (B, in_features), independent mu and kappa MLPs.

    `kappa_of` "mu" gives the paper's ablation with one backbone, a kappa head of three layers on the direction;
    "features" puts the head on the backbone's last layer instead. Call `calibrate` on a sample of inputs before
    training, as the paper does. `initialisation="he"` (He et al. 2015) keeps the scale of the signal through the eight
    layers; with torch's own, all inputs start in nearly one direction, which in two dimensions training may never
    leave. `widths` replaces the paper's hidden layers.
    """
    require_one_of("kappa_of", kappa_of, ("input", "features", "mu"))
    require_one_of("initialisation", initialisation, ("torch", "he"))

    def network() -> MLP:
        return controlled_mlp(in_features) if widths is None else MLP(in_features, widths)

    encoder = Encoder(
        network(),
        in_features if dim is None else dim,
        kappa="head",
        kappa_backbone=network() if kappa_of == "input" else None,
        kappa_of="mu" if kappa_of == "mu" else "features",
        kappa_hidden=((50 * in_features) if widths is None else widths[-1],) * 2,
        kappa_range=kappa_range,
    )
    if initialisation == "he":
        for module in encoder.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, a=0.01)  # the slope of the leaky ReLUs
                nn.init.zeros_(module.bias)
    return encoder


class KappaHead(nn.Module):
    """Features (B, F) -> kappa (B,) within bounds: an MLP with one output u, and

        log kappa = m + w (2 / pi) arctan(pi (scale u + shift) / 2),

    m the middle and w half the width of the interval of log kappa. Scale and shift say where training
    starts; they are not learned.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        in_features: int | None,
        hidden: Sequence[int],
        kappa_range: tuple[float, float],
        kappa_bounds: tuple[float, float],
    ):
        super().__init__()
        self.hidden = [int(width) for width in hidden]
        log_low, log_high = map(math.log, kappa_bounds)
        self.middle, self.half_width = (log_high + log_low) / 2, (log_high - log_low) / 2
        layers: list[nn.Module] = []
        size = in_features
        for width in self.hidden:
            layers += [_linear(size, width), nn.LeakyReLU()]
            size = width
        self.layers = nn.Sequential(*layers, _linear(size, 1))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))
        self.span(-1.0, 1.0, kappa_range)

    @property
    def in_features(self) -> int:
        return self.layers[0].in_features  # type: ignore[return-value]

    def materialise(self, in_features: int) -> None:
        """Give a lazy first layer its size."""
        if is_lazy(self):
            self.layers(self.scale.new_zeros(1, in_features))

    def forward(self, features: Tensor) -> Tensor:
        u = self.layers(features).squeeze(-1) * self.scale + self.shift
        return torch.exp(self.middle + self.half_width * (2 / math.pi) * torch.atan(u * (math.pi / 2)))

    def span(self, low: float, high: float, kappa_range: tuple[float, float]) -> None:
        """Choose scale and shift so that outputs low and high of the MLP give the ends of kappa_range."""
        low_target, high_target = (
            math.tan((math.log(kappa) - self.middle) / self.half_width * math.pi / 2) * 2 / math.pi
            for kappa in kappa_range
        )
        # Inputs alike up to rounding have no spread to stretch: they go to the middle, scale 1.
        spread = high - low
        alike = spread <= 1e-5 * max(abs(low), abs(high))
        scale = 1.0 if alike else (high_target - low_target) / spread
        self.scale.fill_(scale)
        self.shift.fill_((low_target + high_target) / 2 - scale * (low + high) / 2)


def _linear(in_features: int | None, out_features: int, bias: bool = True) -> nn.Linear:
    if in_features is not None:
        return nn.Linear(in_features, out_features, bias=bias)
    with warnings.catch_warnings():  # torch calls lazy modules new; they have been stable for years
        warnings.simplefilter("ignore", UserWarning)
        return nn.LazyLinear(out_features, bias=bias)


def is_lazy(module: nn.Module) -> bool:
    """Whether an output layer still waits for the first batch to learn its size."""
    return any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in module.parameters())


def _features(network: nn.Module, inputs: Any, argument: str) -> Tensor:
    features = network(inputs)
    require(
        isinstance(features, Tensor) and features.dim() == 2,
        argument,
        type(network).__name__,
        f"must give features of shape (B, F), not {_kind(features)}",
        "wrap it in a module that pools or flattens its output",
    )
    return features


def _kind(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _require_range(kappa_range: Sequence[float], bounds: tuple[float, float]) -> None:
    low, high = kappa_range
    require(
        bounds[0] < low <= high < bounds[1],
        "kappa_range",
        tuple(kappa_range),
        f"not an interval within the bounds {bounds}",
        "pass (low, high), both within kappa_bounds",
    )
