"""Every error for bad input is worded here: it names the argument, its value and the way out."""

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor


def reject(argument: str, value: Any, problem: str, way_out: str) -> NoReturn:
    """Raise the one kind of error that users see for a bad argument."""
    raise ValueError(f"{argument} = {_show(value)}: {problem}; {way_out}")


def require(ok: bool | Tensor, argument: str, value: Any, problem: str, way_out: str) -> None:
    """Raise unless ok. A tensor of flags costs one reduction, and the first offender is the value shown."""
    if isinstance(ok, Tensor):
        if bool(ok.all()):
            return
        if isinstance(value, Tensor) and value.shape == ok.shape:
            value = value[~ok].flatten()[0].item()
    elif ok:
        return
    reject(argument, value, problem, way_out)


def require_one_of(argument: str, value: Any, known: Iterable[Any]) -> None:
    known = list(known)
    require(value in known, argument, value, "not known", f"choose one of {', '.join(map(repr, known))}")


def require_float(argument: str, value: Tensor) -> None:
    require(
        isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float64),
        argument,
        getattr(value, "dtype", type(value).__name__),
        "expected a float32 or float64 tensor",
        f"pass {argument}.float()",
    )


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)} and {value.dtype}" if value.numel() > 1 else str(value.item())
    return repr(value)
