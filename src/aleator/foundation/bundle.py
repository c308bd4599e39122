"""A folder of tensors and facts that is either whole or refused: safetensors plus JSON, never pickle.

`NAME.json` holds the facts and the name and SHA-256 of the tensor file beside it, and carries a SHA-256 of
itself. The tensor file is named after its content, so a new version never touches the old one, and replacing
the JSON is the one instant at which the new version takes over: a crash leaves the old bundle or the new.

`pack` and `unpack` turn nested state (an optimiser's, say) into such tensors and facts and back, exactly.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from aleator.foundation.checks import reject, require
from aleator.foundation.files import replace_file


class DamagedBundleError(ValueError):
    """The folder holds a bundle, but not the one that was written."""


@dataclass(frozen=True)
class Bundle:
    """What a folder holds. `fingerprint` is the SHA-256 of tensors and facts together."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]
    fingerprint: str


def write_bundle(
    folder: str | Path,
    name: str,
    version: int,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    overwrite: bool = False,
) -> str:
    """Write `folder/NAME.json` and its tensors, atomically, and return the fingerprint.

    Writing the same content again is no change. Any other content in the folder is kept, and an error says
    so, unless `overwrite`; even then only the bundle called `name` is replaced.
    """
    from safetensors.torch import save

    folder = Path(folder).expanduser()
    require(not folder.is_file(), "path", str(folder), "is a file", "name a folder")
    # Clones, because safetensors refuses tensors that share memory (tied weights).
    data = save({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()})
    tensor_sha = hashlib.sha256(data).hexdigest()
    tensor_file = f"{name}-{tensor_sha[:16]}.safetensors"
    document: dict[str, Any] = {
        "format": f"aleator-{name}",
        "version": version,
        "tensors": {"file": tensor_file, "sha256": tensor_sha},
        "facts": json.loads(json.dumps(facts)),
    }
    document["sha256"] = _fingerprint(document)
    index = folder / f"{name}.json"
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        same = False
        with contextlib.suppress(ValueError):
            same = read_bundle(folder, name, version).fingerprint == document["sha256"]
        if same:
            return document["sha256"]
        reject(
            "path",
            str(folder),
            "is not empty",
            "name a new folder, or pass overwrite=True where there is one",
        )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / tensor_file, data)
    replace_file(index, json.dumps(document, indent=1).encode())
    for stale in folder.iterdir():
        if _is_tensor_file(stale.name, name) and stale.name != tensor_file:
            stale.unlink()
    return document["sha256"]


def read_bundle(folder: str | Path, name: str, version: int) -> Bundle:
    """Read what `write_bundle` wrote; a damaged, foreign or other version raises a clear ValueError."""
    from safetensors.torch import load

    folder = Path(folder).expanduser()
    index = folder / f"{name}.json"
    require(index.is_file(), "path", str(folder), f"holds no {name}.json", f"name a folder with a saved {name}")
    try:
        document = json.loads(index.read_bytes())
        claimed = document.pop("sha256")
        found_format, found_version = document["format"], document["version"]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise DamagedBundleError(f"{index} is damaged: it is not the JSON that was written; save it again") from None
    require(
        found_format == f"aleator-{name}",
        "path",
        str(folder),
        f"holds {found_format!r}",
        f"name a saved {name}",
    )
    require(
        found_version == version,
        "path",
        str(folder),
        f"is in format version {found_version}, and this release reads version {version}",
        "load it with the release that wrote it, and save it again with this one",
    )
    if claimed != _fingerprint(document):
        raise DamagedBundleError(f"{index} is damaged: its content does not match its checksum; save it again")
    tensor_file = folder / document["tensors"]["file"]
    require(
        _is_tensor_file(tensor_file.name, name) and tensor_file.parent == folder,
        "path",
        str(folder),
        "names tensors outside itself",
        "do not load it",
    )
    data = tensor_file.read_bytes() if tensor_file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != document["tensors"]["sha256"]:
        problem = f"{len(data)} bytes that do not match their checksum" if data else "missing or empty"
        raise DamagedBundleError(f"{tensor_file} is damaged: {problem}; save it again")
    return Bundle(document["facts"], load(data), claimed)


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """JSON for nested state; its tensors move into `tensors`, keyed by where they were."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [(pack(key, tensors), pack(item, tensors, f"{path}/{key}")) for key, item in value.items()]
        return {"dict": pairs}
    return reject(
        f"state{path}",
        type(value).__name__,
        "cannot be saved",
        "keep to tensors, numbers, text and their containers",
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {unpack(key, tensors): unpack(item, tensors) for key, item in content}
    items = [unpack(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)


def _fingerprint(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _is_tensor_file(file: str, name: str) -> bool:
    return re.fullmatch(re.escape(name) + r"-[0-9a-f]{16}\.safetensors", file) is not None
