"""Checks of arguments. An error names the argument, its value, the problem and a way out.

    raise ValueError("p = 1.5: not a probability inside (0, 1); pass for example 0.95")

`require` is the general check. The others say common checks in one line. Importing them does not import torch.
"""

import sys
from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor

from aleator.foundation.files import holds_nothing


class BadArgumentError(ValueError):
    """The error for a bad argument: "argument = value: problem; way out".

    Args:
        argument: Name of the argument.
        value: Its value, as text.
        problem: What is wrong with it.
        way_out: What the user can do.

    Examples:
        >>> str(BadArgumentError("dim", "1", "too small", "pass 2 or more"))
        'dim = 1: too small; pass 2 or more'
    """

    def __init__(self, argument: str, value: str, problem: str, way_out: str):
        super().__init__(argument, value, problem, way_out)  # all of them, so that it can be pickled
        self.argument, self.value, self.problem, self.way_out = argument, value, problem, way_out

    def __str__(self) -> str:
        return f"{self.argument} = {self.value}: {self.problem}; {self.way_out}"


def reject(argument: str, value: Any, problem: str, way_out: str) -> NoReturn:
    """Raise the error for a bad argument.

    Args:
        argument: Its name.
        value: Its value. Of a large tensor, shape and dtype are shown.
        problem: What is wrong with it.
        way_out: What the user can do.

    Raises:
        BadArgumentError: Always. It is a ValueError.
    """
    raise BadArgumentError(argument, _show(value), problem, way_out)


def require(ok: "bool | Tensor", argument: str, value: Any, problem: str, way_out: str) -> None:
    """Raise unless `ok`.

    Args:
        ok: One flag, or a tensor of flags. The first value whose flag is False is shown.
        argument: Name of the argument.
        value: Its value; for a tensor of flags, a tensor of the same shape.
        problem: What is wrong with it.
        way_out: What the user can do.

    Raises:
        ValueError: "argument = value: problem; way out".

    Examples:
        >>> require(2 > 3, "dim", 2, "too small", "pass 3 or more")
        Traceback (most recent call last):
        aleator.foundation.checks.BadArgumentError: dim = 2: too small; pass 3 or more
    """
    if _is_tensor(ok):
        if ok.is_meta:
            reject(argument, ok.device, "a tensor there has no numbers", "move it to a CPU or GPU, and fill it")
        if bool(ok.all()):
            return
        if _is_tensor(value) and value.shape == ok.shape:
            value = value[~ok].flatten()[0].item()
    elif ok:
        return
    reject(argument, value, problem, way_out)


def require_one_of(argument: str, value: Any, known: Iterable[Any]) -> None:
    """Raise unless `value` is one of `known`. The error lists them.

    For a word with a Literal type, pass `get_args(TheType)`.
    """
    known = list(known)
    require(value in known, argument, value, "not known", f"choose one of {', '.join(map(repr, known))}")


def require_type(argument: str, value: Any, types: type | tuple[type, ...], way_out: str) -> None:
    """Raise unless `value` is an instance of one of `types`. The error shows the type of `value`."""
    names = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
    article = "an" if names[0].upper() in "AEIOU" else "a"
    require(isinstance(value, types), argument, type(value).__name__, f"not {article} {names}", way_out)


def require_at_least(argument: str, value: float, least: float, way_out: str | None = None) -> None:
    """Raise unless `value >= least`."""
    require(value >= least, argument, value, f"must be at least {least}", way_out or f"pass {least} or more")


