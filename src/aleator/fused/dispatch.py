"""Choice between a fused function and the plain one that it replaces."""

from types import ModuleType

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
