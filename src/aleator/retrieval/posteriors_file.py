"""Posteriors files: reading and writing.

A posteriors file holds N posteriors and, if `aleator embed` wrote it, where they came from:

    NAME.safetensors   mu (N, D) float32, kappa (N,) float32; header: fingerprint, kappa_pos, prior, maps, items
                       posteriors of K modes: mu (N, K, D), kappa (N, K) and log_weights (N, K)
                       from runs that can tell: novelty (N,) float32, positive for what is unlike anything seen;
                       labels.mu, labels.kappa, labels.weights and the header's labels: a `LabelModel`
    NAME.jsonl         one JSON object for each posterior, in the same order: its id, and any metadata

Both have checksums: see `posteriors_checks`.

A file from elsewhere may also be an .npz with the arrays mu and kappa, and log_weights for K modes. It has no header.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import LabelModel, pack_label_model, unpack_label_model
from aleator.foundation import DamagedFileError, reject, require, writing_atomically
from aleator.matching import DEFAULT_PRIOR, MatchMaps, VMFKernel
from aleator.posteriors import VMFMixture, VonMisesFisher
from aleator.retrieval.items import Id, Metadata
from aleator.retrieval.posteriors_checks import (
    UNSEALED,
    VERSION,
    WAY_OUT,
    seal_posteriors,
    verify_items,
    verify_posteriors,
)

_ENDINGS = (".npz", ".safetensors")
_TENSORS = ("mu", "kappa", "log_weights")
_FLOAT32_BYTES = 4


def read_posteriors(path: Path) -> VonMisesFisher | VMFMixture:
    """Read the posteriors of an .npz or .safetensors file.

    Args:
        path: A file with the arrays mu (N, D) and kappa (N,); for posteriors of K modes mu (N, K, D), kappa (N, K) and
            log_weights (N, K).

    Returns:
        N posteriors, in the dtype of the file.

    Raises:
        ValueError: If the file is missing, damaged or has no such arrays.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.retrieval import read_posteriors
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> read_posteriors(Path("two.npz")).kappa.tolist()
        [5.0, 50.0]
    """
    require(path.is_file(), "posteriors", str(path), "there is no such file", "name an .npz or .safetensors file")
    require(path.suffix in _ENDINGS, "posteriors", str(path), "has an unknown ending", "use .npz or .safetensors")
    try:
        if path.suffix == ".npz":
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                tensors = {name: torch.as_tensor(arrays[name]) for name in _TENSORS if name in arrays}
        else:
            from safetensors.torch import load_file

            tensors = load_file(path)
    except Exception as damage:  # zip and safetensors each have their own errors
        raise DamagedFileError(path, f"it cannot be read ({_one_line(damage)})", WAY_OUT) from damage
    read_header(path)  # verifies the file
    for name in ("mu", "kappa"):
        require(name in tensors, "posteriors", str(path), f"has no array {name!r}", "store mu (N, D) and kappa (N,)")
    problem = f"has mu of shape {tuple(tensors['mu'].shape)} and kappa of shape {tuple(tensors['kappa'].shape)}"
    fits = tensors["mu"].dim() in (2, 3) and tensors["mu"].shape[:-1] == tensors["kappa"].shape
    require(fits, "posteriors", str(path), problem, "store mu (N, D) and kappa (N,)")
    has_weights = tensors["mu"].dim() < 3 or "log_weights" in tensors
    way_out = "store log_weights (N, K) too"
    require(has_weights, "posteriors", str(path), "has several modes and no weights", way_out)
    try:
        components = VonMisesFisher(tensors["mu"], tensors["kappa"])
        return VMFMixture(tensors["log_weights"], components) if "log_weights" in tensors else components
    except (ValueError, TypeError, RuntimeError) as problem:
        way_out = "store mu of length 1 and kappa >= 0, in float32 or float64"
        reject("posteriors", str(path), f"holds no posteriors ({_one_line(problem)})", way_out)


def read_header(path: Path) -> dict[str, str]:
    """Read the header that `aleator embed` wrote into a posteriors file.

    Args:
        path: A posteriors file.

    Returns:
        The header: fingerprint (of the encoder), kappa_pos, prior and maps (of match probabilities), items (a digest).
        It is empty for an .npz file, and for a file that is no safetensors file.

    Raises:
        DamagedFileError: If the file does not match the checksum in its header.
    """
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "np") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError):
        return {}
    verify_posteriors(path, header)
    return header


def match_settings(header: Mapping[str, str]) -> tuple[VMFKernel, float, MatchMaps]:
    """Kernel, prior and maps of match probabilities, from a header; defaults where the header has none."""
    try:
        kernel = VMFKernel(float(header["kappa_pos"])) if "kappa_pos" in header else VMFKernel()
        maps = MatchMaps.from_dict(json.loads(header["maps"]) if "maps" in header else None)
        return kernel, float(header.get("prior", DEFAULT_PRIOR)), maps
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reject("posteriors", "the header", f"cannot be read ({_one_line(problem)})", "write the file again")


def match_header(kernel: VMFKernel, prior: float, maps: MatchMaps) -> dict[str, str]:
    """The part of a header that `match_settings` reads. Maps that are the identity are left out."""
    header = {"kappa_pos": repr(float(kernel.kappa_pos)), "prior": repr(prior)}
    return header | ({"maps": json.dumps(maps.to_dict())} if maps.calibrated else {})


def write_posteriors(
    path: Path,
    count: int,
    dim: int,
    blocks: Iterable[tuple[np.ndarray, ...]],
    header: Mapping[str, str],
    *,
    novelty: bool = False,
    labels: LabelModel | None = None,
    modes: int = 1,
) -> None:
    """Write a posteriors file, block by block: the posteriors need not fit into memory.

    The file appears under its name when it is complete, never in part.

    Args:
        path: The .safetensors file.
        count: N, the number of posteriors.
        dim: D, the dimension of mu.
        blocks: Arrays mu (n, D), kappa (n,) and, if there is novelty, novelty (n,), float32, in order; N rows in total.
            For K > 1 modes mu (n, K, D), kappa (n, K), log_weights (n, K) and novelty (n,).
        header: Strings for the file's header; see `read_header`.
        novelty: Whether the blocks have novelty.
        labels: Label probabilities to store with the posteriors. The header gets its numbers; see `label_header`.
        modes: K, the number of modes of each posterior.
    """
    shapes = {"mu": [count, dim], "kappa": [count]}
    if modes > 1:
        shapes = {"mu": [count, modes, dim], "kappa": [count, modes], "log_weights": [count, modes]}
    shapes |= {"novelty": [count]} if novelty else {}
    rows = len(shapes)
    extra = {}
    if labels is not None:
        extra = {f"labels.{name}": tensor.float().numpy() for name, tensor in pack_label_model(labels)[1].items()}
        shapes |= {name: list(array.shape) for name, array in extra.items()}
    checks = {"version": VERSION, "sha256": UNSEALED}
    layout: dict[str, Any] = {"__metadata__": {**header, **label_header(labels), **checks}}
    offsets, end = [], 0
    for name, shape in shapes.items():
        offsets.append(end)
        end += _FLOAT32_BYTES * math.prod(shape)
        layout[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offsets[-1], end]}
    text = json.dumps(layout).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    with writing_atomically(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(start)
            places = [len(start) + offset for offset in offsets]
            for place, array in zip(places[rows:], extra.values(), strict=True):
                _write_at(file, place, array)
            for block in blocks:
                for column, array in enumerate(block):
                    places[column] += _write_at(file, places[column], array)
            first_rows = places[0] == len(start) + _FLOAT32_BYTES * math.prod(shapes["mu"])
            assert first_rows, "the blocks do not have N rows in total"
        seal_posteriors(temporary)


def label_header(labels: LabelModel | None) -> dict[str, str]:
    """What the header of a posteriors file says about label probabilities: names and numbers, as JSON."""
    return {} if labels is None else {"labels": json.dumps(pack_label_model(labels)[0])}


def read_answers(path: Path) -> tuple[LabelModel | None, Tensor | None]:
    """Read what a posteriors file holds beside posteriors.

    Args:
        path: A posteriors file.

    Returns:
        The label probabilities, and the novelty (N,) of the items, which is positive for what is unlike anything seen.
        None for what the file does not have.
    """
    from safetensors import safe_open

    header = read_header(path)
    if not header:
        return None, None
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        novelty = file.get_tensor("novelty") if "novelty" in names else None
        tensors = {name.removeprefix("labels."): file.get_tensor(name) for name in names if name.startswith("labels.")}
    if "labels" not in header:
        return None, novelty
    try:
        return unpack_label_model(json.loads(header["labels"]), tensors), novelty
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedFileError(
            path, f"its label probabilities cannot be read ({_one_line(problem)})", WAY_OUT
        ) from None


def read_items_beside(path: Path) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Read the ids and metadata of a posteriors file from the .jsonl file beside it.

    Args:
        path: The posteriors file.

    Returns:
        What `read_items` returns; None and None if there is no such file.

    Raises:
        ValueError: If a line is not a JSON object with an id.
        DamagedFileError: If the ids are not those of the posteriors.
    """
    beside = path.with_suffix(".jsonl")
    if not beside.is_file():
        return None, None
    ids, metadata = read_items(beside)
    verify_items(beside, ids or [], read_header(path))
    return ids, metadata


