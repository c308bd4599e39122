"""Checkpoints of a run: `checkpoints/step-XXXXXXXX/` in its folder, each a bundle that is verified on reading."""

import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aleator.foundation import (
    DamagedFileError,
    pack_state,
    read_bundle,
    require,
    unpack_state,
    using_contents,
    write_bundle,
)

FORMAT_VERSION = 1


class Checkpoints:
    """The newest checkpoints of a run.

    Args:
        folder: Folder of the run.
        keep: Number of checkpoints to keep, at least 2: if the newest is damaged, the one before is used.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = folder / "checkpoints"
        self.keep = max(keep, 2)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after `step` updates, and remove checkpoints that are no longer kept."""
        tensors: dict[str, torch.Tensor] = {}
        metadata = {"step": step, "state": pack_state(state, tensors)}
        write_bundle(self._path(step), "checkpoint", FORMAT_VERSION, metadata, tensors, overwrite=True)
        for old in self._steps()[self.keep :]:
            shutil.rmtree(self._path(old))

    def latest(self) -> dict[str, Any] | None:
        """Read the newest checkpoint that is complete. A warning names each newer one that is not.

        Returns:
            The state, or None if no checkpoint was ever finished.

        Raises:
            ValueError: If there are checkpoints, but all are damaged. Starting again would overwrite them, and
                a person may still be able to restore one.
        """
        damaged = []
        for step in self._steps():
            path = self._path(step)
            if not self.is_finished(step):
                warnings.warn(f"checkpoint {path} was never finished, and is left out", stacklevel=3)
                continue
            try:
                bundle = read_bundle(path, "checkpoint", FORMAT_VERSION)
                with using_contents(path, "restore it from a copy"):
                    return unpack_state(bundle.metadata["state"], bundle.tensors)
            except DamagedFileError as damage:
                warnings.warn(f"checkpoint refused, going back to the one before: {damage}", stacklevel=3)
                damaged.append(path.name)
                continue
        require(
            not damaged,
            "folder",
            str(self.folder),
            f"no checkpoint is whole ({', '.join(damaged)} damaged)",
            "restore one of them, or train in a new folder",
        )
        return None

    def is_finished(self, step: int) -> bool:
        """Whether the checkpoint of a step was written to its end."""
        return (self._path(step) / "checkpoint.json").is_file()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """Steps that have a checkpoint, newest first. Folders of other names, such as copies, do not count."""
        numbers = [path.name.removeprefix("step-") for path in self.folder.glob("step-*")]
        return sorted((int(number) for number in numbers if re.fullmatch("[0-9]+", number)), reverse=True)


def last_saved_step(folder: Path) -> int | None:
    """The number of updates in the newest finished checkpoint of a training.

    Args:
        folder: Folder of the training, as for `fit`.

    Returns:
        The number; None if there is no checkpoint.

    Examples:
        >>> from pathlib import Path
        >>> from aleator.training import last_saved_step
        >>> last_saved_step(Path("nowhere")) is None
        True
    """
    checkpoints = Checkpoints(folder)
    return next(filter(checkpoints.is_finished, checkpoints._steps()), None)
