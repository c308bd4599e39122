"""GPU versions of plain functions elsewhere, as Triton kernels; `fused_kernels` says whether they can be used."""

from aleator.fused.dispatch import fused_kernels

__all__ = ["fused_kernels"]
