"""Provenance of a result: command, commit, device, versions, time. Every file under results/ holds it."""

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from aleator.foundation.redaction import redacted

_LIBRARIES = ("aleator", "torch", "numpy", "scipy", "faiss-cpu", "lightning-fabric", "pytorch-lightning")


def describe_run(began: float, device: str | torch.device | None = None) -> dict[str, Any]:
    """Provenance of a result that has just been computed.

    Args:
        began: `time.time()` at the start of the work.
        device: The device that did it. Default: a GPU if there is one.

    Returns:
        JSON: command, commit, device, python, versions, wall_seconds (0 if the clock was set back), finished (a date).
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "command": command(),
        "commit": commit(),
        "device": device_name(torch.device(device)),
        "python": platform.python_version(),
        "versions": {name: version for name in _LIBRARIES if (version := _version(name))},
        "wall_seconds": max(0.0, round(time.time() - began, 1)),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def command() -> str:
    """The command line of this process, without passwords, tokens and the folders of programs."""
    return redacted(_command())


def _command() -> str:
    program, *arguments = sys.orig_argv
    if arguments and Path(arguments[0]).is_absolute():  # a script; an installed command is shown without python
        script = Path(arguments.pop(0))
        return shlex.join([script.name] if not script.suffix else [Path(program).name, script.name]) + _rest(arguments)
    return Path(program).name + _rest(arguments)


def _rest(arguments: list[str]) -> str:
    return "".join(" " + shlex.quote(argument) for argument in arguments)


def commit() -> str | None:
    """Commit of the source tree, with a plus if files differ from it; None outside a checkout.

    The environment variable ALEATOR_COMMIT replaces it, for sources that were copied without their history.
    """
    if from_environment := os.environ.get("ALEATOR_COMMIT"):
        return from_environment
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: torch.device) -> str:
    """Model of a GPU, or architecture and number of threads of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
