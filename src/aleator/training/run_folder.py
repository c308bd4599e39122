"""A run's folder belongs to one configuration, which `run.json` holds."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from inspect import isroutine
from pathlib import Path
from typing import Any

from torch import nn

from aleator.encoders import Encoder
from aleator.foundation import holds_nothing, read_json, replace_file, require
from aleator.training.recipe import Recipe

# These fields may change when a run is resumed: they change neither what is learned nor what is logged.
_MAY_CHANGE = ("checkpoint_every", "keep_checkpoints")
_LONGEST_TEXT = 200
_LONGEST_SHOWN, _MOST_NAMED = 60, 6  # characters of a value, and values, in an error
# What a loss says of itself, and folders of earlier releases do not.
_ADDED = ("functions", "start_kappa_pos", "start_a", "start_b")


def run_identity(
    encoder: Encoder, loss: nn.Module, recipe: Recipe, processes: int, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The configuration of a run, as JSON. Weights are not part of it: a resumed run may start from others.

    Args:
        encoder: The encoder; its specification and number of parameters count.
        loss: The loss; its class and settings count.
        recipe: All fields count but those that may change.
        processes: Number of processes.
        config: Anything else that the caller wants to be compared.

    Returns:
        What `run.json` holds.
    """
    settings = dataclasses.asdict(recipe)
    return {
        "recipe": {name: value for name, value in settings.items() if name not in _MAY_CHANGE},
        "encoder": _shorten(encoder.spec()) | {"parameters": sum(p.numel() for p in encoder.parameters())},
        "loss": {name or "loss": _describe_module(module) for name, module in loss.named_modules()},
        "processes": processes,
        "config": dict(config or {}),
    }


def claim_run_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Create a run's folder, or check that it belongs to the same configuration.

    Args:
        folder: A new or empty folder, or the folder of this run.
        identity: See `run_identity`.

    Raises:
        ValueError: If the folder belongs to another configuration, or holds other files. Nothing is changed then.
    """
    require(not folder.is_file(), "folder", str(folder), "is a file", "name a folder")
    identity = json.loads(json.dumps(identity))
    record = folder / "run.json"
    if record.is_file():
        recorded = read_json(record, "name a new folder for this run")
        differences = _differences(recorded, identity)
        more = len(differences) - _MOST_NAMED
        if more > 0:
            differences[_MOST_NAMED:] = [f"and {more} more"]
        require(
            not differences,
            "folder",
            str(folder),
            "belongs to a run with another configuration (" + "; ".join(differences) + ")",
            "name a new folder for this run, or use the old configuration",
        )
        return
    require(
        holds_nothing(folder),
        "folder",
        str(folder),
        "holds files but no run.json, so it is not the folder of a run",
        "name a new or empty folder",
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(record, json.dumps(identity, indent=1).encode())


def _differences(recorded: Any, wanted: Any, name: str = "") -> list[str]:
    """One line for each value that differs, with its dotted name."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        unknown = _ADDED if name.startswith("loss.") else ()
        keys = [*recorded, *(key for key in wanted if key not in recorded and key not in unknown)]
        nested = (_differences(recorded.get(key), wanted.get(key), f"{name}.{key}" if name else key) for key in keys)
        return [difference for differences in nested for difference in differences]
    return [] if recorded == wanted else [f"{name} was {_brief(recorded)}, now {_brief(wanted)}"]


def _brief(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _describe_module(module: nn.Module) -> dict[str, Any]:
    """A module's class, its plain settings, the names of its functions, and its small tensors that are not learned.

    Where a parameter that is learned began is one of the plain settings, if the module keeps it.
    """
    attributes_of_every_module = vars(nn.Module())
    settings = {
        name.lstrip("_"): value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and name not in attributes_of_every_module
    }
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    fixed = {name: tensor.tolist() for name, tensor in tensors if not tensor.requires_grad and tensor.numel() <= 16}
    functions = {
        name.lstrip("_"): f"{value.__module__}.{value.__qualname__}"
        for name, value in vars(module).items()
        if isroutine(value) and name not in attributes_of_every_module
    }
    described = {"class": type(module).__qualname__} | settings | fixed
    return described | {"functions": functions} if functions else described


def _shorten(value: Any) -> Any:
    """Replace long texts (a tokeniser, for example) by their checksum."""
    if isinstance(value, dict):
        return {key: _shorten(item) for key, item in value.items()}
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()
    return value