def read_items(path: Path | None) -> tuple[list[Id] | None, list[Metadata] | None]:
    """Read ids and metadata from JSON lines such as {"id": "cat-1", "label": "cat"}.

    Args:
        path: The .jsonl file. None: no ids and no metadata.

    Returns:
        The ids, and for each id its metadata: all keys but the id.

    Raises:
        ValueError: If a line is not a JSON object with an id.
    """
    if path is None:
        return None, None
    require(path.is_file(), "items", str(path), "there is no such file", "name a file of JSON lines")
    ids, metadata = [], []
    for number, line in enumerate(_lines(path), 1):
        try:
            item = json.loads(line)
            ids.append(item.pop("id"))
            hash(ids[-1])
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            reject(
                "items", f"line {number} of {path}", "is not a JSON object with an id", 'write {"id": ..., "key": ...}'
            )
        metadata.append(item)
    return ids, metadata


def join_items(
    ids: Sequence[Id] | None, named: Sequence[Id] | None, metadata: list[Metadata] | None, file: str
) -> list[Metadata] | None:
    """Metadata of a second file, in the order of the ids.

    Args:
        ids: Ids of the posteriors. None: they have none, and the second file is taken line by line.
        named: Ids of the second file.
        metadata: Metadata of the second file.
        file: Name of the second file, for errors.

    Returns:
        The metadata of each id. Lines of other ids are left out.

    Raises:
        ValueError: If the second file names an id twice, or not at all.
    """
    if ids is None or named is None or metadata is None:
        return metadata
    line_of: dict[Id, int] = {}
    for line, id in enumerate(named):
        problem = f"{id!r} is in line {line_of.get(id, 0) + 1} too"
        require(
            line_of.setdefault(id, line) == line, "items", f"line {line + 1} of {file}", problem, "keep one of them"
        )
    for id in ids:
        require(id in line_of, "items", file, f"has no line for {id!r}", "write one line for each id of the posteriors")
    return [metadata[line_of[id]] for id in ids]


def write_items(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    """Write the .jsonl file of a posteriors file; each item has an "id". It appears when it is complete."""
    with writing_atomically(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for item in items:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")


def _write_at(file: Any, offset: int, array: np.ndarray) -> int:
    """Write an array at a byte offset of a file; returns the number of bytes."""
    file.seek(offset)
    return file.write(np.ascontiguousarray(array).tobytes())


def _lines(path: Path) -> list[str]:
    # Not splitlines: a text may contain characters that it takes for the end of a line.
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as damage:
        raise DamagedFileError(path, f"it is not UTF-8 text (byte {damage.start})", WAY_OUT) from None
    return lines[:-1] if lines and not lines[-1] else lines


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
