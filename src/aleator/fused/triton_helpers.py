"""What the GPU versions share: whether Triton is installed, launching on the right device, small Triton functions."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch comes without Triton
    triton = tl = None


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


# Arguments of a kernel that only bound its rows. Triton would compile the kernel again for numbers that 16 divides,
# which makes nothing faster here.
ROW_COUNT = ("count",)


def triton_available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


def on_its_own_device(fused: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: make the device of the first tensor argument current, since Triton launches on the current device."""

    @wraps(fused)
    def launch(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        with torch.cuda.device_of(next(x for x in args if isinstance(x, Tensor))):
            return fused(*args, **options)

    return launch


@lru_cache(maxsize=1024)
def on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Constants as a float64 tensor, made once for each device."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def part_of_dimensions(dim: int) -> int:
    """Dimensions that a matrix product takes at once."""
    return min(64, max(16, triton.next_power_of_2(dim)))


if triton is not None:

    @triton.jit
    def polynomial(coefficients_ptr, count, x):
        """c_0 + c_1 x + ... by Horner's rule. The pointer to c_0 is one, or one for each x."""
        value = x * 0.0 + tl.load(coefficients_ptr + (count - 1))  # in x's shape and the wider of the two dtypes
        for j in range(2, count + 1):
            value = value * x + tl.load(coefficients_ptr + (count - j))
        return value

    @triton.jit
    def clip(x, low, high):
        """x limited to [low, high]. Unlike `minimum` and `maximum` it keeps a NaN."""
        return tl.where(x < low, low, tl.where(x > high, high, x))

    @triton.jit
    def log_sigmoid(x):
        """log of the sigmoid of x. A NaN may be lost, in `minimum`."""
        return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))

    @triton.jit
    def leaky(x, sign):
        """x, or a hundredth of it where `sign` is not positive: a leaky ReLU of x if that is x, or its gradient."""
        return tl.where(sign > 0, x, 0.01 * x)

    @triton.jit
    def linear_layer(x, weight_ptr, bias_ptr, inputs, outputs, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
        """A linear layer of a tile x (ROWS, INPUTS), with a weight (outputs, inputs); 0 in columns that are padding."""
        i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
        inside = (i < inputs)[:, None] & (o < outputs)[None, :]
        weight = tl.load(weight_ptr + o[None, :] * inputs + i[:, None], mask=inside, other=0.0)
        bias = tl.load(bias_ptr + o, mask=o < outputs, other=0.0)
        return tl.dot(x, weight, input_precision=PRECISION) + bias[None, :]

    @triton.jit
    def interval_of(sigma, first, per_node, intervals):
        """Interval of `AngleTable` (special/angles.py) that holds sigma, and the argument of its cubic."""
        position = tl.minimum(tl.maximum((sigma - first) * per_node, 0.0), intervals * 1.0)
        interval = tl.minimum(position.to(tl.int32), intervals - 1)
        return interval, position - interval

    @triton.jit
    def cosines(mu1_ptr, mu2_ptr, rows, row_live, columns, column_live, dim, ROWS: tl.constexpr,
                COLUMNS: tl.constexpr, PART: tl.constexpr):  # fmt: skip
        """mu.mu' of a tile, in float32."""
        product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for start in range(0, dim, PART):
            d = start + tl.arange(0, PART)
            a = tl.load(
                mu1_ptr + rows[:, None] * dim + d[None, :], mask=row_live[:, None] & (d < dim)[None, :], other=0.0
            )
            b = tl.load(
                mu2_ptr + columns[None, :] * dim + d[:, None], mask=column_live[None, :] & (d < dim)[:, None], other=0.0
            )
            product = tl.dot(a, b, product, input_precision="tf32x3")
        return tl.where(product > 1.0, 1.0, tl.where(product < -1.0, -1.0, product))

    @triton.jit
    def of_others(row, row_live, column, column_live, owner_ptr, SEVERAL: tl.constexpr):
        """Whether row and column are of different posteriors; with `SEVERAL`, a posterior has several of them."""
        if SEVERAL:
            owner1 = tl.load(owner_ptr + row, mask=row_live, other=-1)
            owner2 = tl.load(owner_ptr + column, mask=column_live, other=-1)
            apart = owner1[:, None] != owner2[None, :]
        else:
            apart = row[:, None] != column[None, :]
        return apart

else:
    polynomial = clip = log_sigmoid = leaky = linear_layer = interval_of = cosines = of_others = None
