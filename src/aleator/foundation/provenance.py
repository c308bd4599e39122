"""Where a result came from: command, commit, device, versions, time. Every file under results/ carries it."""

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

_LIBRARIES = ("aleator", "torch", "numpy", "scipy", "faiss-cpu", "lightning-fabric", "pytorch-lightning")


def describe_run(began: float, device: str | torch.device | None = None) -> dict[str, Any]:
    """`began` is the time.time() at which the work started; `device` the one that did it, a GPU if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "command": command(),
        "commit": commit(),
        "device": device_name(torch.device(device)),
        "python": platform.python_version(),
        "versions": {name: version for name in _LIBRARIES if (version := _version(name))},
        "wall_seconds": round(time.time() - began, 1),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def command() -> str:
    """What was typed, without where this machine keeps its programs."""
    program, *arguments = sys.orig_argv
    if arguments and Path(arguments[0]).is_absolute():  # a script: an installed command goes by its own name
        script = Path(arguments.pop(0))
        return shlex.join([script.name] if not script.suffix else [Path(program).name, script.name]) + _rest(arguments)
    return Path(program).name + _rest(arguments)


def _rest(arguments: list[str]) -> str:
    return "".join(" " + shlex.quote(argument) for argument in arguments)


def commit() -> str | None:
    """The commit of the source tree, with a plus where files differ from it; None outside a checkout.

    ALEATOR_COMMIT stands in where the sources were copied without their history.
    """
    if given := os.environ.get("ALEATOR_COMMIT"):
        return given
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
