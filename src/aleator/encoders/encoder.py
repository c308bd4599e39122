"""The encoder: a backbone, and output layers that turn its features into von Mises-Fisher posteriors.

There are two ways to compute kappa:

- `kappa="norm"`: one linear layer without bias gives e (B, D), with mu = e / |e| and kappa = |e|. The paper's CIFAR
  networks do this. mu and kappa share all parameters.
- `kappa="head"`: kappa has output layers of its own. They take the backbone's features or, with `kappa_of="mu"`, the
  direction mu (an ablation of the paper). With `kappa_backbone`, mu and kappa share no parameters (the paper's
  controlled experiment).

For finite features kappa is never 0, infinite or NaN. Near the bounds (l, h) its gradient decays like a power, not
exponentially, so that training can leave a bound again:

- A norm n becomes 1 / (1 / (l + n) + 1 / h). This is n up to the relative errors l / n and n / h.
- A head's output u gives log kappa through an arctangent, from log l to log h (`outputs.bounded_kappa`).

With `modes=K` the posteriors are mixtures of K components. The output layers then give K directions and K kappas, and
one more layer, the weight head, gives the logarithms of the K weights. It starts constant, with even weights or with a
given `main_weight`. The directions start apart, because each has random weights of its own.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.encoders.backbones import backbone_spec, known_features
from aleator.encoders.heads import KappaHead, is_lazy, linear, some_outputs, weight_head
from aleator.encoders.outputs import SHORTEST, directions
from aleator.foundation import plain_number, require, require_count, require_one_of, write_bundle
from aleator.posteriors import VMFMixture, VonMisesFisher

KappaFrom = Literal["norm", "head"]
KappaOf = Literal["features", "mu"]

FORMAT_VERSION = 1  # of the saved folder


class Encoder(nn.Module):
    """Inputs -> von Mises-Fisher posteriors: any backbone that gives features, with output layers for mu and kappa.

    With `modes` > 1 the posteriors are mixtures, `VMFMixture`.

    Args:
        backbone: Module that maps B inputs to features (B, F). For features computed before, use `Features(F)` or an
            `MLP`.
        dim: D >= 2. Posteriors lie on the unit sphere in R^D.
        kappa: Where kappa comes from: "norm", the length of the embedding, or "head", output layers of its own.
        features: F. Needed only for a backbone that does not tell it. Without it, the output layers take their size
            from the first batch, like torch's lazy modules.
        kappa_hidden: Widths of the hidden layers of the kappa head. Two give the paper's head of three layers.
        kappa_of: Input of the kappa head: the backbone's "features", or the direction "mu".
        kappa_backbone: Module that maps the inputs to features (B, F') for kappa alone. One linear layer follows it.
        kappa_range: Roughly the range of kappa before training, for kappa="head". `set_kappa_range` makes it exact.
        kappa_bounds: Open interval that kappa never leaves.
        freeze_backbone: Keep the backbone's weights and running statistics fixed.
        modes: K, the number of components of each posterior. 1: posteriors are `VonMisesFisher`. More: `VMFMixture`.
        main_weight: Weight of the first component before training. Default: all weights even. With a large one, the
            first component learns what one mode would, and the others come in where one is not enough.

    Raises:
        ValueError: If arguments are out of range or contradict each other.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.encoders import MLP
        >>> encoder = al.Encoder(MLP(4, (16,)), dim=3)
        >>> q = encoder(torch.randn(5, 4))
        >>> q.mu.shape, q.kappa.shape
        (torch.Size([5, 3]), torch.Size([5]))

        A head for kappa lets kappa learn while mu stays fixed:

        >>> al.Encoder(MLP(4, (16,)), dim=3, kappa="head").separable
        True

        Posteriors of two modes:

        >>> al.Encoder(MLP(4, (16,)), dim=3, modes=2)(torch.randn(5, 4))
        VMFMixture(batch_shape=(5,), modes=2, dim=3, dtype=torch.float32)
    """

    axis: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        dim: int,
        kappa: KappaFrom = "norm",
        *,
        features: int | None = None,
        kappa_hidden: Sequence[int] = (256, 256),
        kappa_of: KappaOf = "features",
        kappa_backbone: nn.Module | None = None,
        kappa_range: tuple[float, float] = (16.0, 32.0),
        kappa_bounds: tuple[float, float] = (1e-3, 1e6),
        freeze_backbone: bool = False,
        modes: int = 1,
        main_weight: float | None = None,
    ):
        super().__init__()
        require(isinstance(backbone, nn.Module), "backbone", backbone, "not a torch module", "pass an nn.Module")
        dim, modes, features = map(plain_number, (dim, modes, features))
        require(isinstance(dim, int) and dim >= 2, "dim", dim, "a sphere needs at least 2", "pass dim >= 2")
        require_count("modes", modes, "pass 1, or 2 for posteriors of two modes")
        main_weight = 1 / modes if main_weight is None else main_weight
        inside = modes == 1 or 0 < main_weight < 1
        require(inside, "main_weight", main_weight, "not inside (0, 1)", "pass for example 0.9")
        require_one_of("kappa", kappa, get_args(KappaFrom))
        require_one_of("kappa_of", kappa_of, get_args(KappaOf))
        if kappa_backbone is not None:
            problem = 'with kappa="norm", kappa has no network of its own'
            require(kappa == "head", "kappa_backbone", type(kappa_backbone).__name__, problem, 'pass kappa="head"')
        if kappa_of == "mu":
            free = kappa == "head" and kappa_backbone is None
            way_out = 'pass kappa="head" and no kappa_backbone'
            require(free, "kappa_of", kappa_of, "kappa already has another source", way_out)
        low, high = map(float, kappa_bounds)
        ordered = 0 < low < high < math.inf
        require(ordered, "kappa_bounds", kappa_bounds, "not an interval in (0, inf)", "pass (low, high)")
        _require_range(kappa_range, (low, high))
        self.dim, self.modes = dim, modes
        self.kappa = kappa
        self.kappa_of = kappa_of
        self.kappa_bounds = (low, high)
        self.kappa_range = (float(kappa_range[0]), float(kappa_range[1]))
        self.freeze_backbone = freeze_backbone
        self.backbone = backbone
        size = known_features(backbone) if features is None else features
        self.mu_head = linear(size, modes * dim, bias=kappa == "head")
        self.weight_head = weight_head(size, modes, main_weight) if modes > 1 else None
        self.kappa_backbone = kappa_backbone
        self.kappa_head: KappaHead | None = None
        if kappa == "head":
            if kappa_backbone is not None:
                size, kappa_hidden = known_features(kappa_backbone), ()
            elif kappa_of == "mu":
                size = modes * dim
            self.kappa_head = KappaHead(size, kappa_hidden, self.kappa_range, self.kappa_bounds, modes)
        # The direction for e = 0. A buffer, so that it follows the module's device and precision.
        self.register_buffer("axis", F.one_hot(torch.tensor(0), dim).float(), persistent=False)
        if freeze_backbone:
            backbone.requires_grad_(False)
        self.train()

    def forward(self, inputs: Any) -> VonMisesFisher | VMFMixture:
        """Encode a batch. The output layers run in the precision of their weights, also under autocast.

        Args:
            inputs: B inputs, in the form that the backbone takes.

        Returns:
            Posteriors of batch shape (B,): mu (B, D) and kappa (B,), or a mixture of `modes` components.
        """
        way_out = "keep it in float32, and convert encoder.backbone alone, or use torch.autocast"
        precise = self.axis.dtype in (torch.float32, torch.float64)
        require(precise, "encoder", self.axis.dtype, "posteriors need float32 or float64", way_out)
        features = self._backbone_features(inputs)
        mu, norm = self._directions(features)
        with torch.autocast(mu.device.type, enabled=False):
            if self.kappa_head is None:
                low, high = self.kappa_bounds
                kappa = 1 / (1 / (low + norm) + 1 / high)
            else:
                kappa = self.kappa_head(self._kappa_inputs(inputs, features, mu))
            if self.weight_head is None:
                return VonMisesFisher(mu.squeeze(-2), kappa.squeeze(-1), validate_args=False)
            parts = VonMisesFisher(mu, kappa, validate_args=False)
            return VMFMixture(self.weight_head(features), parts, validate_args=False)

    def _backbone_features(self, inputs: Any) -> Tensor:
        """Features (B, F) in the precision of the output layers."""
        return _features(self.backbone, inputs, "backbone").to(self.axis.dtype)

    def _directions(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """mu (B, K, D), and the norms (B, K) of the embeddings e."""
        with torch.autocast(features.device.type, enabled=False):
            return directions(self.mu_head(features).unflatten(-1, (self.modes, self.dim)), self.axis)

    def _kappa_inputs(self, inputs: Any, features: Tensor, mu: Tensor) -> Tensor:
        """Inputs (B, F') of the kappa head."""
        if self.kappa_backbone is not None:
            return _features(self.kappa_backbone, inputs, "kappa_backbone").to(self.axis.dtype)
        return mu.flatten(1) if self.kappa_of == "mu" else features

    @torch.no_grad()
    def set_kappa_range(self, inputs: Any, kappa_range: tuple[float, float] | None = None) -> "Encoder":
        """Rescale kappa so that it has a given range on a sample of inputs. mu stays as it is.

        The paper does this before training. With kappa="head" the sample spans the range exactly: its smallest kappa
        becomes the lower end, its largest kappa the upper end. With kappa="norm" only a common factor can change: the
        geometric mean of the sample's kappas moves to that of the range.

        In training mode, a backbone with batch normalisation updates its statistics from the sample, as in any call.
        That does change mu in evaluation mode.

        Args:
            inputs: Sample of inputs, in the form that the backbone takes.
            kappa_range: (low, high), within kappa_bounds. Default: the kappa_range of the encoder.

        Returns:
            The encoder itself.

        Raises:
            ValueError: If the range is not within kappa_bounds.
        """
        low, high = map(float, kappa_range or self.kappa_range)
        _require_range((low, high), self.kappa_bounds)
        self.kappa_range = (low, high)
        if self.kappa_head is None:
            norm = (self(inputs).components.kappa - self.kappa_bounds[0]).clamp_min(SHORTEST)
            middle = math.sqrt(self.kappa_range[0] * self.kappa_range[1])
            self.scale_kappa((middle / norm.log().mean().exp()).item())
        else:
            features = self._backbone_features(inputs)
            kappa_inputs = self._kappa_inputs(inputs, features, self._directions(features)[0])
            self.kappa_head.cover(kappa_inputs, self.kappa_range)
        return self

    @torch.no_grad()
    def scale_kappa(self, factor: float) -> "Encoder":
        """Multiply every kappa by a factor. mu stays as it is.

        With kappa="norm" the last layer's weight is multiplied. kappa_bounds stay, so kappas that are close to a
        bound change by less. With kappa="head" kappa_bounds and kappa_range are multiplied too, and every kappa
        changes by exactly the factor. `save` keeps both; a state dict does not.

        Args:
            factor: Positive number.

        Returns:
            The encoder itself.

        Raises:
            ValueError: If the factor is not positive and finite.
        """
        require(0 < factor < math.inf, "factor", factor, "not a positive number", "pass for example 0.5")
        if self.kappa_head is None:
            self.mu_head.weight.mul_(factor)
            return self
        low, high = self.kappa_bounds
        self.kappa_bounds = (low * factor, high * factor)
        self.kappa_range = (self.kappa_range[0] * factor, self.kappa_range[1] * factor)
        self.kappa_head.set_bounds(self.kappa_bounds)
        return self

    def with_backbone(self, backbone: nn.Module) -> "Encoder":
        """An encoder with another backbone and the same output layers, which are shared and not copied.

        Args:
            backbone: Module that gives as many features as the present backbone.

        Returns:
            The new encoder, in the same mode (training or evaluation).

        Raises:
            ValueError: If the output layers have no size yet.
        """
        self._require_sizes()
        other = self._without_layers(backbone, self.modes)
        other.mu_head, other.kappa_head, other.weight_head = self.mu_head, self.kappa_head, self.weight_head
        return other.train(self.training)

    @torch.no_grad()
    def prune(self, inputs: Any, least: float = 1e-3) -> "Encoder":
        """An encoder without the modes that no input uses. Their small weights go to the other modes.

        Args:
            inputs: Inputs that show which modes are used, such as those of training.
            least: A mode is used if its weight is at least this for some input. Below 1/modes, so that one is used.

        Returns:
            An encoder with fewer modes, the same backbone, and copies of the output layers. If all modes are used, it
            is the encoder itself.

        Raises:
            ValueError: If `least` is not in [0, 1/modes), or if kappa is computed from the directions of all modes.

        Examples:
            >>> import torch, aleator as al
            >>> from aleator.encoders import MLP
            >>> encoder = al.Encoder(MLP(5, (16,)), dim=3, modes=2, main_weight=0.9999)
            >>> encoder.prune(torch.randn(8, 5)).modes
            1
        """
        small = 0 <= least < 1 / self.modes
        require(small, "least", least, f"not in [0, 1/{self.modes})", "pass for example 1e-3")
        if self.weight_head is None:
            return self
        free = self.kappa_of != "mu"
        require(free, "kappa_of", self.kappa_of, "kappa depends on the directions of all modes", "keep all modes")
        training = self.training
        q = self.eval()(inputs)
        self.train(training)
        used = (q.weights >= least).any(0).nonzero().squeeze(1)
        if len(used) == self.modes:
            return self
        other = self._without_layers(self.backbone, len(used))
        other.freeze_backbone = self.freeze_backbone
        axes = torch.arange(self.dim, device=used.device)
        other.mu_head = some_outputs(self.mu_head, (used[:, None] * self.dim + axes).flatten())
        other.weight_head = some_outputs(self.weight_head, used) if len(used) > 1 else None
        if self.kappa_head is not None:
            other.kappa_head = self.kappa_head.of_modes(used)
        return other.train(training)

    def _without_layers(self, backbone: nn.Module, modes: int) -> "Encoder":
        """An encoder with the settings of this one, whose output layers are yet to be replaced."""
        with torch.random.fork_rng(devices=[]):  # the new layers are replaced at once: draw nothing for them
            other = Encoder(
                backbone,
                self.dim,
                self.kappa,
                features=self.mu_head.in_features,
                kappa_hidden=(),
                kappa_of=self.kappa_of,
                kappa_backbone=self.kappa_backbone,
                kappa_range=self.kappa_range,
                kappa_bounds=self.kappa_bounds,
                modes=modes,
            )
        other.axis = self.axis
        return other

    def train(self, mode: bool = True) -> "Encoder":
        """Set training or evaluation mode. A frozen backbone stays in evaluation mode.

        Args:
            mode: True for training, False for evaluation.

        Returns:
            The encoder itself.
        """
        super().train(mode)
        if self.freeze_backbone:
            self.backbone.eval()
        return self

    @property
    def separable(self) -> bool:
        """Whether kappa has parameters of its own, so that mu can stay fixed while kappa learns."""
        return self.kappa_head is not None

    def mu_modules(self) -> list[nn.Module]:
        """The modules that mu and the weights depend on. A shared backbone belongs to mu.

        Returns:
            The backbone, the output layer of mu and, for several modes, that of the weights.
        """
        return [module for module in (self.backbone, self.mu_head, self.weight_head) if module is not None]

    def kappa_modules(self) -> list[nn.Module]:
        """The modules that only kappa depends on; with kappa="norm", those of mu.

        Returns:
            The kappa backbone, if there is one, and the kappa head.
        """
        own = [module for module in (self.kappa_backbone, self.kappa_head) if module is not None]
        return own or self.mu_modules()

    def mu_parameters(self) -> list[nn.Parameter]:
        """Parameters of `mu_modules`.

        Returns:
            The parameters, in the order of the modules.
        """
        return [parameter for module in self.mu_modules() for parameter in module.parameters()]

    def kappa_parameters(self) -> list[nn.Parameter]:
        """Parameters of `kappa_modules`.

        Returns:
            The parameters, in the order of the modules.
        """
        return [parameter for module in self.kappa_modules() for parameter in module.parameters()]

    def spec(self) -> dict[str, Any]:
        """The architecture, as JSON. Together with the state dict it is all that a saved encoder holds.

        Returns:
            Constructor arguments by name, and the specs of the backbones.

        Raises:
            ValueError: If the output layers have no size yet.
        """
        self._require_sizes()
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
            "modes": self.modes,
            "backbone": backbone_spec(self.backbone),
            "kappa_backbone": backbone_spec(self.kappa_backbone) if self.kappa_backbone else None,
        }

    def save(self, path: str | Path, *, overwrite: bool = False) -> str:
        """Write the encoder to a folder: encoder.json and a safetensors file. `load_encoder` reads it.

        The folder appears whole or not at all.

        Args:
            path: The folder. It must be new or empty, or hold an encoder.
            overwrite: Replace another encoder that the folder holds.

        Returns:
            Fingerprint of the content.

        Raises:
            ValueError: If the folder holds something else, or the output layers have no size yet.
        """
        return write_bundle(path, "encoder", FORMAT_VERSION, self.spec(), self.state_dict(), overwrite=overwrite)

    def _require_sizes(self) -> None:
        way_out = "call it on a batch first, or pass features= when building it"
        require(not is_lazy(self), "encoder", type(self).__name__, "its output layers have no size yet", way_out)


def _features(network: nn.Module, inputs: Any, argument: str) -> Tensor:
    """Features (B, F) of the inputs; an error for any other shape."""
    features = network(inputs)
    is_tensor = isinstance(features, Tensor)
    output = f"shape {tuple(features.shape)}" if is_tensor else f"a {type(features).__name__}"
    require(
        is_tensor and features.dim() == 2,
        argument,
        type(network).__name__,
        f"must give features of shape (B, F), not {output}",
        "pass a batch of inputs, or wrap it in a module that pools or flattens its output",
    )
    return features


def _require_range(kappa_range: Sequence[float], bounds: tuple[float, float]) -> None:
    low, high = kappa_range
    problem = f"not an interval within the bounds {bounds}"
    way_out = "pass (low, high), both within kappa_bounds"
    require(bounds[0] < low <= high < bounds[1], "kappa_range", tuple(kappa_range), problem, way_out)
