"""Bundles: folders of tensors and metadata that are complete, or refused on reading. Safetensors and JSON, no pickle.

    NAME.json                    metadata; name and SHA-256 of the tensor file; SHA-256 of the JSON itself
    NAME-<sha256>.safetensors    the tensors; the first 16 digits of the checksum are part of the name

A new version has a tensor file of another name, so it never touches the old file. It takes effect when the JSON file
is replaced, in one atomic step: after a crash, the folder holds the old bundle or the new one.

`pack_state` turns nested state, such as that of an optimiser, into tensors and JSON, and `unpack_state` turns it back.
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
from aleator.foundation.integrity import DamagedFileError, using_contents

_WAY_OUT = "restore it from a copy, or save it again"


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle.

    Args:
        metadata: What was written, as JSON.
        tensors: Tensors by name.
        fingerprint: SHA-256 of metadata and tensors together.
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    fingerprint: str


def write_bundle(
    folder: str | Path,
    name: str,
    version: int,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    overwrite: bool = False,
) -> str:
    """Write a bundle atomically.

    Args:
        folder: A new or empty folder. A folder that holds the same content already is left as it is.
        name: What the bundle holds: "encoder", "checkpoint".
        version: Version of the format of metadata and tensors.
        metadata: Anything that `json.dumps` accepts.
        tensors: Tensors by name. They may share memory.
        overwrite: Whether to replace another bundle of this name. Other files in the folder are kept.

    Returns:
        The fingerprint: SHA-256 of metadata and tensors together.

    Raises:
        ValueError: If the folder holds anything else, unless `overwrite`.
    """
    from safetensors.torch import save

    folder = Path(folder).expanduser()
    require(not folder.is_file(), "path", str(folder), "is a file", "name a folder")
    # Clones, because safetensors refuses tensors that share memory (tied weights).
    data = save({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()})
    tensor_sha = hashlib.sha256(data).hexdigest()
    tensor_file = f"{name}-{tensor_sha[:16]}.safetensors"
    document: dict[str, Any] = {
        "format": f"aleator-{name}",
        "version": version,
        "tensors": {"file": tensor_file, "sha256": tensor_sha},
        "facts": json.loads(json.dumps(metadata)),
    }
    document["sha256"] = _fingerprint(document)
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        if _holds(folder, name, version, document["sha256"]):
            return document["sha256"]
        reject("path", str(folder), "is not empty", "name a new folder, or pass overwrite=True where there is one")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / tensor_file, data)
    replace_file(folder / f"{name}.json", json.dumps(document, indent=1).encode())
    for old in folder.iterdir():
        if _is_tensor_file(old.name, name) and old.name != tensor_file:
            old.unlink()
    return document["sha256"]


def read_bundle(folder: str | Path, name: str, version: int) -> Bundle:
    """Read a bundle, and verify its checksums.

    Args:
        folder: Folder of the bundle.
        name: What it should hold: "encoder", "checkpoint".
        version: Version of the format that the caller understands.

    Returns:
        The bundle, with tensors on the CPU.

    Raises:
        ValueError: If there is no such bundle, or if it has another version.
        DamagedFileError: If it is incomplete or altered.
    """
    from safetensors.torch import load

    folder = Path(folder).expanduser()
    index = folder / f"{name}.json"
    require(index.is_file(), "path", str(folder), f"holds no {name}.json", f"name a folder with a saved {name}")
    try:
        document = json.loads(index.read_bytes())
        recorded_sha = document.pop("sha256")
        written_format, written_version = document["format"], document["version"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise DamagedFileError(index, "it is not the JSON that was written", _WAY_OUT) from None
    require(
        written_format == f"aleator-{name}", "path", str(folder), f"holds {written_format!r}", f"name a saved {name}"
    )
    require(
        written_version == version,
        "path",
        str(folder),
        f"is in format version {written_version}, and this release reads version {version}",
        "load it with the release that wrote it, and save it again with this one",
    )
    if recorded_sha != _fingerprint(document):
        raise DamagedFileError(index, "its content does not match its checksum", _WAY_OUT)
    with using_contents(index, _WAY_OUT):
        tensor_file, tensor_sha = folder / document["tensors"]["file"], document["tensors"]["sha256"]
        facts = document["facts"]
    require(
        _is_tensor_file(tensor_file.name, name) and tensor_file.parent == folder,
        "path",
        str(folder),
        "names tensors outside itself",
        "do not load it",
    )
    data = tensor_file.read_bytes() if tensor_file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != tensor_sha:
        problem = f"{len(data)} bytes that do not match their checksum" if data else "missing or empty"
        raise DamagedFileError(tensor_file, problem, _WAY_OUT)
    try:
        tensors = load(data)
    except Exception as damage:  # safetensors has its own errors
        raise DamagedFileError(tensor_file, f"its tensors cannot be read ({damage})", _WAY_OUT) from None
    return Bundle(facts, tensors, recorded_sha)


def pack_state(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Turn nested state into JSON and tensors.

    Args:
        value: Tensors, numbers, text, bytes, None, and lists, tuples and dicts of them.
        tensors: Receives the tensors, by their place in the state.
        path: Place of `value` in the whole state.

    Returns:
        JSON from which `unpack_state` restores the state exactly.

    Raises:
        ValueError: If the state holds anything else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        while path in tensors:  # {"a/b": ...} and {"a": {"b": ...}} have one path
            path += "'"
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        container = "list" if isinstance(value, list) else "tuple"
        return {container: [pack_state(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [(pack_state(key, tensors), pack_state(item, tensors, f"{path}/{key}")) for key, item in value.items()]
        return {"dict": pairs}
    return reject(
        f"state{path}", type(value).__name__, "cannot be saved", "keep to tensors, numbers, text and their containers"
    )


def unpack_state(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Restore the state that `pack_state` packed.

    Args:
        packed: The JSON.
        tensors: The tensors.

    Returns:
        The state.
    """
    if not isinstance(packed, dict):
        return packed
    ((container, content),) = packed.items()
    if container == "tensor":
        return tensors[content]
    if container == "bytes":
        return bytes.fromhex(content)
    if container == "dict":
        return {unpack_state(key, tensors): unpack_state(item, tensors) for key, item in content}
    items = [unpack_state(item, tensors) for item in content]
    return items if container == "list" else tuple(items)


def _holds(folder: Path, name: str, version: int, fingerprint: str) -> bool:
    """Whether a folder holds a complete bundle with this fingerprint."""
    with contextlib.suppress(ValueError):
        return read_bundle(folder, name, version).fingerprint == fingerprint
    return False


def _fingerprint(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _is_tensor_file(file: str, name: str) -> bool:
    return re.fullmatch(re.escape(name) + r"-[0-9a-f]{16}\.safetensors", file) is not None
