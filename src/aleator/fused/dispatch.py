"""Choice between a fused function and the plain one that it replaces."""

from types import ModuleType

import torch
from torch import Tensor


def fused_kernels(x: Tensor) -> ModuleType | None:
    """Module of the fused functions if they can run on this tensor, else None.

    They need a tensor on a CUDA device and an installed Triton. The caller chooses:

        fused = fused_kernels(z)
        forward = fused.fused_sampled_cosines if fused else plain_sampled_cosines

    Triton is imported at the first call for a CUDA tensor, so a CPU never loads it.
    """
    if not x.is_cuda:
        return None
    from aleator.fused import functions

    return functions if functions.triton_available() else None


def fused_for_layers(x: Tensor) -> ModuleType | None:
    """The same for fused functions that stand in for layers of a network, which people also trace and transform.

    They need float32, and are not used inside `torch.compile` and `torch.func`, which could not follow them.
    """
    followed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return None if followed or x.dtype != torch.float32 else fused_kernels(x)
