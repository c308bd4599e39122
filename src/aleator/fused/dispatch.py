"""Whether the fused version of a function can be used."""

from typing import Any

from torch import Tensor


def fused_kernels(x: Tensor) -> Any:
    """The module of GPU kernels where it can be used on this tensor, else None."""
    if not x.is_cuda:
        return None
    from aleator.fused import functions as kernels

    return kernels if kernels.triton_available() else None
