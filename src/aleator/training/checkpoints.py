"""What a run leaves on disk so that it can go on: who it is, and its last whole states.

A run folder holds `run.json` (the configuration it belongs to) and `checkpoints/step-XXXXXXXX/`, each a
bundle that is verified on reading. Nothing is unpickled.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aleator.foundation import (
    DamagedBundleError,
    pack,
    read_bundle,
    reject,
    replace_file,
    require,
    unpack,
    write_bundle,
)

FORMAT_VERSION = 1


def claim_run_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Make `folder` this run's, or check that it already is; a folder of anything else is left as it is."""
    require(not folder.is_file(), "folder", str(folder), "is a file", "name a folder")
    identity = json.loads(json.dumps(identity))
    record = folder / "run.json"
    if record.is_file():
        try:
            known = json.loads(record.read_bytes())
        except ValueError:
            reject("folder", str(folder), "its run.json is damaged", "name a new folder for this run")
        different = _differences(known, identity)
        require(
            not different,
            "folder",
            str(folder),
            "belongs to a run with another configuration (" + "; ".join(different) + ")",
            "name a new folder for this run, or go on with the old configuration",
        )
        return
    require(
        not folder.exists() or not any(folder.iterdir()),
        "folder",
        str(folder),
        "holds files, but no run.json: it is not a run's folder",
        "name a new or empty folder",
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(record, json.dumps(identity, indent=1).encode())


def _differences(known: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(known, dict) and isinstance(wanted, dict):
        keys = [*known, *(key for key in wanted if key not in known)]
        parts = (_differences(known.get(key), wanted.get(key), f"{name}.{key}" if name else key) for key in keys)
        return [part for each in parts for part in each]
    return [] if known == wanted else [f"{name} was {known!r}, now {wanted!r}"]


def describe_module(module: nn.Module) -> dict[str, Any]:
    """A module's class, its plain settings, and its tensors that are small and not learned."""
    bookkeeping = vars(nn.Module())
    settings = {
        name.lstrip("_"): value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and name not in bookkeeping
    }
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    fixed = {name: value.tolist() for name, value in own if not value.requires_grad and value.numel() <= 16}
    return {"class": type(module).__qualname__} | settings | fixed


def brief(value: Any) -> Any:
    """Long texts (a tokeniser, say) give way to their checksum."""
    if isinstance(value, dict):
        return {key: brief(item) for key, item in value.items()}
    if isinstance(value, str) and len(value) > 200:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()
    return value


class Checkpoints:
    """The last whole states of a run, newest first; at least two are kept."""

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = folder / "checkpoints"
        self.keep = max(keep, 2)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        tensors: dict[str, torch.Tensor] = {}
        facts = {"step": step, "state": pack(state, tensors)}
        write_bundle(self._path(step), "checkpoint", FORMAT_VERSION, facts, tensors, overwrite=True)
        for old in self._steps()[self.keep :]:
            shutil.rmtree(self._path(old))

    def latest(self) -> dict[str, Any] | None:
        """The state of the newest checkpoint that is whole; a refused one is named in a warning.

        None where no checkpoint was ever finished. If some were, but none is whole any more, that is an
        error: starting again would overwrite what may still be of use.
        """
        refused = []
        for step in self._steps():
            path = self._path(step)
            if not (path / "checkpoint.json").is_file():
                warnings.warn(f"checkpoint {path} was never finished: going back to the one before", stacklevel=3)
                continue
            try:
                bundle = read_bundle(path, "checkpoint", FORMAT_VERSION)
            except DamagedBundleError as damage:
                warnings.warn(f"checkpoint refused, going back to the one before: {damage}", stacklevel=3)
                refused.append(path.name)
                continue
            return unpack(bundle.facts["state"], bundle.tensors)
        require(
            not refused,
            "folder",
            str(self.folder),
            f"no checkpoint is whole ({', '.join(refused)} damaged)",
            "restore one of them, or train in a new folder",
        )
        return None

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        return sorted((int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")), reverse=True)
