"""Precision of products: of float32 matrices on a GPU, and under autocast."""

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Literal, ParamSpec, TypeVar

import torch

MatmulPrecision = Literal["highest", "high"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextlib.contextmanager
def matmul_precision(precision: MatmulPrecision | None) -> Iterator[None]:
    """Set the precision of float32 matrix products inside a block, or, as a decorator, inside a function.

    Args:
        precision: "highest" computes in float32. "high" allows TF32 on a GPU: ten bits of mantissa, many times
            faster. None changes nothing.

    Examples:
        >>> import torch
        >>> with matmul_precision("high"):
        ...     torch.get_float32_matmul_precision()
        'high'
        >>> torch.get_float32_matmul_precision()
        'highest'
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def without_autocast(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: compute in the dtype of the arguments, also where autocast is on.

    Autocast would take inner products in bfloat16 or float16, and a unit vector would lose its length.

    Args:
        function: Its first argument with a device, such as a tensor or a posterior, says where it computes.

    Examples:
        >>> import torch
        >>> @without_autocast
        ... def product(a, b):
        ...     return a @ b
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     product(torch.eye(2), torch.eye(2)).dtype
        torch.float32
    """

    @wraps(function)
    def precisely(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        devices = (getattr(x, "device", None) for x in (*args, *options.values()))
        device = next(x.type for x in devices if isinstance(x, torch.device))
        available = torch.amp.is_autocast_available(device)  # not on the device "meta"
        if not (available and torch.is_autocast_enabled(device)):
            return function(*args, **options)
        with torch.autocast(device, enabled=False):
            return function(*args, **options)

    return precisely
