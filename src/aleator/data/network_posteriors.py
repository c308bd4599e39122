"""The true posteriors of a process: two small networks give each input a direction and a kappa."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from aleator.fused import fused_kernels

Layers = Sequence[tuple[Tensor, Tensor]]  # weight (out, in) and bias (out,) of each layer; leaky ReLUs between layers
_MOST_UNITS = 128  # of a layer: the fused version holds a row of each layer in registers


def network_posteriors(
    x: Tensor, mu_layers: Layers, kappa_layers: Layers, span: tuple[float, float], kappa_of_mu: bool = False
) -> tuple[Tensor, Tensor]:
    """Directions (..., D) and kappas (...) of inputs (..., I), without gradients.

    Args:
        x: Inputs (..., I).
        mu_layers: Three layers. The direction is their output, normalised.
        kappa_layers: Two layers, the last with one unit u. kappa = exp(a softplus(u) + b).
        span: The numbers a and b.
        kappa_of_mu: Whether the layers of kappa take the direction in place of the input.
    """
    fused = fused_kernels(x)
    widest = max(max(weight.shape) for weight, _ in (*mu_layers, *kappa_layers))
    if fused and x.dtype == torch.float32 and widest <= _MOST_UNITS:
        return fused.fused_network_posteriors(x, mu_layers, kappa_layers, span, kappa_of_mu)
    return plain_network_posteriors(x, mu_layers, kappa_layers, span, kappa_of_mu)


@torch.no_grad()
def plain_network_posteriors(
    x: Tensor, mu_layers: Layers, kappa_layers: Layers, span: tuple[float, float], kappa_of_mu: bool
) -> tuple[Tensor, Tensor]:
    """As `network_posteriors`, layer by layer."""
    mu = F.normalize(_output(x, mu_layers), dim=-1)
    u = _output(mu if kappa_of_mu else x, kappa_layers).squeeze(-1)
    return mu, torch.exp(span[0] * F.softplus(u) + span[1])


def _output(x: Tensor, layers: Layers) -> Tensor:
    for place, (weight, bias) in enumerate(layers):
        x = F.linear(F.leaky_relu(x) if place else x, weight, bias)
    return x
