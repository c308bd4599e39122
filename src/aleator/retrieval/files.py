"""Posteriors, ids and metadata from files, for the command line."""

import json
from pathlib import Path

import numpy as np
import torch

from aleator.checks import reject, require
from aleator.retrieval.items import Id, Metadata
from aleator.vmf import VonMisesFisher


def read_posteriors(path: Path) -> VonMisesFisher:
    """N posteriors from an .npz or .safetensors file with arrays mu (N, D) and kappa (N,)."""
    require(path.is_file(), "posteriors", str(path), "there is no such file", "name an .npz or .safetensors file")
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            tensors = {name: torch.as_tensor(arrays[name]) for name in ("mu", "kappa") if name in arrays}
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        tensors = load_file(path)
    else:
        reject("posteriors", str(path), "has an unknown ending", "use .npz or .safetensors")
    for name in ("mu", "kappa"):
        require(name in tensors, "posteriors", str(path), f"has no array {name!r}", "store mu (N, D) and kappa (N,)")
    return VonMisesFisher(tensors["mu"], tensors["kappa"])


def read_items(path: Path | None) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Ids and metadata from JSON lines such as {"id": "cat-1", "label": "cat"}: all but the id is metadata."""
    if path is None:
        return None, None
    require(path.is_file(), "items", str(path), "there is no such file", "name a file of JSON lines")
    ids, metadata = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            facts = json.loads(line)
            ids.append(facts.pop("id"))
        except (ValueError, KeyError, AttributeError, TypeError):
            reject(
                "items", f"line {number} of {path}", "is not a JSON object with an id", 'write {"id": ..., "key": ...}'
            )
        metadata.append(facts)
    return ids, metadata