def is_whole(value: Any, least: int) -> bool:
    """Whether `value`, of any type, is a whole number of Python or NumPy that is not below `least`. True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def require_count(argument: str, value: Any, way_out: str) -> None:
    """Raise unless `value` is a positive whole number.

    Args:
        argument: Name of the argument.
        value: Its value, of any type.
        way_out: What to pass instead.

    Raises:
        ValueError: If `value` is not a whole number, or is below 1.
    """
    require(is_whole(value, 1), argument, value, "not a positive whole number", way_out)


def require_probability(argument: str, value: "float | Tensor", way_out: str) -> None:
    """Raise unless `value`, or every entry of it, lies strictly between 0 and 1."""
    inside = (value > 0) & (value < 1) if _is_tensor(value) else 0 < value < 1
    require(inside, argument, value, "not a probability inside (0, 1)", way_out)


def require_float(argument: str, value: "Tensor") -> None:
    """Raise unless `value` is a float32 or float64 tensor."""
    import torch

    if not _is_tensor(value):
        kind = type(value).__name__
        problem = "a NumPy array, not a tensor" if kind == "ndarray" else "not a tensor"
        reject(argument, kind, problem, f"pass torch.as_tensor({argument})")
    precise = value.dtype in (torch.float32, torch.float64)
    require(precise, argument, value.dtype, "expected a float32 or float64 tensor", f"pass {argument}.float()")


def require_class_numbers(labels: Any) -> None:
    """Raise if the labels are names of classes. The error says how to number them."""
    first = next(iter(labels), 0) if isinstance(labels, Iterable) and not _is_tensor(labels) else 0
    way_out = "number the classes: numpy.unique(labels, return_inverse=True)[1]"
    require(not isinstance(first, str), "labels", str(first), "a name, not a number", way_out)


def plain_number(value: Any) -> Any:
    """A number of NumPy or torch as one of Python, which JSON takes. Anything else stays as it is.

    Args:
        value: Anything.

    Returns:
        An int, float or bool for a scalar of NumPy and a tensor of shape (), else `value`.

    Examples:
        >>> import numpy as np
        >>> plain_number(np.int64(3)), plain_number("3")
        (3, '3')
    """
    return value.item() if getattr(value, "shape", None) == () else value


def make_numbers_plain(settings: Any) -> None:
    """Replace the numbers of NumPy and torch in the fields of a frozen dataclass by those of Python."""
    for field in fields(settings):
        object.__setattr__(settings, field.name, plain_number(getattr(settings, field.name)))


def require_new_folder(argument: str, folder: Path, way_out: str = "name a new folder") -> None:
    """Raise unless `folder` is missing or empty, see `holds_nothing`."""
    require(holds_nothing(folder), argument, str(folder), "is not empty" if folder.is_dir() else "is a file", way_out)


def require_file(argument: str, path: Path, way_out: str = "name a file") -> None:
    """Raise unless `path` is a file. The error tells a folder from a name that is not there."""
    require(path.is_file(), argument, str(path), "is a folder" if path.is_dir() else "there is no such file", way_out)


def require_not_compiled(argument: str) -> None:
    """Raise inside torch.compile: tracing the special functions of posteriors would take minutes.

    An export (torch.export, ONNX) is not refused: it takes mu and kappa, which need no special functions.

    Args:
        argument: Name of the argument that would be traced.

    Raises:
        ValueError: If torch.compile traces this call, or runs it within a function that it has given up tracing.
    """
    import torch

    if getattr(torch.compiler, "is_exporting", lambda: False)():
        return
    problem = "posteriors do not work inside torch.compile: tracing their special functions takes minutes"
    way_out = "compile the network that gives mu and kappa, such as the backbone of an encoder"
    if torch.compiler.is_compiling():
        # torch cannot trace how our own error is made. Of a plain one it shows the text, or it calls again untraced.
        raise ValueError(f"{argument}: {problem}; {way_out}")
    if "torch._dynamo" in sys.modules:  # torch.compile loads it
        callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)()
        if callback not in (None, False):
            reject(argument, "a tensor of a compiled function", problem, way_out)


def _is_tensor(value: Any) -> "TypeGuard[Tensor]":
    torch = sys.modules.get("torch")  # where it is not loaded, there are no tensors
    return torch is not None and isinstance(value, torch.Tensor)


def _show(value: Any) -> str:
    if _is_tensor(value):
        return f"tensor of shape {tuple(value.shape)} and {value.dtype}" if value.numel() > 1 else str(value.item())
    return repr(value)
