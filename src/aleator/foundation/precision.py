"""Precision of float32 matrix products on a GPU."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

MatmulPrecision = Literal["highest", "high"]


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
