"""How products of float32 matrices are rounded on a GPU."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def matrix_products(precision: str | None) -> Iterator[None]:
    """ "highest" for float32 itself, "high" for TF32, ten bits and many times faster; None leaves it as it is."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
