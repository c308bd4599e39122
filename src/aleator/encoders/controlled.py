"""The networks of the paper's controlled experiment (appendix, Network Architectures)."""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.foundation import require_one_of

ControlledKappaOf = Literal["input", "features", "mu"]
Initialisation = Literal["torch", "he"]


def controlled_encoder(
    in_features: int,
    dim: int | None = None,
    *,
    kappa_of: ControlledKappaOf = "input",
    kappa_range: tuple[float, float] = (16.0, 32.0),
    initialisation: Initialisation = "torch",
    widths: Sequence[int] | None = None,
    kappa_widths: Sequence[int] | None = None,
    modes: int = 1,
) -> Encoder:
    """The encoder of the paper's controlled experiment: MLPs for mu and kappa.

    Call `Encoder.set_kappa_range` on a sample of inputs before training, as the paper does.

    Args:
        in_features: Dimension of the inputs (B, in_features).
        dim: D of the posteriors. Default: in_features.
        kappa_of: Input of kappa's network. "input": the inputs, through an MLP of its own, which shares nothing with
            that of mu. "mu": the direction (the paper's ablation with one backbone). "features": the last hidden layer
            of mu's MLP.
        kappa_range: Roughly the range of kappa before training.
        initialisation: "torch" for torch's default; "he" for He et al. 2015, which keeps the scale of the signal
            through the eight layers. With "torch", all inputs start in nearly the same direction. In two dimensions,
            training may never leave it.
        widths: Hidden widths. Default: the paper's.
        kappa_widths: Hidden widths of kappa's network. Default: `widths` for kappa_of="input"; else two layers, as wide
            as the last of `widths`, or the paper's. The published code has 10, five times 50, and 10 in every
            dimension, whatever kappa is computed from.
        modes: Number of components of each posterior.

    Returns:
        An encoder with kappa="head".

    Raises:
        ValueError: If a word is not known.

    Examples:
        >>> import torch, aleator as al
        >>> encoder = al.controlled_encoder(4, widths=(16, 16))
        >>> x = torch.rand(100, 4)
        >>> q = encoder.set_kappa_range(x, (16.0, 32.0))(x)
        >>> round(q.kappa.min().item(), 2), round(q.kappa.max().item(), 2)
        (16.0, 32.0)
    """
    require_one_of("kappa_of", kappa_of, get_args(ControlledKappaOf))
    require_one_of("initialisation", initialisation, get_args(Initialisation))

    def network(widths: Sequence[int] | None) -> MLP:
        return controlled_mlp(in_features) if widths is None else MLP(in_features, widths)

    own_widths = widths if kappa_widths is None else kappa_widths
    head_widths = (50 * in_features if widths is None else widths[-1],) * 2 if kappa_widths is None else kappa_widths

    encoder = Encoder(
        network(widths),
        in_features if dim is None else dim,
        kappa="head",
        kappa_backbone=network(own_widths) if kappa_of == "input" else None,
        kappa_of="mu" if kappa_of == "mu" else "features",
        kappa_hidden=head_widths,
        kappa_range=kappa_range,
        modes=modes,
    )
    if initialisation == "he":
        for module in encoder.modules():
            if isinstance(module, nn.Linear) and module is not encoder.weight_head:
                nn.init.kaiming_normal_(module.weight, a=0.01)  # the slope of the leaky ReLUs
                nn.init.zeros_(module.bias)
    return encoder


def controlled_mlp(in_features: int) -> MLP:
    """The paper's network up to its output layer: widths 10 D, five times 50 D, 10 D."""
    narrow, wide = 10 * in_features, 50 * in_features
    return MLP(in_features, (narrow, wide, wide, wide, wide, wide, narrow))
