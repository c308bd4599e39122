"""Linear layers, each followed by a leaky ReLU. On a GPU they take fewer kernels than torch's own.

- Narrow layers take longer to launch than to compute. They are one kernel forward and one backward, all together.
- A wide layer has torch's matrix products. The gradient of its leaky ReLU and its bias is one kernel.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_for_layers, fused_kernels

MOST_UNITS = 64  # of a narrow layer: its kernel holds a row of each layer in registers


def leaky_layers(x: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """Output of the last layer, (B, units), from inputs (B, features).

    On a GPU, in float32, its gradient cannot be differentiated again.

    Args:
        x: Inputs.
        layers: Each an `nn.Linear`. A layer that does more than that, such as one with hooks, is called as it is.
    """
    usable = fused_for_layers(x) is not None and x.dim() == 2 and not torch.is_autocast_enabled(x.device.type)
    if not usable or not all(map(_is_plain, layers)):
        return plain_leaky_layers(x, layers)
    parameters: list[Any] = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    if len(layers) > 1 and max(max(parameter.shape) for parameter in parameters) <= MOST_UNITS:
        return _narrow_layers(x, parameters)
    for pair in zip(parameters[::2], parameters[1::2], strict=True):
        x = _wide_layer(x, *pair)
    return x


def plain_leaky_layers(x: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """As `leaky_layers`, in plain torch."""
    for layer in layers:
        x = plain_leaky_layer(x, layer)
    return x


def plain_leaky_layer(x: Tensor, layer: nn.Module) -> Tensor:
    """One layer."""
    return F.leaky_relu(layer(x))


def _is_plain(layer: nn.Module) -> bool:
    """Whether a call of the layer does nothing but multiply by its weight and add its bias, in float32."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    plain = type(layer) is nn.Linear and layer.bias is not None and not any(hooks)
    return plain and layer.weight.dtype == layer.bias.dtype == torch.float32


def _narrow_layers(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """All layers in one kernel. The precision of products is torch's own setting."""
    fused: Any = fused_kernels(x)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *parameters))
    sizes = (x.shape[1], *(len(bias) for bias in parameters[1::2]))
    precise = torch.get_float32_matmul_precision() == "highest"

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        row = torch.cat([parameter.flatten() for parameter in parameters])
        output, hidden = fused.fused_leaky_layers(x, row, sizes, precise, keep)
        of_x = needed[0]

        def gradients(grad: Tensor, *saved: Tensor) -> tuple[Tensor | None, ...]:
            grad_row, grad_x = fused.fused_leaky_layers_backward(grad, *saved, sizes, precise, of_x)
            shapes = [torch.Size(shape) for into, out in pairwise(sizes) for shape in ((out, into), (out,))]
            parts = grad_row.split([shape.numel() for shape in shapes])
            return grad_x, *(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

        return output, (x, row, output, hidden), gradients

    return with_gradient(compute, x, *parameters)


def _wide_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer. The output has the sign of what enters the leaky ReLU, so that need not be kept."""
    fused: Any = fused_kernels(x)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        output = F.leaky_relu_(F.linear(x, weight, bias))

        def gradients(grad: Tensor, x: Tensor, weight: Tensor, output: Tensor) -> tuple[Tensor | None, ...]:
            before, grad_bias = fused.fused_leaky_layer_backward(grad, output)
            return (
                before @ weight if needed[0] else None,
                before.mT @ x if needed[1] else None,
                grad_bias if needed[2] else None,
            )

        return output, (x, weight, output), gradients

    return with_gradient(compute, x, weight, bias)
