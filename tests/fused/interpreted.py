"""Fused functions on a GPU or, without one, in Triton's interpreter (TRITON_INTERPRET=1) on the CPU."""

import os
from types import ModuleType

from aleator.fused import functions

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and functions.triton_available()


def device_with_fused(monkeypatch, *modules: ModuleType) -> str:
    """The device to test on; in the interpreter, these modules are made to choose fused functions there."""
    if not INTERPRETED:
        return "cuda"
    for module in modules:
        monkeypatch.setattr(module, "fused_kernels", lambda x: functions)
    return "cpu"
