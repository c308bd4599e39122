"""Posteriors, ids and metadata from files, for the command line."""

import json
from pathlib import Path

import numpy as np
import torch

from aleator.foundation import reject, require
from aleator.posteriors import VonMisesFisher
from aleator.retrieval.items import Id, Metadata

_ENDINGS = (".npz", ".safetensors")


def read_posteriors(path: Path) -> VonMisesFisher:
    """N posteriors from an .npz or .safetensors file with arrays mu (N, D) and kappa (N,)."""
    require(path.is_file(), "posteriors", str(path), "there is no such file", "name an .npz or .safetensors file")
    require(path.suffix in _ENDINGS, "posteriors", str(path), "has an unknown ending", "use .npz or .safetensors")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                tensors = {name: torch.as_tensor(arrays[name]) for name in ("mu", "kappa") if name in arrays}
        else:
            from safetensors.torch import load_file

            tensors = load_file(path)
    except Exception as damage:  # zip and safetensors each have errors of their own
        reject("posteriors", str(path), f"is damaged ({damage})", "write it again")
    for name in ("mu", "kappa"):
        require(name in tensors, "posteriors", str(path), f"has no array {name!r}", "store mu (N, D) and kappa (N,)")
    return VonMisesFisher(tensors["mu"], tensors["kappa"])


def header_of(path: Path) -> dict[str, str]:
    """What `aleator embed` wrote into a posteriors file's header: fingerprint, kappa_pos, prior. Others have none."""
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return file.metadata() or {}


def read_items(path: Path | None) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Ids and metadata from JSON lines such as {"id": "cat-1", "label": "cat"}: all but the id is metadata."""
    if path is None:
        return None, None
    require(path.is_file(), "items", str(path), "there is no such file", "name a file of JSON lines")
    ids, metadata = [], []
    for number, line in enumerate(_lines(path), 1):
        try:
            facts = json.loads(line)
            ids.append(facts.pop("id"))
        except (ValueError, KeyError, AttributeError, TypeError):
            reject(
                "items", f"line {number} of {path}", "is not a JSON object with an id", 'write {"id": ..., "key": ...}'
            )
        metadata.append(facts)
    return ids, metadata


def _lines(path: Path) -> list[str]:
    # Not splitlines: a text may hold characters that it takes for the end of a line.
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines
