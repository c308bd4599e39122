"""GPU version of encoders/leaky_layers.py: linear layers with leaky ReLUs, in float32.

Narrow layers are one kernel all together. `sizes` holds the width of the input and of each layer. `parameters` are the
weights and biases of all layers in one row: weight (out, in), bias (out,), and so on. Wide layers have matrix products
of torch; what lies between the products of the backward pass is one kernel for each layer.
"""

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from aleator.fused.triton_helpers import ROW_COUNT, leaky, linear_layer, on_its_own_device, tl, triton

_ROWS = 64  # inputs of a program, for narrow layers
_STRETCH, _UNITS, _TILE = 4096, 8, 256  # inputs and units of a program, and inputs of a tile, for a wide layer


@on_its_own_device
def fused_leaky_layers(
    x: Tensor, parameters: Tensor, sizes: tuple[int, ...], precise: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """Outputs of the last layer (B, sizes[-1]) from inputs (B, sizes[0]); and of all other layers, with `keep`."""
    output, hidden = x.new_empty(len(x), sizes[-1]), x.new_empty(len(x) if keep else 0, sum(sizes[1:-1]))
    if len(x):
        _layers_kernel[(triton.cdiv(len(x), _ROWS),)](
            x.contiguous(), parameters, output, hidden, len(x), *_layout(sizes), _precision(precise), keep, _ROWS
        )
    return output, hidden


@on_its_own_device
def fused_leaky_layers_backward(
    grad: Tensor,
    x: Tensor,
    parameters: Tensor,
    output: Tensor,
    hidden: Tensor,
    sizes: tuple[int, ...],
    precise: bool,
    needs_inputs: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients in the parameters, in one row, and in x. `grad` (B, sizes[-1]) is that in the output."""
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_inputs else None
    # Each program has its own sums over its inputs. They are added in a fixed order, so that a run can be repeated.
    programs = triton.cdiv(len(x), _ROWS)
    sums = parameters.new_empty(programs, len(parameters))
    if programs:
        _layers_backward_kernel[(programs,)](
            grad.contiguous(),
            x.contiguous(),
            parameters,
            output,
            hidden,
            sums,
            sums if grad_x is None else grad_x,
            len(x),
            len(parameters),
            *_layout(sizes),
            _precision(precise),
            needs_inputs,
            _ROWS,
        )
    return sums.sum(0), grad_x


@on_its_own_device
def fused_leaky_layer_backward(grad: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in what enters the leaky ReLU of a layer (B, units), and in the bias (units,)."""
    count, units = output.shape
    grad, output = grad.contiguous(), output.contiguous()
    before = torch.empty_like(grad)
    parts = triton.cdiv(count, _STRETCH)
    sums = grad.new_empty(parts, units)
    if count:
        _leaky_kernel[(triton.cdiv(units, _UNITS), parts)](
            grad, output, before, sums, count, units, _STRETCH, _UNITS, _TILE
        )
    return before, sums.squeeze(0) if parts == 1 else sums.sum(0)


def _layout(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Sizes, where each layer begins in a row of `hidden` and of parameters, and units of a tile for any layer."""
    starts = tuple(accumulate(sizes[1:-1], initial=0))
    places = tuple(accumulate(((into + 1) * out for into, out in pairwise(sizes)), initial=0))
    return sizes, starts, places, max(16, triton.next_power_of_2(max(sizes)))


def _precision(precise: bool) -> str:
    return "tf32x3" if precise else "tf32"  # tf32x3 has the errors of float32; "ieee" takes a minute to compile


if triton is not None:

    @triton.jit(do_not_specialize=ROW_COUNT)
    def _layers_kernel(
        x_ptr, parameters_ptr, output_ptr, hidden_ptr, count,
        SIZES: tl.constexpr, STARTS: tl.constexpr, PLACES: tl.constexpr, WIDTH: tl.constexpr,
        PRECISION: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS inputs through all layers."""
        row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        live = row < count
        i = tl.arange(0, WIDTH)
        layers: tl.constexpr = len(SIZES) - 1
        y = tl.load(x_ptr + row * SIZES[0] + i[None, :], mask=live & (i < SIZES[0])[None, :], other=0.0)
        for layer in tl.static_range(0, layers):
            into = SIZES[layer]
            out = SIZES[layer + 1]
            weight_ptr = parameters_ptr + PLACES[layer]
            y = linear_layer(y, weight_ptr, weight_ptr + into * out, into, out, WIDTH, WIDTH, PRECISION)
            y = leaky(y, y)
            if layer == layers - 1:
                tl.store(output_ptr + row * out + i[None, :], y, mask=live & (i < out)[None, :])
            elif KEEP:
                here = hidden_ptr + row * STARTS[layers - 1] + (STARTS[layer] + i)[None, :]
                tl.store(here, y, mask=live & (i < out)[None, :])

    @triton.jit(do_not_specialize=ROW_COUNT)
    def _layers_backward_kernel(
        grad_ptr, x_ptr, parameters_ptr, output_ptr, hidden_ptr, sums_ptr, grad_x_ptr, count, parameters,
        SIZES: tl.constexpr, STARTS: tl.constexpr, PLACES: tl.constexpr, WIDTH: tl.constexpr,
        PRECISION: tl.constexpr, NEEDS_INPUTS: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Each program: the gradient of ROWS inputs back through all layers."""
        row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        live = row < count
        i = tl.arange(0, WIDTH)
        layers: tl.constexpr = len(SIZES) - 1
        sums_ptr += tl.program_id(0).to(tl.int64) * parameters
        last = row * SIZES[layers] + i[None, :]
        y = tl.load(output_ptr + last, mask=live & (i < SIZES[layers])[None, :], other=0.0)
        grad = tl.load(grad_ptr + last, mask=live & (i < SIZES[layers])[None, :], other=0.0)
        for step in tl.static_range(0, layers):
            into = SIZES[layers - 1 - step]
            out = SIZES[layers - step]
            grad = leaky(grad, y)  # the output has the sign of what enters the leaky ReLU
            if step == layers - 1:
                before = x_ptr + row * into + i[None, :]
            else:
                before = hidden_ptr + row * STARTS[layers - 1] + (STARTS[layers - 2 - step] + i)[None, :]
            y = tl.load(before, mask=live & (i < into)[None, :], other=0.0)
            inside = (i < out)[:, None] & (i < into)[None, :]
            cells = PLACES[layers - 1 - step] + i[:, None] * into + i[None, :]
            tl.store(sums_ptr + cells, tl.dot(tl.trans(grad), y, input_precision=PRECISION), mask=inside)
            tl.store(sums_ptr + PLACES[layers - 1 - step] + into * out + i, tl.sum(grad, 0), mask=i < out)
            if NEEDS_INPUTS or step < layers - 1:
                weight = tl.load(parameters_ptr + cells, mask=inside, other=0.0)  # (out, in)
                grad = tl.dot(grad, weight, input_precision=PRECISION)
        if NEEDS_INPUTS:
            here = grad_x_ptr + row * SIZES[0] + i[None, :]
            tl.store(here, grad, mask=live & (i < SIZES[0])[None, :])

    @triton.jit(do_not_specialize=ROW_COUNT)
    def _leaky_kernel(
        grad_ptr, output_ptr, before_ptr, sums_ptr, count, units,
        STRETCH: tl.constexpr, UNITS: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """Each program: UNITS units and STRETCH inputs, over which the gradient is summed."""
        unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
        part = tl.program_id(1)
        total = tl.zeros([UNITS], dtype=tl.float32)
        for begin in range(part * STRETCH, tl.minimum(part * STRETCH + STRETCH, count), TILE):
            row = (begin + tl.arange(0, TILE)).to(tl.int64)
            inside = (row < count)[:, None] & (unit < units)[None, :]
            at = row[:, None] * units + unit[None, :]
            output = tl.load(output_ptr + at, mask=inside, other=0.0)
            grad = leaky(tl.load(grad_ptr + at, mask=inside, other=0.0), output)
            tl.store(before_ptr + at, grad, mask=inside)
            total += tl.sum(grad, 0)
        tl.store(sums_ptr + part * units + unit, total, mask=unit < units)
