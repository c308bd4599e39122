"""Linear layers, each followed by a leaky ReLU. Narrow layers on a GPU are one kernel, forward and backward."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.fused import fused_kernels

MOST_UNITS = 64  # of a layer: the fused version holds a row of each layer in registers


def leaky_layers(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Output of the last layer, (B, units), from inputs (B, features).

    Narrow layers take longer to launch than to compute. On a GPU they run as one kernel where no layer has more than
    `MOST_UNITS` units. Its gradient cannot be differentiated again.
    """
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    if _fits_in_one_kernel(x, parameters):
        keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *parameters))
        return _LeakyLayers.apply(keep, x, *parameters)
    return plain_leaky_layers(x, parameters)


def plain_leaky_layers(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """As `leaky_layers`, one after another. `parameters` are weight and bias of each layer in turn."""
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = F.leaky_relu(F.linear(x, weight, bias))
    return x


def _fits_in_one_kernel(x: Tensor, parameters: Sequence[Tensor]) -> bool:
    return (
        fused_kernels(x) is not None
        and x.dim() == 2
        and len(parameters) > 2
        and max(max(parameter.shape) for parameter in parameters) <= MOST_UNITS
        and all(tensor.dtype == torch.float32 for tensor in (x, *parameters))
        and not torch.is_autocast_enabled("cuda")
        and not torch.compiler.is_compiling()
    )


class _LeakyLayers(torch.autograd.Function):
    """`leaky_layers` in one kernel. The precision of products is torch's own setting."""

    @staticmethod
    def forward(ctx, keep: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        fused = fused_kernels(x)
        assert fused is not None  # as `leaky_layers` has seen
        ctx.sizes = (x.shape[1], *(len(bias) for bias in parameters[1::2]))
        ctx.precise = torch.get_float32_matmul_precision() == "highest"
        row = torch.cat([parameter.flatten() for parameter in parameters])
        output, hidden = fused.fused_leaky_layers(x, row, ctx.sizes, ctx.precise, keep)
        ctx.save_for_backward(x, row, output, hidden)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, row, output, hidden = ctx.saved_tensors
        fused = fused_kernels(x)
        assert fused is not None
        grad_row, grad_x = fused.fused_leaky_layers_backward(
            grad, x, row, output, hidden, ctx.sizes, ctx.precise, ctx.needs_input_grad[1]
        )
        shapes = [shape for into, out in pairwise(ctx.sizes) for shape in ((out, into), (out,))]
        parts = grad_row.split([torch.Size(shape).numel() for shape in shapes])
        return None, grad_x, *(part.view(shape) for part, shape in zip(parts, shapes, strict=True))
